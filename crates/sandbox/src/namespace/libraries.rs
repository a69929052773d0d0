//! The shared libraries of our own program. An image may have others, or none: so the agent in it is started by the
//! loader of the host, with the libraries of the host.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde::{Deserialize, Serialize};
use tokio::process::Command;

use crate::program;

/// Makes the loader of glibc list the libraries of a program instead of starting it.
const LIST_VARIABLE: &str = "LD_TRACE_LOADED_OBJECTS";

/// A library, or the loader, which is one too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Library {
    /// The name by which programs ask for it.
    pub(crate) name: String,
    /// Where it is on the host.
    pub(crate) path: PathBuf,
}

impl Library {
    pub(crate) fn is_loader(&self) -> bool {
        self.name.starts_with("ld")
    }
}

/// The libraries of a program that implements [`program::run`]. None if it needs none.
pub(super) async fn find(program: &Path) -> io::Result<Vec<Library>> {
    let listed = Command::new(program)
        // A program without a loader is started, and this command does nothing.
        .arg(program::LIBRARIES)
        .env_clear()
        .env(LIST_VARIABLE, "1")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .await?;
    if !listed.status.success() {
        return Err(io::Error::other("the libraries of the program cannot be listed"));
    }
    Ok(parse(&String::from_utf8_lossy(&listed.stdout)))
}

/// Lines such as `libc.so.6 => /lib/libc.so.6 (0x…)`, and `/lib64/ld-linux-x86-64.so.2 (0x…)` for the loader. The kernel's
/// own has no path.
fn parse(text: &str) -> Vec<Library> {
    let lines = text.lines().filter_map(|line| {
        let (found, _) = line.trim().rsplit_once(" (")?;
        let (name, path) = found.split_once(" => ").unwrap_or((found, found));
        let name = Path::new(name).file_name()?.to_str()?;
        path.starts_with('/').then(|| Library {
            name: name.to_owned(),
            path: path.into(),
        })
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_read_and_the_loader_is_known() {
        let text = "\tlinux-vdso.so.1 (0x00007ffd)\n\
                    \tlibgcc_s.so.1 => /lib/x86_64-linux-gnu/libgcc_s.so.1 (0x00007f01)\n\
                    \tlibdl.so.2 => /lib/x86_64-linux-gnu/libdl-2.31.so (0x00007f02)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f03)\n";
        let found = parse(text);
        let named: Vec<(&str, &str)> = found
            .iter()
            .map(|library| (&*library.name, library.path.to_str().unwrap()))
            .collect();
        assert_eq!(
            named,
            [
                ("libgcc_s.so.1", "/lib/x86_64-linux-gnu/libgcc_s.so.1"),
                ("libdl.so.2", "/lib/x86_64-linux-gnu/libdl-2.31.so"),
                ("ld-linux-x86-64.so.2", "/lib64/ld-linux-x86-64.so.2"),
            ]
        );
        let loaders: Vec<bool> = found.iter().map(Library::is_loader).collect();
        assert_eq!(loaders, [false, false, true]);
        assert!(parse("statically linked\n").is_empty());
    }
}
