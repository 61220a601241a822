package probes

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
)

// maxUnpacked bounds what an archive may unpack to, so that a bomb ends in an
// error and not in a machine without memory.
const maxUnpacked = 2 << 30 // bytes

// An entry is one file of a snapshot.
type entry struct {
	path string // slash-separated, relative to the snapshot's root
	open func() (io.ReadCloser, error)
}

func folderEntries(fsys fs.FS) ([]entry, error) {
	var entries []entry
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			// A folder that can't be listed hides what is in it; the rest is
			// still worth reading.
			if name == "." {
				return err
			}
			entries = append(entries, entry{name, func() (io.ReadCloser, error) { return nil, err }})
			return nil
		}
		if !d.IsDir() {
			entries = append(entries, entry{name, func() (io.ReadCloser, error) { return fsys.Open(name) }})
		}
		return nil
	})
	return entries, err
}

func archiveEntries(file string) ([]entry, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	switch {
	case strings.HasSuffix(file, ".zip"):
		return zipEntries(f)
	case strings.HasSuffix(file, ".tar"):
		return tarEntries(f)
	case strings.HasSuffix(file, ".tgz"), strings.HasSuffix(file, ".tar.gz"):
		gz, err := gzip.NewReader(f)
		if err != nil {
			return nil, fmt.Errorf("reading gzip: %w", err)
		}
		return tarEntries(gz)
	}
	return nil, errors.New("neither a folder nor a .tar.gz, .tgz, .tar or .zip file")
}

func tarEntries(r io.Reader) ([]entry, error) {
	var entries []entry
	left := int64(maxUnpacked)
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return trimRoot(entries), nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading tar: %w", err)
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if entries, left, err = unpack(entries, left, h.Name, tr); err != nil {
			return nil, err
		}
	}
}

func zipEntries(f *os.File) ([]entry, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	zr, err := zip.NewReader(f, info.Size())
	if err != nil {
		return nil, fmt.Errorf("reading zip: %w", err)
	}
	var entries []entry
	left := int64(maxUnpacked)
	for _, zf := range zr.File {
		if !zf.Mode().IsRegular() {
			continue
		}
		rc, err := zf.Open()
		if err != nil {
			return nil, fmt.Errorf("reading zip entry %q: %w", zf.Name, err)
		}
		entries, left, err = unpack(entries, left, zf.Name, rc)
		rc.Close()
		if err != nil {
			return nil, err
		}
	}
	return trimRoot(entries), nil
}

func unpack(entries []entry, left int64, name string, r io.Reader) ([]entry, int64, error) {
	clean := path.Clean(strings.ReplaceAll(name, `\`, "/"))
	if !fs.ValidPath(clean) {
		return nil, 0, fmt.Errorf("entry %q leaves the archive's folder; refusing the archive", name)
	}
	data, err := io.ReadAll(io.LimitReader(r, left+1))
	if err != nil {
		return nil, 0, fmt.Errorf("unpacking %q: %w", name, err)
	}
	left -= int64(len(data))
	if left < 0 {
		return nil, 0, fmt.Errorf("it unpacks to more than %d GiB; unpack it yourself and scan the folder", maxUnpacked>>30)
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }
	return append(entries, entry{clean, open}), left, nil
}

// trimRoot drops the one folder that an archive of a folder begins with.
func trimRoot(entries []entry) []entry {
	if len(entries) == 0 {
		return entries
	}
	root, _, nested := strings.Cut(entries[0].path, "/")
	if !nested || slices.ContainsFunc(entries, func(e entry) bool { return !strings.HasPrefix(e.path, root+"/") }) {
		return entries
	}
	for i := range entries {
		entries[i].path = strings.TrimPrefix(entries[i].path, root+"/")
	}
	return entries
}
