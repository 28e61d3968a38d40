package main

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

// stream makes of the errors of a stream ones that can be shown. A stream has no deadline: what it tells may take its
// time, and whoever waits may interrupt it.
func (c *cli) stream(address string) grpc.StreamClientInterceptor {
	return func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		s, err := streamer(ctx, desc, cc, method, opts...)
		if err != nil {
			return nil, &callError{status: status.Convert(err), address: address, timeout: c.flags.timeout}
		}
		return &clientStream{ClientStream: s, failed: func(err error) error {
			return &callError{status: status.Convert(err), address: address, timeout: c.flags.timeout}
		}}, nil
	}
}

type clientStream struct {
	grpc.ClientStream
	failed func(error) error
}

func (s *clientStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	return s.failed(err)
}

// each hands over the messages of a stream, to its end.
func each[M any](s grpc.ServerStreamingClient[M], do func(*M) error) error {
	for {
		m, err := s.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if err := do(m); err != nil {
			return err
		}
	}
}
