#![no_main]

#[path = "../../crates/traces/tests/it/fuzzed/bodies.rs"]
#[allow(dead_code, reason = "each target has one of them")]
mod bodies;

libfuzzer_sys::fuzz_target!(|data: &[u8]| bodies::multipart(data));
