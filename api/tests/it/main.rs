//! The platform surface, called in-process on SQLite.

mod auth;
mod documents;
mod exports;
mod operations;
mod serving;
mod sessions;
mod traces;
mod world;
