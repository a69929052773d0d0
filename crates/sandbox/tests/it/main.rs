//! Boxes of the driver `namespace`, with real processes. What this machine cannot do is skipped aloud.

#![cfg(target_os = "linux")]

mod commands;
mod files;
mod fixture;
mod images;
mod limits;
mod network;
mod registry;
mod security;
mod survival;
