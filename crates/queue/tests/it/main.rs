//! One binary for all integration tests of the queue.

mod conformance;
mod dispatch;
mod offline;
mod processes;
mod windows;
