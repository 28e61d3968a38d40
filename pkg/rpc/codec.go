package rpc

import (
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// codec decodes messages in such a way that a failure is ours to name. When a codec fails, or a message exceeds
// grpc's own limit, grpc has answered before the handler hears of it: INTERNAL for what cannot be decoded, invalid
// UTF-8 among it, and RESOURCE_EXHAUSTED for the size. Both are the caller's fault and neither may be retried.
type codec struct {
	encoding.CodecV2
	maxBytes int
}

// sizeSlack is how far beyond its limit a message is still received, to be refused by name. What is larger still
// is not received at all; grpc refuses it in its own way.
const sizeSlack = 8

func newCodec(maxBytes int) codec {
	return codec{CodecV2: encoding.GetCodecV2(proto.Name), maxBytes: maxBytes}
}

// delivery takes a message through grpc together with what is wrong with it.
type delivery struct {
	message any
	fault   error
}

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	d, ok := v.(*delivery)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	if data.Len() > c.maxBytes {
		d.fault = &Error{
			Code: codes.InvalidArgument, Reason: ReasonRequestTooLarge,
			Message: fmt.Sprintf("the request is larger than %d bytes", c.maxBytes),
		}
		return nil
	}
	if err := c.CodecV2.Unmarshal(data, d.message); err != nil {
		message := "the request cannot be decoded"
		if strings.Contains(err.Error(), "invalid UTF-8") {
			message += ": a text is not valid UTF-8"
		}
		d.fault = &Error{Code: codes.InvalidArgument, Reason: ReasonMalformedRequest, Message: message, Cause: err}
	}
	return nil
}

// receive decodes one message by way of the codec.
func receive(decode func(any) error, message any) error {
	d := &delivery{message: message}
	if err := decode(d); err != nil {
		return err
	}
	return d.fault
}
