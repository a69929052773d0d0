//! Graphs run against a host in memory.

mod arrange;
mod calls;
mod config;
mod crash;
mod docs;
mod hosted;
mod human;
mod messages;
mod shapes;
mod state;
mod streams;
mod workflow;
