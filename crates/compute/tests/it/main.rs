//! Real repositories, archives and programs, in folders of their own.

mod archives;
mod building;
mod containers;
mod docker;
mod engine;
mod environments;
mod fixture;
mod fuzzed;
mod programs;
mod repositories;
mod volumes;
