use std::io::Write as _;
use std::path::PathBuf;

use flate2::Compression;
use flate2::write::GzEncoder;
use tar::{Builder, EntryType, Header};
use tempfile::TempDir;
use towpath_compute::tarball::unpack;
use towpath_compute::tree::Limits;
use towpath_compute::{Log, Result};

struct Entry<'a> {
    path: &'a str,
    kind: EntryType,
    body: &'a [u8],
    link: &'a str,
}

const fn file<'a>(path: &'a str, body: &'a [u8]) -> Entry<'a> {
    Entry {
        path,
        kind: EntryType::Regular,
        body,
        link: "",
    }
}

const fn link<'a>(path: &'a str, to: &'a str) -> Entry<'a> {
    Entry {
        path,
        kind: EntryType::Symlink,
        body: b"",
        link: to,
    }
}

/// An archive as no one honest would write it: names are put into the header as they are.
fn archive(entries: &[Entry<'_>]) -> Vec<u8> {
    let mut tar = Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    for entry in entries {
        let mut header = Header::new_ustar();
        header.as_mut_bytes()[..entry.path.len()].copy_from_slice(entry.path.as_bytes());
        let link = entry.link.as_bytes();
        header.as_mut_bytes()[157..157 + link.len()].copy_from_slice(link);
        header.set_entry_type(entry.kind);
        header.set_mode(0o4755);
        header.set_size(entry.body.len() as u64);
        header.set_cksum();
        tar.append(&header, entry.body).unwrap();
    }
    tar.into_inner().unwrap().finish().unwrap()
}

fn unpacked(bytes: &[u8], limits: Limits) -> (TempDir, Result<PathBuf>) {
    let folder = tempfile::tempdir().unwrap();
    let packed = folder.path().join("packed");
    std::fs::write(&packed, bytes).unwrap();
    let (work, to) = (folder.path().join("work"), folder.path().join("to"));
    std::fs::create_dir(&work).unwrap();
    let result = unpack(&packed, &work, &to, limits, &Log::none()).map(|()| to);
    (folder, result)
}

#[test]
fn an_honest_archive_is_unpacked() {
    use std::os::unix::fs::PermissionsExt as _;
    let bytes = archive(&[
        file("./langgraph.json", b"{}"),
        file("src/agent.py", b"graph = 1"),
        link("src/link", "agent.py"),
        link("later", "src/made/later.txt"),
        file("src/made/later.txt", b"1"),
    ]);
    let (_folder, to) = unpacked(&bytes, Limits::default());
    let to = to.unwrap();
    assert_eq!(std::fs::read_to_string(to.join("src/link")).unwrap(), "graph = 1");
    assert_eq!(std::fs::read_to_string(to.join("later")).unwrap(), "1");
    let mode = std::fs::metadata(to.join("src/agent.py")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o755, "a bit was kept that gives rights");
}

#[test]
fn nothing_leads_out() {
    let outside = b"out";
    for entries in [
        vec![file("../x", outside)],
        vec![file("a/../../x", outside)],
        vec![file("/tmp/x", outside)],
        vec![file("a\\..\\x", outside)],
        vec![link("l", "/etc/passwd")],
        vec![link("l", "..")],
        vec![link("l", "../../packed")],
        vec![link("l", "/etc"), file("l/x", outside)],
        // Each link alone stays inside; both together do not.
        vec![file("x/y/z", b""), link("x/y/d", "../.."), link("l", "x/y/d/../../..")],
        vec![link("a", "."), link("b", "a/../..")],
        vec![Entry {
            path: "h",
            kind: EntryType::Link,
            body: b"",
            link: "/etc/passwd",
        }],
        vec![Entry {
            path: "dev",
            kind: EntryType::Block,
            body: b"",
            link: "",
        }],
        vec![Entry {
            path: "pipe",
            kind: EntryType::Fifo,
            body: b"",
            link: "",
        }],
        // A folder and a file of one name, either way around.
        vec![file("a", b"1"), file("a/b", b"2")],
        vec![file("a/b", b"1"), file("a", b"2")],
    ] {
        let names: Vec<_> = entries.iter().map(|entry| entry.path).collect();
        let (folder, refused) = unpacked(&archive(&entries), Limits::default());
        let refused = refused.expect_err(&format!("{names:?} was unpacked"));
        assert!(refused.to_string().contains("source"), "{names:?}: {refused}");
        assert!(!folder.path().join("to").exists(), "{names:?}");
        assert!(!folder.path().join("x").exists(), "{names:?} was written outside");
    }
}

/// A record of pax, which says how long it is.
fn record(key: &str, value: &str) -> Vec<u8> {
    let rest = format!(" {key}={value}\n");
    let mut length = rest.len();
    while length != rest.len() + length.to_string().len() {
        length = rest.len() + length.to_string().len();
    }
    format!("{length}{rest}").into_bytes()
}

const fn described<'a>(kind: EntryType, body: &'a [u8]) -> Entry<'a> {
    Entry {
        path: "././@about",
        kind,
        body,
        link: "",
    }
}

#[test]
fn long_names_are_read() {
    let long = format!("{}agent.py", "folder/".repeat(20));
    let umlaut = record("path", "größe/agent.py");
    let target = record("linkpath", "größe/agent.py");
    let time = record("mtime", "1772366400.5");
    let bytes = archive(&[
        described(EntryType::GNULongName, format!("{long}\0").as_bytes()),
        file("short", b"1"),
        described(EntryType::XGlobalHeader, &time),
        described(EntryType::XHeader, &umlaut),
        file("short", b"2"),
        described(EntryType::XHeader, &target),
        link("link", "short"),
        described(EntryType::XHeader, &time),
        file("last", b"3"),
    ]);
    let (_folder, to) = unpacked(&bytes, Limits::default());
    let to = to.unwrap();
    let read = |name: &str| std::fs::read_to_string(to.join(name)).unwrap();
    assert_eq!(
        [read(&long), read("größe/agent.py"), read("link"), read("last")],
        ["1", "2", "2", "3"]
    );
    assert!(!to.join("short").exists());
}

/// What takes more room than an archive has.
#[test]
fn nothing_grows_past_its_limits() {
    let small = Limits {
        bytes: 1 << 20,
        entries: 10,
        free: 0,
    };
    let mut hole = Header::new_gnu();
    hole.set_path("hole").unwrap();
    hole.set_entry_type(EntryType::GNUSparse);
    hole.set_size(0);
    hole.as_gnu_mut().unwrap().set_real_size(1 << 40);
    hole.set_mode(0o644);
    hole.set_cksum();
    let mut tar = Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    tar.append(&hole, &b""[..]).unwrap();
    let hole = tar.into_inner().unwrap().finish().unwrap();

    let many = vec![b'a'; 300 * 1024];
    let long = "a/".repeat(1500);
    let named = "a".repeat(300);
    let sparse = record("GNU.sparse.major", "1");
    let size = record("size", "5");
    let last = || file("short", b"1");
    let name = |body: &[u8]| archive(&[described(EntryType::GNULongName, body), last()]);
    let about = |body: &[u8]| archive(&[described(EntryType::XHeader, body), last()]);
    for (bytes, expected) in [
        (
            hole,
            "the source archive has hole as a sparse file; pack it as a regular file",
        ),
        (
            about(&sparse),
            "the source archive has a sparse file; pack it as a regular file",
        ),
        (about(&size), "the source archive has two sizes for one entry"),
        (
            about(b"9 path"),
            "the source archive has a pax record that cannot be read",
        ),
        (
            about(&many),
            "the source archive has more than 256 KB of metadata for one entry",
        ),
        (
            name(&many),
            "the source archive has more than 256 KB of metadata for one entry",
        ),
        (
            name(long.as_bytes()),
            "the source archive has a path of more than 2048 bytes",
        ),
        (
            name(named.as_bytes()),
            "the source archive has a name of more than 255 bytes",
        ),
        (
            archive(&[
                described(EntryType::GNULongName, b"a"),
                described(EntryType::GNULongName, b"b"),
                last(),
            ]),
            "the source archive describes one entry twice",
        ),
    ] {
        let (folder, refused) = unpacked(&bytes, small);
        assert_eq!(refused.unwrap_err().to_string(), expected);
        assert!(!folder.path().join("to").exists(), "{expected}");
    }
}

#[test]
fn folders_that_a_path_names_are_counted() {
    let small = Limits {
        bytes: 1 << 20,
        entries: 10,
        free: 0,
    };
    let deep = format!("{}file", "a/".repeat(20));
    let (folder, refused) = unpacked(&archive(&[file(&deep, b"")]), small);
    assert_eq!(
        refused.unwrap_err().to_string(),
        "the source archive has more than 10 entries"
    );
    let made = |depth: usize| folder.path().join("work/source").join("a/".repeat(depth)).exists();
    assert!(made(10) && !made(11), "more was made than may be");
}

#[test]
fn bombs_and_rubbish_are_refused() {
    let small = Limits {
        bytes: 1 << 20,
        entries: 10,
        free: 0,
    };
    let zeros = vec![0; 8 << 20];
    let (_folder, refused) = unpacked(&archive(&[file("zeros", &zeros)]), small);
    assert_eq!(
        refused.unwrap_err().to_string(),
        "the source archive unpacks to more than 1 MB"
    );

    let names: Vec<String> = (0..11).map(|n| format!("f{n}")).collect();
    let many: Vec<_> = names.iter().map(|name| file(name, b"")).collect();
    let (_folder, refused) = unpacked(&archive(&many), small);
    assert_eq!(
        refused.unwrap_err().to_string(),
        "the source archive has more than 10 entries"
    );

    // More than any source is packed: it would unpack to some gigabytes.
    let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
    for _ in 0..96 {
        gzip.write_all(&vec![0; 1 << 20]).unwrap();
    }
    let (_folder, refused) = unpacked(&gzip.finish().unwrap(), Limits::default());
    // Nothing but zeros is the end of an archive, whatever follows.
    assert!(refused.is_ok());

    for rubbish in [&b"no archive"[..], b"", b"\x1f\x8b\x08"] {
        let (_folder, refused) = unpacked(rubbish, small);
        assert!(
            refused.unwrap_err().to_string().contains("cannot be read"),
            "{rubbish:?}"
        );
    }
}
