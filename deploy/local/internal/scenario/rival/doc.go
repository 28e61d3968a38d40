// Package rival holds the two designs that EvalOnce is compared with. Both are what a competent team writes in a week,
// and no straw men: HTTP in front, durable commits in Postgres, deadlines, retries with backoff, validated answers.
//
// [InRequest] asks the model inside the request that brings the ticket. What it stores it answers with 201; when the
// model does not answer it stores nothing, says 502, and leaves the rest to its client.
//
// [QueueAPI] stores a ticket and a job in one statement; [QueueWorker] takes jobs with SKIP LOCKED, hides them for a
// while, asks, and deletes them or puts them back with backoff, until their attempts are spent and they are dead. It has as
// many attempts as EvalOnce allows by default, with longer pauses between them: half an hour in all. A job of a worker that
// was killed comes back when its time is over, and is asked again.
//
// Neither knows what was asked before: not by another ticket of the same text, and not by a process that died over
// the answer. Either guards against a client that sends a ticket twice by a unique external id.
package rival
