// Package scenario plays the same month against three designs, one after another, and counts what each of them lost, paid
// and took: the model called inside the request, a plain queue with retries (both in package rival), and EvalOnce, whose
// binaries run as they do anywhere else. Package schedule says what happens in the month.
//
// Each design gets a Postgres with durable commits (or a new database on one that is given), a provider simulator with the
// same seed, latencies, prices and outages, the same tickets over the same client at the same moments, and SIGKILL at the
// same moments for the process that calls the model. During an outage, two of five calls are cut without a
// response, and the others get a 503; neither is billed. A killed process is started again at once.
//
// # What is scaled
//
// Around outages, virtual time runs at a pace (by default 300: five minutes in a second), and so do, everywhere: the
// provider's latency, the pauses of the rivals' calls and jobs between tries, and the pauses of a client between its tries.
// Elsewhere tickets follow one another at an even rate, or as fast as the design takes them: the player waits while 64
// creates are on their way, or 1,000 tickets for their evaluation. What factor results is in the report as the quiet one.
//
// # What is not scaled
//
//   - What the machine takes: HTTP, commits, the start of a killed process.
//   - Deadlines and leases. Nothing hangs in this scenario, and a scaled deadline would fire whenever the machine is slow.
//     In each design a call may take 4 s; a taken job is hidden for 6 s, and a lease lasts as long. After a kill, what was in
//     flight therefore waits for some seconds, with the queue as with EvalOnce.
//   - EvalOnce's own delays: the pauses of its breaker (2 s and more, doubling up to a minute) and of items that are tried again.
//     They are what its releases have. In this scenario, an outage of forty minutes takes eight seconds of them, and what
//     EvalOnce takes to drain after it is mostly the rest of one such pause: its real seconds are what counts, and they would be
//     at most that minute and the backlog after a real outage. Multiplied by the pace they make it look slower than it is.
//
// Settings of EvalOnce that differ from its defaults: EVALONCE_LEASE (6 s), EVALONCE_CONCURRENCY (32, as the queue's),
// EVALONCE_RECONCILE_WINDOW (1 min), the route's call timeout (4 s), and the version's max_unknown_calls, which is 5: the cut
// calls have an unknown outcome, and are not billed here.
//
// # How to read it
//
// The latency of a create is in real milliseconds, from the client's first try to the end of its last one, successful or
// not. It is taken in the ordinary time before the long outage, at the pace, and in that outage; while tickets come as fast
// as the machine takes them, it would say more of the machine than of the design (the JSON has it all the same). With the call
// inside the request it has the model's time within, scaled: a model that takes 0.8 to 4 s takes 3 to 13 ms here. The overhead
// around it is real. Unscaled, that design's create takes the model's seconds; the others' does not change.
//
// A ticket is without evaluation when the client gave up or when its job is dead, even if somebody could revive it. Calls
// in flight at kills are, for EvalOnce, the calls that its ledger has as unknown because their lease expired; for
// the rivals, the calls whose client left, as the simulator saw it.
//
// # What it does not show
//
// Nothing of the quality of answers: they come from an offline lexical classifier. No calls that hang, no limits of rate or
// spend, no wrong keys, no webhooks, no reprocessing, no more than one worker. Not how the designs scale. A queue with more attempts loses fewer tickets in an outage of this length, and a client with
// more patience saves some of the first design's; each would lose them in a longer one. The share of duplicates is given: without
// duplicates, the designs pay the same but for kills. The load of the player and the simulator is on the same machine.
package scenario
