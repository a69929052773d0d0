//! The box commands as a separate program, without the platform.

use std::process::ExitCode;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    towpath_sandbox::program::run(std::env::args_os().skip(1)).unwrap_or_else(|| {
        eprintln!("error: only the platform starts this program");
        ExitCode::FAILURE
    })
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    eprintln!("error: sandboxes need Linux");
    ExitCode::FAILURE
}
