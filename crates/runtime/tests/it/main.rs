//! Graphs run against a host in memory.

mod arrange;

mod config;
mod crash;

mod human;
mod messages;
mod shapes;
mod state;
mod streams;
mod workflow;
