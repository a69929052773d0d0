//! The engine.
//!
//! Promises: a job recorded in a transaction is there exactly when that transaction is; at most one holder of a job
//! can commit anything, however many believe they hold it; a finished step is never performed again; however a job
//! ends, its business rows are settled in the same transaction. Leaves to others: what the jobs do (`workflows`),
//! the processes that perform them (`workers`), and the clock that drives the sweeps (`scheduler`).
//!
//! Lock order, everywhere: lane rows sorted by key, then job rows sorted by id, then business rows. [`hold`] is the
//! one place that takes them.

mod along;
mod batch;
mod cancel;
mod ctx;
mod engine;
mod explain;
mod failure;
mod hold;
mod lane;
pub mod metric;
mod outcome;
mod perform;
mod retry;
mod start;
mod sweep;
pub mod trace;
mod workflow;

pub use along::{Along, each, write as write_along};
pub use batch::Batch;
pub use cancel::{Cancelled, cancel, cancel_all};
pub use ctx::{Child, Ctx};
pub use engine::{Ending, Endings, Engine, Joining, Settings};
pub use explain::{Explanation, Why, explain};
pub use failure::{Cause, Done, Failure, Outcome, Verdict};
pub use lane::Lane;
pub use perform::{Bare, Performed, Signal, attempt, perform};
pub use retry::{has_pool, knows, retry};
pub use start::{Start, counted, ready, recorded, start, start_all, start_all_apart, start_raw};
pub use sweep::{
    end_old_leases, end_overdue, give_up, lost_workers, ready_due, ready_earlier_boots, rescue, respawn, take_back,
};
pub use towpath_store::jobs::{Claimed, Fenced, NewJob};
pub use towpath_store::leases::{Expired, Look, Reach};
pub use workflow::{Again, Ends, Registry, Workflow};
