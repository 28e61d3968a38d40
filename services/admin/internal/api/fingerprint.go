package api

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"math"
	"slices"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// fingerprint tells whether two requests with one idempotency key ask for the same. A dry run asks for the same as the run
// itself, and the key is no part of what is asked for.
//
// It is over the fields' numbers and values, never over JSON or protobuf bytes, which say one thing in many ways, and differ
// from build to build: the retry of a request may reach another one. Adding fields to a message leaves it as it is. It is
// stored: another form needs another name.
func fingerprint(r changing) [sha256.Size]byte {
	const name = "evalonce/admin-request/1"
	m := r.ProtoReflect()
	b := appendText([]byte(name), string(m.Descriptor().FullName()))
	return sha256.Sum256(appendMessage(b, m, "dry_run", "request_id"))
}

func appendMessage(b []byte, m protoreflect.Message, without ...protoreflect.Name) []byte {
	var fields []protoreflect.FieldDescriptor
	for field := range m.Range {
		if !slices.Contains(without, field.Name()) {
			fields = append(fields, field)
		}
	}
	slices.SortFunc(fields, func(a, b protoreflect.FieldDescriptor) int { return cmp.Compare(a.Number(), b.Number()) })
	b = appendNumber(b, uint64(len(fields)))
	for _, field := range fields {
		b = appendNumber(b, uint64(field.Number()))
		value := m.Get(field)
		switch {
		case field.IsMap():
			b = appendMap(b, field, value.Map())
		case field.IsList():
			list := value.List()
			b = appendNumber(b, uint64(list.Len()))
			for i := range list.Len() {
				b = appendValue(b, field.Kind(), list.Get(i))
			}
		default:
			b = appendValue(b, field.Kind(), value)
		}
	}
	return b
}

func appendMap(b []byte, field protoreflect.FieldDescriptor, m protoreflect.Map) []byte {
	var keys []protoreflect.MapKey
	for key := range m.Range {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b protoreflect.MapKey) int { return cmp.Compare(a.String(), b.String()) })
	b = appendNumber(b, uint64(len(keys)))
	for _, key := range keys {
		b = appendText(b, key.String())
		b = appendValue(b, field.MapValue().Kind(), m.Get(key))
	}
	return b
}

func appendValue(b []byte, kind protoreflect.Kind, v protoreflect.Value) []byte {
	switch kind {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return appendMessage(b, v.Message())
	case protoreflect.StringKind:
		return appendText(b, v.String())
	case protoreflect.BytesKind:
		return appendText(b, string(v.Bytes()))
	case protoreflect.EnumKind:
		return appendNumber(b, uint64(v.Enum()))
	case protoreflect.BoolKind:
		if v.Bool() {
			return append(b, 1)
		}
		return append(b, 0)
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		return appendNumber(b, math.Float64bits(v.Float()))
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind, protoreflect.Fixed32Kind, protoreflect.Fixed64Kind:
		return appendNumber(b, v.Uint())
	default: // signed integers of all widths
		return appendNumber(b, uint64(v.Int()))
	}
}

func appendNumber(b []byte, n uint64) []byte { return binary.BigEndian.AppendUint64(b, n) }

func appendText(b []byte, s string) []byte { return append(appendNumber(b, uint64(len(s))), s...) }
