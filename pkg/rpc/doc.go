// Package rpc is the edge of a service: one gRPC server and its REST form, with the same checks in front of both.
//
// What it guarantees:
//
//   - A method that the Policy does not name is denied. Every other one but the health check needs a token, and
//     the caller is known before a single byte of its message is received: an unauthenticated caller learns
//     nothing about what is wrong with its request, and has nothing held for it.
//   - REST is a client of the gRPC server, over a connection in memory. There is no second way to a handler.
//   - Requests are bounded in size and in time, and too much is refused as INVALID_ARGUMENT (HTTP 413), not as
//     RESOURCE_EXHAUSTED (HTTP 429), which with RetryInfo says that the same request will do later. What is more than
//     eight times too large is not received over gRPC, which then says RESOURCE_EXHAUSTED itself, without any details.
//   - Who sends or reads slowly, or not at all, is cut off. A stream over REST lasts for as long as its messages do.
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
// Sockets are opened in Listen alone, under the [Transport]'s protection; who a caller is, is the business of the
// [Authenticator] alone, or of the [CertificateAuthenticator].
package rpc
