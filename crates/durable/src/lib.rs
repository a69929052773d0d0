//! The engine.
//!
//! Guarantees: a job exists exactly if the transaction that recorded it was committed. At most one holder of a job can
//! commit, however many believe they hold it. A finished step is never performed again. However a job ends, its
//! business rows are settled in the same transaction. What jobs do is in `workflows`, the processes that perform them
//! in `workers`, and the sweeps are driven by `scheduler`.
//!
//! Lock order, everywhere: lane rows sorted by key, then job rows sorted by id, then business rows. Only
//! [`locked_jobs`] takes them.

mod after_commit;
mod batch;
mod batched_write;
mod cancel;
mod ctx;
mod engine;
mod explain;
mod failure;
mod lane;
mod locked_jobs;
pub mod metric;
mod outcome;
mod perform;
mod retry;
mod settlement;
mod start;
mod sweep;
pub mod trace;
mod workflow;

pub use after_commit::send_hints;
pub use batch::Batch;
pub use batched_write::{BatchedWrite, of_type, write_batched};
pub use cancel::{CancelOutcome, cancel, cancel_all};
pub use ctx::{Child, Ctx};
pub use engine::{Completion, CompletionBatch, Engine, RecordRequest, Settings};
pub use explain::{Explanation, StateReason, explain};
pub use failure::{Cause, Failure, IntoFailure, Outcome, Success};
pub use lane::Lane;
pub use perform::{AttemptResult, PendingCompletion, Signal, attempt, perform};
pub use retry::{has_pool, is_known_kind, retry};
pub use settlement::Settlement;
pub use start::{Start, count_started, ready, record_started_metrics, start, start_all, start_all_apart, start_raw};
pub use sweep::{
    end_old_leases, end_overdue, give_up, lost_workers, ready_due, release_earlier_boots, rescue, respawn, take_back,
};
pub use towpath_store::jobs::{ClaimedJob, JobFence, NewJob};
pub use towpath_store::leases::{ExpiredLeases, LostWorkerScope, LostWorkers};
pub use workflow::{EndHandlers, Registry, RetryDecision, Workflow};
