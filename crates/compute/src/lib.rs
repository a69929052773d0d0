//! Fetches, builds and runs what users deploy.
//!
//! Promises: no other program is told anything by a user but values of a strict grammar, behind `--`, in an environment
//! made for it; a program that is not wanted any more is ended with everything it started, also when the process that
//! started it was killed; what is fetched and built is under a name that says what it is, is whole once it has its
//! record, and is never built twice. Leaves to others: statuses, SQL, when to build, and who may.
//!
//! ```text
//! <root>/                         only one process at a time uses it: `lock`
//!   host.id                       what it is told from other roots by
//!   artifacts/<key>/source/       the tree, as it was fetched
//!   artifacts/<key>/fetched.json  written when the tree is whole
//!   artifacts/<key>/built.json    written when it can be started
//!   artifacts/<key>/environments/ which environments its code runs in
//!   agents/<deployment>/          data folder of a deployment's agent server
//!   hosts/<deployment>/           environments for its code, where it has a user id of its own
//!   cells/                        /tmp and changed sources of what runs apart; emptied at the start
//!   scratch/                      what is checked, fetched or unpacked now, HOME of builds; emptied at the start
//! ```

mod agent;
pub mod artifact;
pub mod backend;
pub mod build;
pub mod docker;
mod environments;
pub mod error;
pub mod fake;
pub mod git;
mod health;
mod instances;
pub mod isolation;
mod launch;
pub mod launcher;
mod lifecycle;
mod limits;
pub mod log;
pub mod metric;
pub mod orphans;
pub mod process;
pub mod program;
pub mod root;
pub mod tarball;
pub mod tree;

pub use backend::{Backend, Standby};
pub use error::{Error, Result};
pub use isolation::Isolation;
pub use launch::{Launch, RunningAgent};
pub use log::{Line, Log};
pub use root::Root;
