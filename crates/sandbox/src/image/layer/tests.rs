use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use tempfile::TempDir;

use super::*;

const MANY_BYTES: u64 = 1 << 20;

/// An archive in the order of its entries, without the checks that make an archive well-formed.
#[derive(Default)]
struct ArchiveWriter(Vec<u8>);

impl ArchiveWriter {
    fn entry(mut self, kind: EntryType, path: &str, link: &str, content: &[u8]) -> Self {
        self.append(kind, path, link, content, 0o755);
        self
    }

    fn file(self, path: &str, content: &str) -> Self {
        self.entry(EntryType::Regular, path, "", content.as_bytes())
    }

    fn folder(self, path: &str) -> Self {
        self.entry(EntryType::Directory, path, "", b"")
    }

    fn link(self, path: &str, to: &str) -> Self {
        self.entry(EntryType::Symlink, path, to, b"")
    }

    fn hard_link(self, path: &str, to: &str) -> Self {
        self.entry(EntryType::Link, path, to, b"")
    }

    fn with_mode(mut self, path: &str, mode: u32) -> Self {
        self.append(EntryType::Regular, path, "", b"", mode);
        self
    }

    fn append(&mut self, kind: EntryType, path: &str, link: &str, content: &[u8], mode: u32) {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1_000_000_000);
        header.set_size(content.len() as u64);
        // The setters refuse hostile names.
        let bytes = header.as_mut_bytes();
        bytes[..path.len()].copy_from_slice(path.as_bytes());
        bytes[157..157 + link.len()].copy_from_slice(link.as_bytes());
        header.set_cksum();
        self.0.extend_from_slice(header.as_bytes());
        self.0.extend_from_slice(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
    }

    fn finish(mut self) -> File {
        self.0.resize(self.0.len() + 1024, 0);
        file_with(&self.0)
    }
}

fn file_with(content: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(content).unwrap();
    file
}

/// A tree beside a folder that it must not reach.
struct World {
    folder: TempDir,
    tree: ImageTree,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["tree", "outside"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        fs::write(folder.path().join("outside/secret"), "secret").unwrap();
        let tree = ImageTree::open(&folder.path().join("tree"), None, MANY_BYTES).unwrap();
        Self { folder, tree }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("tree").join(name)
    }

    fn apply(&mut self, layer: ArchiveWriter) -> io::Result<()> {
        self.tree.apply(&layer.finish())
    }

    fn read(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.path(name)).ok()
    }

    /// What is beside the tree, as it was made.
    fn assert_untouched(&self, case: &str) {
        let outside = self.folder.path().join("outside");
        let names: Vec<_> = fs::read_dir(&outside)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names, ["secret"], "{case}");
        assert_eq!(fs::read(outside.join("secret")).unwrap(), b"secret", "{case}");
        assert_eq!(fs::metadata(outside.join("secret")).unwrap().nlink(), 1, "{case}");
    }
}

fn layer() -> ArchiveWriter {
    ArchiveWriter::default()
}

#[test]
fn layers_lie_over_each_other() {
    let mut world = World::new();
    let first = layer()
        .folder("./etc/")
        .file("etc/kept", "kept")
        .file("etc/changed", "first")
        .file("etc/hidden", "hidden")
        .file("all/one", "1")
        .file("all/deep/two", "2")
        .file("was/folder", "folder")
        .link("lib", "usr/lib")
        .folder("usr/lib/");
    world.apply(first).unwrap();
    let second = layer()
        .file("etc/changed", "second")
        .file("etc/.wh.hidden", "")
        .file("all/three", "3")
        // The order in an archive does not matter.
        .file("all/.wh..wh..opq", "")
        .file("was", "file")
        .file("lib/through-a-link", "library")
        .file("etc/.wh.missing", "")
        .file("missing/.wh.missing", "")
        .file(".wh..wh.plnk", "")
        .hard_link("etc/same", "/etc/kept");
    world.apply(second).unwrap();
    for (name, content) in [
        ("etc/kept", Some("kept")),
        ("etc/changed", Some("second")),
        ("etc/hidden", None),
        ("all/one", None),
        ("all/deep/two", None),
        ("all/three", Some("3")),
        ("was", Some("file")),
        ("usr/lib/through-a-link", Some("library")),
        (".wh..wh.plnk", None),
        ("etc/same", Some("kept")),
    ] {
        assert_eq!(world.read(name).as_deref(), content, "{name}");
    }
    assert!(!world.path("all/deep").exists() && !world.path("missing").exists());
    assert_eq!(fs::metadata(world.path("etc/kept")).unwrap().mtime(), 1_000_000_000);
    assert_eq!(fs::metadata(world.path("etc/kept")).unwrap().nlink(), 2);
}

#[test]
fn a_whiteout_hides_nothing_of_its_own_layer() {
    let mut world = World::new();
    world.apply(layer().file("a/old", "old")).unwrap();
    world
        .apply(layer().folder("a").file("a/new", "new").file(".wh.a", ""))
        .unwrap();
    assert_eq!(
        (world.read("a/old"), world.read("a/new").as_deref()),
        (None, Some("new"))
    );
}

#[test]
fn no_path_leaves_the_tree() {
    let cases: Vec<(&str, ArchiveWriter, &str)> = vec![
        ("parent", layer().file("../outside/x", "x"), "contains '..'"),
        ("inner parent", layer().file("a/../../outside/x", "x"), "contains '..'"),
        ("whiteout of a parent", layer().file("a/.wh...", ""), "hides no name"),
        ("whiteout of the folder", layer().file("a/.wh..", ""), "hides no name"),
        ("whiteout without a name", layer().file("a/.wh.", ""), "hides no name"),
        ("below a whiteout", layer().file(".wh.a/x", ""), "is below a whiteout"),
        (
            "relative link",
            layer().link("out", "../outside").file("out/x", "x"),
            "does not exist",
        ),
        (
            "absolute link",
            layer().link("out", "/proc/self/cwd").file("out/x", "x"),
            "does not exist",
        ),
        (
            "link to itself",
            layer().link("out", "out").file("out/x", "x"),
            "links in a circle",
        ),
        (
            "hard link out",
            layer().hard_link("x", "../outside/secret"),
            "contains '..'",
        ),
        (
            "hard link through a link",
            layer().link("out", "../outside").hard_link("x", "out/secret"),
            "no file of the image",
        ),
        (
            "hard link to a folder",
            layer().folder("a").hard_link("x", "a"),
            "no file of the image",
        ),
        ("hard link to nothing", layer().hard_link("x", ""), "without a target"),
        ("below a file", layer().file("a", "").file("a/x", ""), "not a folder"),
        (
            "device",
            layer().entry(EntryType::Block, "disk", "", b""),
            "is a device",
        ),
        (
            "character device",
            layer().entry(EntryType::Char, "etc/mem", "", b""),
            "is a device",
        ),
        (
            "unknown type",
            layer().entry(EntryType::new(b'Z'), "x", "", b""),
            "of an unknown type",
        ),
        ("file as the root", layer().file(".", "x"), "has no name"),
        ("empty link", layer().link("x", ""), "without a usable target"),
    ];
    for (case, archive, why) in cases {
        let mut world = World::new();
        let error = world.apply(archive).expect_err(case);
        assert!(error.to_string().contains(why), "{case}: {error}");
        assert_eq!(error.raw_os_error(), None, "{case}: the archive is to blame");
        world.assert_untouched(case);
    }
}

#[test]
fn links_of_an_archive_stay_in_the_tree() {
    let mut world = World::new();
    let archive = layer()
        .link("out", "/../../outside")
        .folder("outside")
        .file("out/secret", "inner")
        .file("/absolute", "inner")
        .link("target", "../../outside/secret")
        .file("target", "inner");
    world.apply(archive).unwrap();
    assert_eq!(world.read("outside/secret").as_deref(), Some("inner"));
    assert_eq!(world.read("absolute").as_deref(), Some("inner"));
    assert_eq!(world.read("target").as_deref(), Some("inner"));
    // A whiteout of a link removes the link.
    world.apply(layer().file(".wh.out", "")).unwrap();
    assert_eq!(world.read("outside/secret").as_deref(), Some("inner"));
    assert!(fs::symlink_metadata(world.path("out")).is_err());
    world.assert_untouched("links");
}

#[test]
fn files_have_no_rights_of_their_own() {
    let mut world = World::new();
    let archive = layer()
        .with_mode("set-user-id", 0o6755)
        .with_mode("closed", 0o000)
        .entry(EntryType::Char, "dev/null", "", b"")
        .entry(EntryType::Fifo, "pipe", "", b"");
    world.apply(archive).unwrap();
    let mode = |name: &str| fs::metadata(world.path(name)).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode("set-user-id"), mode("closed")), (0o755, 0));
    assert!(!world.path("dev").exists());
    let kind = FileType::from_raw_mode(fs::metadata(world.path("pipe")).unwrap().mode());
    assert_eq!(kind, FileType::Fifo);
}

#[test]
fn an_archive_cannot_fill_the_memory_or_the_disk() {
    let mut world = World::new();
    let name = "x".repeat(5 << 20);
    let long = layer().entry(EntryType::GNULongName, "././@LongLink", "", name.as_bytes());
    let error = world.apply(long.file("x", "")).unwrap_err();
    assert!(
        error.to_string().contains("headers of an entry are too long"),
        "{error}"
    );

    let content = "x".repeat(300_000);
    let large = (0..4).fold(layer(), |archive, index| archive.file(&index.to_string(), &content));
    let error = world.apply(large).unwrap_err();
    assert!(
        error.to_string().contains("more bytes than this machine accepts"),
        "{error}"
    );

    let whole = layer().file("short", &"x".repeat(5000)).0;
    let error = World::new().tree.apply(&file_with(&whole[..2000])).unwrap_err();
    assert!(error.to_string().contains("is shorter than"), "{error}");

    world.tree.entries_left = 2;
    let error = world.apply(layer().folder("a").folder("b").folder("c")).unwrap_err();
    assert!(error.to_string().contains("entries"), "{error}");
}

#[test]
fn owners_are_those_of_boxes() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: files belong to the account that runs the tests");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut tree = ImageTree::open(folder.path(), Some(1_700_000_000), MANY_BYTES).unwrap();
    let archive = layer().file("a/file", "").link("a/link", "file").finish();
    tree.apply(&archive).unwrap();
    for name in ["", "a", "a/file", "a/link"] {
        let found = fs::symlink_metadata(folder.path().join(name)).unwrap();
        assert_eq!((found.uid(), found.gid()), (1_700_000_000, 1_700_000_000), "{name}");
    }
    let mut header = tar::Header::new_gnu();
    header.set_path("x").unwrap();
    header.set_mode(0o644);
    header.set_uid(65_536);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(0);
    header.set_cksum();
    let foreign = ArchiveWriter(header.as_bytes().to_vec()).finish();
    let error = tree.apply(&foreign).unwrap_err().to_string();
    assert!(error.contains("above 65535"), "{error}");
}

#[test]
fn what_programs_expect_is_created() {
    let mut world = World::new();
    world.apply(layer().file("srv/app/main.py", "")).unwrap();
    world.tree.complete(Some("/srv/app/data")).unwrap();
    assert!(world.path("srv/app/data").is_dir());
    assert!(world.read("etc/hosts").unwrap().starts_with("127.0.0.1 localhost\n"));
    world.apply(layer().file("etc/hosts", "own")).unwrap();
    world.tree.complete(None).unwrap();
    assert_eq!(world.read("etc/hosts").as_deref(), Some("own"));
    assert!(world.tree.complete(Some("/srv/../../outside")).is_err());
}

#[test]
fn compressions_are_told_apart_and_digests_checked() {
    let folder = tempfile::tempdir().unwrap();
    let content = b"content of a layer, content of a layer".as_slice();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(content).unwrap();
    let blobs = [
        content.to_vec(),
        gzip.finish().unwrap(),
        zstd::encode_all(content, 1).unwrap(),
    ];
    let digest = Digest::of(content);
    let (blob, archive) = (folder.path().join("blob"), folder.path().join("archive"));
    let size = content.len() as u64;
    for bytes in blobs {
        fs::write(&blob, &bytes).unwrap();
        assert_eq!(decompress(&blob, &archive, &digest, size).unwrap(), size);
        assert_eq!(fs::read(&archive).unwrap(), content);
        fs::remove_file(&archive).unwrap();
        let error = decompress(&blob, &archive, &digest, size - 1).unwrap_err();
        assert!(error.to_string().contains("more bytes"), "{error}");
        fs::remove_file(&archive).unwrap();
        let error = decompress(&blob, &archive, &Digest::of(b""), size).unwrap_err();
        assert!(error.to_string().contains("differs from its digest"), "{error}");
        fs::remove_file(&archive).unwrap();
    }
    fs::write(&blob, [0x1f, 0x8b, 1, 2, 3]).unwrap();
    let error = decompress(&blob, &archive, &digest, size).unwrap_err();
    assert_eq!(error.raw_os_error(), None, "{error}");
}
