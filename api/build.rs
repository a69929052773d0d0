//! Lists the pages of the guide, and the images that they show, which become part of the program.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// Pages outside of `docs`.
const AT_THE_ROOT: [&str; 5] = [
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "SECURITY.md",
];

const IMAGES: [&str; 4] = ["jpg", "png", "svg", "webp"];

#[expect(clippy::disallowed_methods, reason = "how cargo talks to a build script")]
fn set_by_cargo(name: &str) -> PathBuf {
    PathBuf::from(env::var_os(name).expect("cargo sets it"))
}

fn main() -> io::Result<()> {
    let manifest = set_by_cargo("CARGO_MANIFEST_DIR");
    let root = manifest.parent().expect("the crate lies in the workspace");
    println!("cargo:rerun-if-changed={}", root.join("docs").display());
    let mut pages = Vec::new();
    for name in AT_THE_ROOT {
        println!("cargo:rerun-if-changed={}", root.join(name).display());
        pages.push(root.join(name));
    }
    collect(&root.join("docs"), &["md"], &mut pages)?;
    let mut images = Vec::new();
    collect(&root.join("docs/images"), &IMAGES, &mut images)?;
    let mut text = String::new();
    for page in &pages {
        text.push_str(&fs::read_to_string(page)?);
    }
    // Others are for people who look at the folder: they would be megabytes of the program.
    images.retain(|image| {
        let name = image.file_name().and_then(OsStr::to_str);
        name.is_some_and(|name| text.contains(&format!("images/{name}")))
    });
    let out = set_by_cargo("OUT_DIR");
    fs::write(out.join("pages.rs"), list(root, pages, "include_str!"))?;
    fs::write(out.join("images.rs"), list(root, images, "include_bytes!"))
}

/// An expression: each file's name, from the root, and its content.
fn list(root: &Path, mut files: Vec<PathBuf>, include: &str) -> String {
    files.sort();
    let mut list = String::from("&[\n");
    for file in &files {
        let name = file.strip_prefix(root).expect("it was found below it");
        let name = name.to_str().expect("names of pages are ASCII").replace('\\', "/");
        writeln!(list, "    ({name:?}, {include}({:?})),", file.display().to_string()).expect("a text takes all");
    }
    list.push(']');
    list
}

fn collect(folder: &Path, extensions: &[&str], files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, extensions, files)?;
        } else if let Some(extension) = path.extension().and_then(OsStr::to_str)
            && extensions.contains(&extension)
        {
            files.push(path);
        }
    }
    Ok(())
}
