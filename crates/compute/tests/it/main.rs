//! Real repositories, archives and programs, in folders of their own.

mod archives;
mod building;
mod docker;
mod fuzzed;
mod place;
mod programs;
mod repositories;
