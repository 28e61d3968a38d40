package rpc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// marshaler writes fields by their proto names and zero values as such, so that a score of 0 is printed and only
// what is absent is missing; and it reads exactly one value with known fields.
type marshaler struct {
	runtime.JSONPb
}

func newMarshaler() *marshaler {
	return &marshaler{runtime.JSONPb{
		MarshalOptions: protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true},
	}}
}

func (m *marshaler) Unmarshal(data []byte, v any) error {
	return m.NewDecoder(bytes.NewReader(data)).Decode(v)
}

// NewDecoder reads the whole body, which the REST handler has bounded. An empty one is an error too: the
// generated code takes io.EOF for an empty message.
func (m *marshaler) NewDecoder(r io.Reader) runtime.Decoder {
	return runtime.DecoderFunc(func(v any) error {
		data, err := io.ReadAll(r)
		if err != nil {
			return fmt.Errorf("read the body: %w", err)
		}
		if len(bytes.TrimSpace(data)) == 0 {
			return errors.New("the body is empty")
		}
		if message, ok := v.(proto.Message); ok {
			return withoutValues(protojson.UnmarshalOptions{}.Unmarshal(data, message))
		}
		// One field of the request is the body: the gateway's decoder allocates it.
		decoder := runtime.DecoderWrapper{Decoder: json.NewDecoder(bytes.NewReader(data))}
		if err := decoder.Decode(v); err != nil {
			return withoutValues(err)
		}
		if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
			return errors.New("the body goes on after its JSON value")
		}
		return nil
	})
}

var (
	jsonPosition = regexp.MustCompile(`\(line \d+:\d+\)`)
	jsonFault    = regexp.MustCompile(`unknown field "[^"]{1,64}"|duplicate field "[^"]{1,64}"|` +
		`invalid value for \w+ (field|type) \w+|invalid UTF-8|invalid escape code|unexpected EOF|unexpected token|` +
		`exceeded max recursion depth`)
	// jsonForms are what is expected in place of a value whose error does not say it.
	jsonForms = map[string]string{
		"invalid google.protobuf.Timestamp value": "a time must be in RFC 3339 with an offset, such as 2026-11-01T00:00:00+01:00",
		"invalid google.protobuf.Duration value":  "a duration must be in seconds, such as 1800s",
	}
)

// withoutValues keeps of a JSON error where and what, and drops the piece of the body that it quotes: errors are
// logged, and a body holds what a customer wrote.
func withoutValues(err error) error {
	if err == nil {
		return nil
	}
	what := jsonFault.FindString(err.Error())
	for fault, form := range jsonForms {
		if strings.Contains(err.Error(), fault) {
			what = form
		}
	}
	if what == "" {
		what = "malformed"
	}
	if where := jsonPosition.FindString(err.Error()); where != "" {
		what += " " + where
	}
	return fmt.Errorf("the body is not the JSON of this request: %s", what)
}
