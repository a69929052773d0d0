//! The harness of the end-to-end tests: it starts the real `towpath` binary, alone on SQLite ([`World::embedded`]) or
//! as a cluster of processes on PostgreSQL and Redis ([`World::cluster`]), speaks to it over HTTP as any client
//! would, and kills, stops and restarts it.
//!
//! It promises that every process it starts is gone when the world is dropped, that every server listens on loopback
//! only, and that nothing waits without a bound. It knows no crate of the product: what it sees is what users see.

mod api;
mod binary;
mod columns;
mod environment;
pub mod fault_proxy;
mod generator;
mod moto;
mod postgres_server;
mod process;
mod random;
mod redis_server;
mod wait;
mod world;

pub use api::{Answer, Api, Reply, http};
pub use binary::towpath;
pub use columns::{COLUMNS, Columns, differences, parquet_files, read_rows, visit_rows};
pub use environment::environment;
pub use generator::{Body, GeneratedProject, compact, generate, generate_for, generate_from, rfc3339};
pub use moto::Moto;
pub use postgres_server::PostgresServer;
pub use process::{Exit, Process, Program, run_to_end};
pub use random::Random;
pub use redis_server::RedisServer;
pub use towpath_testing::Database;
pub use wait::{free_address, until};
pub use world::{Layout, Plan, World};
