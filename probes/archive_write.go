package probes

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// writeSnapshot writes snapshot.yaml and files (place → file on disk) to a
// folder or an archive, each line and each place changed.
func writeSnapshot(name string, change func(string) string, head string, at time.Time, files map[string]string) (err error) {
	out, err := newPacker(name, at)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.close()) }()
	var changed strings.Builder
	for line := range strings.Lines(head) {
		changed.WriteString(change(line))
	}
	if err := out.add("snapshot.yaml", int64(changed.Len()), strings.NewReader(changed.String())); err != nil {
		return err
	}
	for _, place := range slices.Sorted(maps.Keys(files)) {
		if err := addChanged(out, change(place), files[place], change); err != nil {
			return fmt.Errorf("%s: %w", place, err)
		}
	}
	return nil
}

// addChanged goes through a file of its own, for an archive wants to know the
// size beforehand.
func addChanged(out packer, place, file string, change func(string) string) error {
	from, err := os.Open(file)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.Create(file + ".changed")
	if err != nil {
		return err
	}
	defer to.Close()
	r, w := bufio.NewReaderSize(from, 1<<16), bufio.NewWriter(to)
	for {
		line, err := r.ReadString('\n')
		if _, err := w.WriteString(change(line)); err != nil {
			return err
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	size, err := to.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if _, err := to.Seek(0, io.SeekStart); err != nil {
		return err
	}
	return out.add(place, size, to)
}

// A packer takes the files of a snapshot.
type packer interface {
	add(place string, size int64, content io.Reader) error
	close() error
}

func newPacker(name string, at time.Time) (packer, error) {
	lower := strings.ToLower(name)
	gzipped := strings.HasSuffix(lower, ".tar.gz") || strings.HasSuffix(lower, ".tgz")
	if !gzipped && !strings.HasSuffix(lower, ".tar") && !strings.HasSuffix(lower, ".zip") {
		if entries, err := os.ReadDir(name); err == nil && len(entries) > 0 {
			return nil, errors.New("the folder is there and not empty")
		}
		return folder(name), os.MkdirAll(name, 0o700)
	}
	file, err := os.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	switch {
	case strings.HasSuffix(lower, ".zip"):
		return zipper{zip.NewWriter(file), file, at}, nil
	case gzipped:
		gz := gzip.NewWriter(file)
		return tarrer{tar.NewWriter(gz), []io.Closer{gz, file}, at}, nil
	}
	return tarrer{tar.NewWriter(file), []io.Closer{file}, at}, nil
}

type folder string

func (f folder) add(place string, _ int64, content io.Reader) error {
	name := filepath.Join(string(f), filepath.FromSlash(place))
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	file, err := os.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, content)
	return errors.Join(err, file.Close())
}

func (f folder) close() error { return nil }

type tarrer struct {
	*tar.Writer
	under []io.Closer
	at    time.Time
}

func (t tarrer) add(place string, size int64, content io.Reader) error {
	if err := t.WriteHeader(&tar.Header{Name: place, Mode: 0o600, Size: size, ModTime: t.at}); err != nil {
		return err
	}
	_, err := io.Copy(t, content)
	return err
}

func (t tarrer) close() error {
	err := t.Close()
	for _, c := range t.under {
		err = errors.Join(err, c.Close())
	}
	return err
}

type zipper struct {
	*zip.Writer
	file *os.File
	at   time.Time
}

func (z zipper) add(place string, _ int64, content io.Reader) error {
	w, err := z.CreateHeader(&zip.FileHeader{Name: place, Method: zip.Deflate, Modified: z.at})
	if err != nil {
		return err
	}
	_, err = io.Copy(w, content)
	return err
}

func (z zipper) close() error { return errors.Join(z.Close(), z.file.Close()) }
