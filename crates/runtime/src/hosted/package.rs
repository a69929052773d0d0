//! The Python package of graph hosts: embedded in this program and written below the data folder.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3;

/// Its files, by their paths below the folder on Python's path.
const FILES: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/package.rs"));

/// Writes the package below `root` unless it is there, in a folder named by its content. Returns the folder for
/// Python's path.
pub fn write(root: &Path) -> io::Result<PathBuf> {
    let mut hash = Xxh3::new();
    for (name, content) in FILES {
        hash.update(name.as_bytes());
        hash.update(&[0]);
        hash.update(content);
        hash.update(&[0]);
    }
    let folder = root.join(format!("host-{:016x}", hash.digest()));
    if folder.is_dir() {
        return Ok(folder);
    }
    // Written to a temporary folder and moved into place: two servers may start at once, and one may be interrupted.
    fs::create_dir_all(root)?;
    let aside = root.join(format!(".host-{}", std::process::id()));
    let _ = fs::remove_dir_all(&aside);
    for (name, content) in FILES {
        let file = aside.join(name);
        if let Some(parent) = file.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(file, content)?;
    }
    match fs::rename(&aside, &folder) {
        Ok(()) => Ok(folder),
        Err(_) if folder.is_dir() => {
            let _ = fs::remove_dir_all(&aside);
            Ok(folder)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_package_is_written_once() {
        let root = tempfile::tempdir().unwrap();
        let folder = write(root.path()).unwrap();
        let main = folder.join("towpath_host/__main__.py");
        assert!(main.is_file());
        fs::write(&main, "changed").unwrap();
        assert_eq!(write(root.path()).unwrap(), folder);
        assert_eq!(fs::read_to_string(main).unwrap(), "changed");
    }
}
