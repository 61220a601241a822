package live

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// newObject is an empty object of a kind that has a Go type.
func (k served) newObject() (runtime.Object, error) {
	object, err := types().New(k.GroupVersionKind)
	if err != nil {
		return nil, err
	}
	object.GetObjectKind().SetGroupVersionKind(k.GroupVersionKind)
	return object, nil
}

// A jsonPage decodes a list in JSON item by item while it arrives.
type jsonPage struct {
	decoder *json.Decoder
	kind    served
	inItems bool
	begun   bool
	meta    metav1.ListMeta
}

// A jsonItem is an object without a Go type.
type jsonItem struct {
	namespace, name string
	raw             []byte
}

func (p *jsonPage) goOn() string { return p.meta.Continue }

func (p *jsonPage) next() (any, error) {
	if !p.begun {
		p.begun = true
		if token, err := p.token(); err != nil || token != json.Delim('{') {
			return nil, fmt.Errorf("not a list: %w", err)
		}
	}
	for {
		if p.inItems {
			if p.decoder.More() {
				return p.item()
			}
			if _, err := p.token(); err != nil { // ]
				return nil, err
			}
			p.inItems = false
		}
		if !p.decoder.More() {
			if _, err := p.token(); err != nil { // }
				return nil, err
			}
			return nil, io.EOF
		}
		field, err := p.token()
		if err != nil {
			return nil, err
		}
		switch field {
		case "items":
			open, err := p.token()
			if err != nil {
				return nil, err
			}
			p.inItems = open == json.Delim('[') // else null
		case "metadata":
			err = p.decoder.Decode(&p.meta)
		default:
			var other json.RawMessage
			err = p.decoder.Decode(&other)
		}
		if err != nil {
			return nil, cut(err)
		}
	}
}

func (p *jsonPage) token() (json.Token, error) {
	token, err := p.decoder.Token()
	return token, cut(err)
}

// cut names the end of a body that ended too soon.
func cut(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func (p *jsonPage) item() (any, error) {
	if p.kind.typed {
		object, err := p.kind.newObject()
		if err != nil {
			return nil, err
		}
		return object, cut(p.decoder.Decode(object))
	}
	var raw json.RawMessage
	if err := p.decoder.Decode(&raw); err != nil {
		return nil, cut(err)
	}
	var head struct {
		Kind     string `json:"kind"`
		Metadata struct {
			Namespace string `json:"namespace"`
			Name      string `json:"name"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(raw, &head); err != nil {
		return nil, err
	}
	if head.Kind == "" && len(raw) > 2 { // items of typed lists carry no kind
		raw = append(fmt.Appendf(nil, `{"apiVersion":%q,"kind":%q,`, p.kind.GroupVersion(), p.kind.Kind), raw[1:]...)
	}
	return jsonItem{head.Metadata.Namespace, head.Metadata.Name, raw}, nil
}

// A protoPage decodes a list in protobuf item by item while it arrives, so
// that only one item is held. The answer is the envelope runtime.Unknown, whose
// field 2 is the list; each list has its metadata as field 1 and its items as
// field 2. Source: k8s.io/apimachinery pkg/runtime/generated.proto, and the
// generated.proto files of k8s.io/api.
type protoPage struct {
	r      *bufio.Reader
	kind   served
	begun  bool
	left   uint64 // bytes of the list that are still to come
	buffer []byte
	meta   metav1.ListMeta
}

func newProtoPage(r io.Reader, kind served) *protoPage {
	return &protoPage{r: bufio.NewReaderSize(r, 1<<14), kind: kind}
}

const (
	envelopeMagic = "k8s\x00"
	lengthPrefix  = 2       // the wire type of messages, strings and bytes
	longestItem   = 1 << 26 // far above etcd's limit on an object
)

func (p *protoPage) goOn() string { return p.meta.Continue }

func (p *protoPage) next() (any, error) {
	if !p.begun {
		if err := p.begin(); err != nil {
			return nil, err
		}
		p.begun = true
	}
	for p.left > 0 {
		field, data, err := p.field(&p.left)
		if err != nil {
			return nil, err
		}
		switch field {
		case 1:
			if err := p.meta.Unmarshal(data); err != nil {
				return nil, err
			}
		case 2:
			object, err := p.kind.newObject()
			if err != nil {
				return nil, err
			}
			message, ok := object.(interface{ Unmarshal([]byte) error })
			if !ok {
				return nil, fmt.Errorf("%s has no protobuf form", p.kind.Kind)
			}
			if err := message.Unmarshal(data); err != nil {
				return nil, err
			}
			return object, nil
		}
	}
	// What follows in the envelope holds nothing; reading it lets the
	// connection be used again.
	if _, err := io.Copy(io.Discard, io.LimitReader(p.r, 1<<16)); err != nil {
		return nil, cut(err)
	}
	return nil, io.EOF
}

// begin reads the envelope up to the list.
func (p *protoPage) begin() error {
	var magic [len(envelopeMagic)]byte
	if _, err := io.ReadFull(p.r, magic[:]); err != nil {
		return cut(err)
	}
	if string(magic[:]) != envelopeMagic {
		return errors.New("not the protobuf of Kubernetes")
	}
	for {
		tag, err := binary.ReadUvarint(p.r)
		if err != nil {
			return cut(err)
		}
		size, err := binary.ReadUvarint(p.r)
		if err != nil {
			return cut(err)
		}
		if tag&7 != lengthPrefix {
			return fmt.Errorf("protobuf: wire type %d in the envelope", tag&7)
		}
		if tag>>3 == 2 {
			p.left = size
			return nil
		}
		if _, err := io.CopyN(io.Discard, p.r, int64(size)); err != nil {
			return cut(err)
		}
	}
}

// field reads one length-prefixed field of a message of which left bytes
// remain. The data is valid until the next call.
func (p *protoPage) field(left *uint64) (field uint64, data []byte, err error) {
	tag, n, err := p.uvarint()
	if err != nil {
		return 0, nil, err
	}
	*left -= min(*left, n)
	if tag&7 != lengthPrefix {
		return 0, nil, fmt.Errorf("protobuf: wire type %d in a list", tag&7)
	}
	size, n, err := p.uvarint()
	if err != nil {
		return 0, nil, err
	}
	*left -= min(*left, n)
	if size > *left || size > longestItem {
		return 0, nil, fmt.Errorf("protobuf: an item of %d bytes in a list of which %d are left", size, *left)
	}
	if uint64(cap(p.buffer)) < size {
		p.buffer = make([]byte, max(size, 1<<14))
	}
	data = p.buffer[:size]
	if _, err := io.ReadFull(p.r, data); err != nil {
		return 0, nil, cut(err)
	}
	*left -= size
	return tag >> 3, data, nil
}

// uvarint reads a number and counts its bytes.
func (p *protoPage) uvarint() (value, size uint64, err error) {
	value, err = binary.ReadUvarint(p.r)
	var encoded [binary.MaxVarintLen64]byte
	return value, uint64(binary.PutUvarint(encoded[:], value)), cut(err)
}
