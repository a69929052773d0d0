//! The commands that boxes are made of, without the platform around them.

use std::process::ExitCode;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    towpath_sandbox::program::run(std::env::args_os().skip(1)).unwrap_or_else(|| {
        eprintln!("error: the platform starts this program");
        ExitCode::FAILURE
    })
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    eprintln!("error: boxes need Linux");
    ExitCode::FAILURE
}
