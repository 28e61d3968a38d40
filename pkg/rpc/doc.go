// Package rpc is the edge of a service: one gRPC server and its REST form, with the same checks in front of both.
//
// What it guarantees:
//
//   - A method that the Policy does not name is denied. Every other one but the health check needs a token, and
//     the caller is known before a single byte of its message is decoded: an unauthenticated caller learns
//     nothing about what is wrong with its request.
//   - REST is a client of the gRPC server, over a connection in memory. There is no second way to a handler.
//   - Requests are bounded in size and in time, and too much is refused as INVALID_ARGUMENT (HTTP 413), never as
//     RESOURCE_EXHAUSTED, which would invite a retry.
//   - JSON is strict: unknown and repeated fields, anything after the value, text that is not Unicode, query
//     parameters that no field answers to, and other content types are refused, not repaired.
//   - Callers see the texts of [Error] and of nothing else. What went wrong inside is logged once, with its
//     cause, and never holds a payload.
//   - A stop refuses new work, lets running calls end within the grace, and cuts what is left.
//
// Around each call, from the outside in: recovery from panics, the span (otelgrpc), the log line, authentication
// and policy, the deadline, decoding, the handler, and the mapping of its error. REST adds, in front of that:
// authentication (again, because JSON is decoded before the gRPC call), media type, size.
//
// Sockets are opened in Listen alone, which is where transport security will go; who a caller is, is the
// [Authenticator]'s business alone, which is where other credentials will go.
package rpc
