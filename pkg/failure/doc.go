// Package failure sorts everything that can go wrong with a model call into five classes, each of which says what
// follows for the item and for its route:
//
//	class      the item                                    the route
//	transient  pending again, the attempt counts           counts towards the breaker
//	throttled  pending again, the attempt is refunded      closed until Retry-After
//	unknown    may be paid for: bounded by its own count   counts towards the breaker
//	operator   pending again, the attempt is refunded      halted with the reason until someone mends it
//	permanent  dead letter                                 unaffected
//
// A failure is classified once, by [Classify], where the exchange with the provider ended, from everything that is
// known of it: how far the request came, the status, and the structured body. What is not recognised is transient,
// and so bounded by the attempts of its item; one exception is a request that may have been served, which is never
// called anything but unknown. An item is never at fault for what an operator has to mend, nor a route for what is
// wrong with one item.
//
// # Text from outside
//
// The body of an error is written by someone else, and may quote the ticket. Machine words (code, type) are trusted
// before prose, and prose only where its status makes it plausible. The readable part is kept in Failure.Detail,
// cleaned by [Excerpt], fit for a column of the database. [Failure.Error] leaves it out, so that an error can be
// logged and wrapped freely.
package failure
