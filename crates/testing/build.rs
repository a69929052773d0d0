//! Gives the templates a name that changes with the migrations: a template of another schema is never copied.

use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};

const MIGRATIONS: &str = "../store/migrations";

fn main() {
    println!("cargo:rerun-if-changed={MIGRATIONS}");
    let mut files = Vec::new();
    collect(Path::new(MIGRATIONS), &mut files);
    files.sort();
    let mut hasher = DefaultHasher::new();
    for file in files {
        file.hash(&mut hasher);
        fs::read(&file).expect("a migration can be read").hash(&mut hasher);
    }
    println!("cargo:rustc-env=TOWPATH_TESTING_SCHEMA={:016x}", hasher.finish());
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the migrations are there") {
        let path = entry.expect("a folder can be listed").path();
        if path.is_dir() {
            collect(&path, files);
        } else {
            files.push(path);
        }
    }
}
