package crashpoint

// Point is a place in the code where a process may be killed.
type Point string

// Create: one transaction of ticket-api.
const (
	// CreateBegun is before the first write: no idempotency key is taken.
	CreateBegun Point = "create.begun"
	// CreateReserved is when the idempotency keys are taken, and nothing else is there.
	CreateReserved Point = "create.reserved"
	// CreateInserted is when the tickets are there, and not their work.
	CreateInserted Point = "create.inserted"
	// CreateEnqueued is when all is written: what is left is COMMIT.
	CreateEnqueued Point = "create.enqueued"
	// CreateCommitted is when the tickets are stored and no client has been told.
	CreateCommitted Point = "create.committed"
)

// Claim: one transaction of the worker, and what it does with what it got.
const (
	// ClaimLeased is when rows are leased and their calls opened. On a route without limits, what is left is COMMIT.
	ClaimLeased Point = "claim.leased"
	// ClaimCharged is when that is taken off the route's limits and budgets, too: what is left is COMMIT.
	ClaimCharged Point = "claim.charged"
	// ClaimCommitted is when leases are held and the worker has not looked at them yet.
	ClaimCommitted Point = "claim.committed"
	// ClaimBegun is when the worker extends the leases and no call has begun.
	ClaimBegun Point = "claim.begun"
	// ProbeBegun is when the worker has taken the fleet's one probe of a route, and nothing to probe with.
	ProbeBegun Point = "probe.begun"
	// KnownAnswered is when what was claimed turns out to have a result: there is nothing to do but finish.
	KnownAnswered Point = "known.answered"
	// KnownSaved is when what was claimed turns out to have a saved response, which is not judged yet.
	KnownSaved Point = "known.saved"
	// KnownJudged is when a saved response is judged, and nothing of the verdict is written.
	KnownJudged Point = "known.judged"
)

// Call: no transaction.
const (
	// CallSending is when everything is ready, and the request has not left.
	CallSending Point = "call.sending"
	// CallReturned is when the response is here, or the failure, and nothing of it is written.
	CallReturned Point = "call.returned"
)

// Settle: one transaction of the worker.
const (
	// SettleTripped is when the breaker is open, and the attempts that led there are given back, by a transaction of
	// its own: what is left is its COMMIT.
	SettleTripped Point = "settle.tripped"
	// SettleReported is when the routes know how the calls went, and nothing is written of the work.
	SettleReported Point = "settle.reported"
	// SettleBegun is when the transaction is open and nothing is written.
	SettleBegun Point = "settle.begun"
	// SettleFinished is when the work is deleted, and there is no result yet.
	SettleFinished Point = "settle.finished"
	// SettlePutBack is when work is pending again, and its call still open.
	SettlePutBack Point = "settle.put_back"
	// SettleBuried is when work is a dead letter, and its call still open.
	SettleBuried Point = "settle.buried"
	// SettleReleased is when work that never started is given back.
	SettleReleased Point = "settle.released"
	// SettleClosed is when the calls are closed with their responses, and the results are not written.
	SettleClosed Point = "settle.closed"
	// SettleSaved is when the results are written, and the budgets still charged with the worst.
	SettleSaved Point = "settle.saved"
	// SettleTold is when the webhooks that follow from all this are written, and the budgets still charged with the worst.
	SettleTold Point = "settle.told"
	// SettleCharged is when they are charged with what the calls have cost: what is left is COMMIT.
	SettleCharged Point = "settle.charged"
	// SettleCommitted is when all is stored, and the worker still counts the leases as its own.
	SettleCommitted Point = "settle.committed"
	// KeepBegun is when a result was refused, and its response is about to be saved by itself.
	KeepBegun Point = "keep.begun"
	// KeepCommitted is when the response is saved, and the work pending.
	KeepCommitted Point = "keep.committed"
)

// Upkeep: single statements of the worker.
const (
	// HeartbeatBegun is before leases are extended.
	HeartbeatBegun Point = "heartbeat.begun"
	// HeartbeatExtended is when they are.
	HeartbeatExtended Point = "heartbeat.extended"
	// ReclaimBegun is before the worker looks for expired leases.
	ReclaimBegun Point = "reclaim.begun"
	// ReclaimCommitted is when it has taken some back.
	ReclaimCommitted Point = "reclaim.committed"
)

// Deliver: webhooks, of the worker.
const (
	// DeliverClaimed is when deliveries are leased: what is left is COMMIT.
	DeliverClaimed Point = "deliver.claimed"
	// DeliverClaimCommitted is when that is stored, and no request has left.
	DeliverClaimCommitted Point = "deliver.claim_committed"
	// DeliverReturned is when the receiver has answered, and nothing of it is written.
	DeliverReturned Point = "deliver.returned"
	// DeliverSettled is when that is written: what is left is COMMIT.
	DeliverSettled Point = "deliver.settled"
	// DeliverSettleCommitted is when it is stored, and the worker still counts the leases as its own.
	DeliverSettleCommitted Point = "deliver.settle_committed"
	// DeliverExtended is when the leases of deliveries are extended.
	DeliverExtended Point = "deliver.extended"
	// DeliverReclaimed is when deliveries of a dead worker are taken back.
	DeliverReclaimed Point = "deliver.reclaimed"
	// DeliverSuperseded is when the tickets of a chunk are told of that a promotion has changed: what is left is COMMIT.
	DeliverSuperseded Point = "deliver.superseded"
	// DeliverSupersedeCommitted is when that is stored.
	DeliverSupersedeCommitted Point = "deliver.supersede_committed"
)

// Stop: the worker has been told to.
const (
	// StopGivingBack is when it holds what it claimed at that moment and will not start.
	StopGivingBack Point = "stop.giving_back"
	// StopDrained is when all calls have ended, and not all that they brought is written.
	StopDrained Point = "stop.drained"
)

// Sweep: the transactions of the sweeper. Its partitions are made by ledger.EnsurePartitions.
const (
	// SweepReclaimed is when expired leases are taken back: what is left is COMMIT.
	SweepReclaimed Point = "sweep.reclaimed"
	// SweepReclaimCommitted is when that is stored.
	SweepReclaimCommitted Point = "sweep.reclaim_committed"
	// SweepPruned is when expired requests are deleted: what is left is COMMIT.
	SweepPruned Point = "sweep.pruned"
	// SweepPruneCommitted is when that is stored.
	SweepPruneCommitted Point = "sweep.prune_committed"
	// SweepPartitioned is when the ledger has its next partitions: what is left is COMMIT.
	SweepPartitioned Point = "sweep.partitioned"
	// SweepPartitionCommitted is when that is stored.
	SweepPartitionCommitted Point = "sweep.partition_committed"
	// SweepReconciled is when tickets without work have some: what is left is COMMIT.
	SweepReconciled Point = "sweep.reconciled"
	// SweepReconcileCommitted is when that is stored.
	SweepReconcileCommitted Point = "sweep.reconcile_committed"
)

// All returns every point there is.
func All() []Point {
	return []Point{
		CreateBegun, CreateReserved, CreateInserted, CreateEnqueued, CreateCommitted,
		ClaimLeased, ClaimCharged, ClaimCommitted, ClaimBegun, ProbeBegun, KnownAnswered, KnownSaved, KnownJudged,
		CallSending, CallReturned,
		SettleTripped, SettleReported, SettleBegun, SettleFinished, SettlePutBack, SettleBuried, SettleReleased,
		SettleClosed, SettleSaved, SettleTold, SettleCharged, SettleCommitted, KeepBegun, KeepCommitted,
		HeartbeatBegun, HeartbeatExtended, ReclaimBegun, ReclaimCommitted,
		DeliverClaimed, DeliverClaimCommitted, DeliverReturned, DeliverSettled, DeliverSettleCommitted, DeliverExtended, DeliverReclaimed,
		DeliverSuperseded, DeliverSupersedeCommitted,
		StopGivingBack, StopDrained,
		SweepReclaimed, SweepReclaimCommitted, SweepPruned, SweepPruneCommitted,
		SweepPartitioned, SweepPartitionCommitted, SweepReconciled, SweepReconcileCommitted,
	}
}
