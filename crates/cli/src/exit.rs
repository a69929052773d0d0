//! Exit codes: 0 done, 1 failed, 2 wrong usage, 3 a server was not reachable, 141 the reader of the output is gone.
//! `towpath sandbox exec` ends as its command does.

use std::process::ExitCode;

use crate::config::Problems;

/// Wrong usage that the parser of the command line cannot detect. Exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// A database or server did not answer. Exit code 3.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unreachable(pub String);

/// A command in a sandbox ended with another code than 0. This process exits in the same way and prints nothing of its
/// own.
#[derive(Debug, thiserror::Error)]
#[error("the command ended with exit code {0}")]
pub struct CommandExit(pub u8);

/// The exit code of a program that SIGPIPE ended: 128 and the number of the signal.
pub const PIPE_CLOSED: u8 = 141;

/// Exits quietly when the reader of the output is gone, as in `towpath jobs ls | head`. The print macros panic in that
/// case.
pub fn exit_when_pipe_closed() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let told = panic.payload().downcast_ref::<String>();
        if told.is_some_and(|told| told.starts_with("failed printing to stdout: Broken pipe")) {
            std::process::exit(PIPE_CLOSED.into());
        }
        usual(panic);
    }));
}

/// Prints the error with its causes and returns its exit code.
pub fn report(error: &anyhow::Error) -> ExitCode {
    if let Some(CommandExit(code)) = error.downcast_ref() {
        return ExitCode::from(*code);
    }
    let mut lines = error.to_string();
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        // Transparent errors repeat the text of their source.
        if !lines.contains(&cause) {
            lines.push_str(": ");
            lines.push_str(&cause);
        }
    }
    for line in lines.lines() {
        eprintln!("error: {line}");
    }
    ExitCode::from(code(error))
}

fn code(error: &anyhow::Error) -> u8 {
    let of = |cause: &(dyn std::error::Error + 'static)| {
        if cause.is::<Usage>() || cause.is::<Problems>() {
            Some(2)
        } else if cause.is::<Unreachable>() || is_unavailable(cause) {
            Some(3)
        } else {
            None
        }
    };
    error.chain().find_map(of).unwrap_or(1)
}

fn is_unavailable(cause: &(dyn std::error::Error + 'static)) -> bool {
    matches!(cause.downcast_ref(), Some(towpath_store::Error::Unavailable(_)))
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    #[test]
    fn causes_decide_the_code() {
        assert_eq!(code(&anyhow::anyhow!("anything")), 1);
        assert_eq!(code(&Problems(vec!["x".into()]).into()), 2);
        assert_eq!(code(&anyhow::Error::from(Usage("x".into())).context("around it")), 2);
        let refused: Result<(), _> = Err(Unreachable("x".into()));
        assert_eq!(code(&refused.context("around it").unwrap_err()), 3);
    }
}
