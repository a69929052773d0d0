//! Where the binary under test is.

use std::path::PathBuf;

use crate::environment;

/// The `towpath` to test: `TOWPATH_BIN` where set, else the one that is beside the running test binary, in
/// `<target>/debug` (test binaries live in `<target>/debug/deps`).
///
/// # Panics
/// If there is none: `cargo build -p towpath` makes it.
#[must_use]
pub fn towpath() -> PathBuf {
    let path = environment("TOWPATH_BIN").map_or_else(
        || {
            let test = std::env::current_exe().expect("a running program has a path");
            let profile = test
                .parent()
                .and_then(|deps| deps.parent())
                .expect("test binaries live in <profile>/deps");
            profile.join(format!("towpath{}", std::env::consts::EXE_SUFFIX))
        },
        PathBuf::from,
    );
    assert!(
        path.is_file(),
        "{} is not there: run `cargo build -p towpath` first",
        path.display()
    );
    path
}
