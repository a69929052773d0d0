//! What has to hold of the unpacker whatever bytes it is given: the body of the fuzz target `tarball` in `fuzz/`, and
//! of the test beside this file.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use towpath_compute::Log;
use towpath_compute::tarball::unpack;
use towpath_compute::tree::Limits;

const LIMITS: Limits = Limits {
    bytes: 64 * 1024,
    entries: 32,
    free: 0,
};

/// Whatever an archive says: nothing is written beside its folder, and no more in it than may be; what is unpacked
/// leads nowhere else, and what is refused is not there.
pub fn tarball(data: &[u8]) {
    unpacked(data);
    let mut gzip = GzEncoder::new(Vec::new(), Compression::none());
    gzip.write_all(data).unwrap();
    unpacked(&gzip.finish().unwrap());
}

fn unpacked(archive: &[u8]) {
    let top = tempfile::tempdir().unwrap();
    let folder = top.path().join("folder");
    let (packed, work, to) = (folder.join("packed"), folder.join("work"), folder.join("to"));
    fs::create_dir_all(&work).unwrap();
    fs::write(&packed, archive).unwrap();
    let result = unpack(&packed, &work, &to, LIMITS, &Log::none());

    assert_eq!(names(top.path()), ["folder"]);
    let mut beside = names(&folder);
    beside.retain(|name| !["packed", "work", "to"].contains(&name.as_str()));
    assert_eq!(beside, [""; 0]);
    assert_eq!(to.exists(), result.is_ok(), "it is there if it was not refused");
    let files = if result.is_ok() { to } else { work.join("source") };
    let (mut bytes, mut entries) = (0, 0);
    for path in below(&files) {
        let about = fs::symlink_metadata(&path).unwrap();
        entries += 1;
        if about.is_file() {
            bytes += about.len();
        }
        if about.is_symlink() && result.is_ok() {
            let target = path.canonicalize().unwrap();
            assert!(
                target.starts_with(files.canonicalize().unwrap()),
                "{path:?} leads to {target:?}"
            );
        }
    }
    assert!(entries <= LIMITS.entries, "{entries} entries");
    // One byte more is how it learns that there are more.
    assert!(bytes <= LIMITS.bytes + 1, "{bytes} bytes");
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect()
}

/// Everything below a folder; links are not followed.
fn below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            }
            found.push(entry.path());
        }
    }
    found
}
