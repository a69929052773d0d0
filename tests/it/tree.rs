//! The source tree as the rules see it.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The root of the checkout.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("`tests` lies in the root")
        .to_owned()
}

pub fn read(path: &str) -> String {
    let bytes = std::fs::read(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Every file that is tracked or would be: paths from the root, with `/`. In a tree without git, every file outside
/// of build folders.
pub fn files() -> Vec<String> {
    let root = root();
    let listed = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(&root)
        .output()
        .ok()
        .filter(|output| output.status.success());
    let mut files = match listed {
        Some(output) => {
            let names = String::from_utf8(output.stdout).expect("file names are UTF-8");
            // A file deleted but not staged is still listed.
            names
                .split_terminator('\0')
                .filter(|name| root.join(name).is_file())
                .map(str::to_owned)
                .collect()
        }
        None => {
            let mut found = Vec::new();
            walk(&root, "", &mut found);
            found
        }
    };
    files.sort();
    assert!(files.iter().any(|file| file == "Cargo.toml"), "the tree was not listed");
    files
}

fn walk(folder: &Path, prefix: &str, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).expect("a readable tree").flatten() {
        let name = entry.file_name().into_string().expect("file names are UTF-8");
        let path = if prefix.is_empty() {
            name.clone()
        } else {
            format!("{prefix}/{name}")
        };
        if entry.file_type().expect("a file has a type").is_dir() {
            if !matches!(name.as_str(), ".git" | "target" | ".towpath" | "__pycache__") {
                walk(&entry.path(), &path, found);
            }
        } else {
            found.push(path);
        }
    }
}

/// The string literals of a Rust file with the line each begins on. Comments and character literals are passed over.
pub fn string_literals(source: &str) -> Vec<(usize, String)> {
    let bytes = source.as_bytes();
    let mut found = Vec::new();
    let (mut at, mut line) = (0, 1);
    while at < bytes.len() {
        let rest = &bytes[at..];
        let length = match rest {
            [b'/', b'/', ..] => rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len()),
            [b'/', b'*', ..] => source[at..].find("*/").map_or(rest.len(), |end| end + 2),
            [b'r', ..] if raw_hashes(rest).is_some() && !follows_name(bytes, at) => {
                let hashes = raw_hashes(rest).expect("asked in the guard");
                let begin = at + hashes + 2;
                let close = format!("\"{}", "#".repeat(hashes));
                let end = source[begin..].find(&close).map_or(source.len(), |end| begin + end);
                found.push((line, source[begin..end].to_owned()));
                (end + close.len()).min(bytes.len()) - at
            }
            [b'"', ..] => {
                let mut end = at + 1;
                while end < bytes.len() && bytes[end] != b'"' {
                    end += if bytes[end] == b'\\' { 2 } else { 1 };
                }
                let end = end.min(bytes.len());
                found.push((line, source[at + 1..end].to_owned()));
                end + 1 - at
            }
            // A character, not a lifetime: 'x', '\n', '"'.
            [b'\'', b'\\', ..] => rest
                .iter()
                .skip(2)
                .position(|&byte| byte == b'\'')
                .map_or(1, |end| end + 3),
            [b'\'', _, b'\'', ..] => 3,
            _ => 1,
        };
        let end = (at + length).min(bytes.len());
        line += bytes[at..end].iter().filter(|&&byte| byte == b'\n').count();
        at = end;
    }
    found
}

/// How many `#` a raw string that begins here has; `None` if none begins here.
fn raw_hashes(rest: &[u8]) -> Option<usize> {
    let hashes = rest[1..].iter().take_while(|&&byte| byte == b'#').count();
    (rest.get(hashes + 1) == Some(&b'"')).then_some(hashes)
}

fn follows_name(bytes: &[u8], at: usize) -> bool {
    // `br"…"` is a string too; `attr"` can't be.
    at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_') && bytes[at - 1] != b'b'
}

#[test]
fn string_literals_are_found_and_nothing_else() {
    let source = "// \"no\"\nlet a = \"one\"; /* \"no\" */ let q = '\"';\nlet b = r#\"two \"2\"\"#; fn f<'a>(x: &'a str) {}\nlet c = \"th\\\"ree\";";
    let found = string_literals(source);
    let expected = [(2, "one"), (3, "two \"2\""), (4, "th\\\"ree")];
    assert_eq!(found, expected.map(|(line, text)| (line, text.to_owned())));
}
