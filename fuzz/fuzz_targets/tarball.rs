#![no_main]

#[path = "../../crates/compute/tests/it/fuzzed/bodies.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|data: &[u8]| bodies::tarball(data));
