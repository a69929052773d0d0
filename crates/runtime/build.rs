//! Lists the files of the Python graph host, which become part of the program.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

const PACKAGE: &str = "host/python/towpath_host";

#[expect(clippy::disallowed_methods, reason = "how cargo talks to a build script")]
fn set_by_cargo(name: &str) -> PathBuf {
    PathBuf::from(env::var_os(name).expect("cargo sets it"))
}

fn main() -> io::Result<()> {
    let root = set_by_cargo("CARGO_MANIFEST_DIR").join("host/python");
    println!("cargo:rerun-if-changed={PACKAGE}");
    let mut files = Vec::new();
    collect(&root.join("towpath_host"), &mut files)?;
    files.sort();
    let mut list = String::from("&[\n");
    for file in &files {
        println!("cargo:rerun-if-changed={}", file.display());
        let name = file.strip_prefix(&root).expect("it was found below it");
        let name = name.to_str().expect("names of modules are ASCII").replace('\\', "/");
        writeln!(
            list,
            "    ({name:?}, include_bytes!({:?})),",
            file.display().to_string()
        )
        .expect("a text takes all");
    }
    list.push(']');
    let out = set_by_cargo("OUT_DIR");
    fs::write(out.join("package.rs"), list)
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            if path.file_name().is_none_or(|name| name != "__pycache__") {
                collect(&path, files)?;
            }
        } else if path
            .extension()
            .is_some_and(|extension| extension == "py" || extension == "typed")
        {
            files.push(path);
        }
    }
    Ok(())
}
