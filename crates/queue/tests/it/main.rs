//! One binary for all integration tests of the queue.

mod conformance;
mod offline;
mod processes;
mod windows;
