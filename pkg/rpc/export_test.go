package rpc

import "time"

// Hurry shortens the time that a caller may take over what it sends.
func (o *Options) Hurry(header, request time.Duration) {
	o.patience = patience{header: header, request: request}
}
