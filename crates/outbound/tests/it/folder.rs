use std::path::{Path, PathBuf};

use object_store::path::Path as Key;
use object_store::{ObjectStoreExt, PutPayload};
use towpath_domain::export::{DestinationConfig, DestinationKind};
use towpath_outbound::{Destination, DestinationFailure, Guard, OpenUpload, Policy, Reason, Settings, classify};

fn open(root: Option<&Path>, prefix: &str) -> Result<Destination, DestinationFailure> {
    let settings = Settings {
        guard: Guard::new(Policy::default()),
        file_root: root.map(Path::to_owned),
        environment_credentials: None,
    };
    let config = DestinationConfig {
        prefix: prefix.to_owned(),
        ..DestinationConfig::default()
    };
    Destination::open(&settings, DestinationKind::File, &config, None)
}

/// Every file below, as paths relative to `root`.
fn files(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.push(path.strip_prefix(root).unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}

#[tokio::test]
async fn objects_appear_whole_and_are_replaced_whole() {
    let root = tempfile::tempdir().unwrap();
    let destination = open(Some(root.path()), "a/b").unwrap();
    destination.test(&Key::from("a/b/tmp/x.txt")).await.unwrap();
    assert!(files(root.path()).is_empty());

    let mut upload = destination
        .objects()
        .put_multipart(&Key::from("a/b/c/x.parquet"))
        .await
        .unwrap();
    let (one, two) = (
        upload.put_part(PutPayload::from("one ")),
        upload.put_part(PutPayload::from("two")),
    );
    two.await.unwrap();
    one.await.unwrap();
    assert_eq!(files(root.path()), [PathBuf::from(&destination.open_uploads()[0].id)]);
    upload.complete().await.unwrap();
    assert!(destination.open_uploads().is_empty());
    for text in ["1", "2"] {
        destination
            .objects()
            .put(&Key::from("a/b/c/y"), PutPayload::from(text))
            .await
            .unwrap();
    }
    assert_eq!(
        files(root.path()),
        [PathBuf::from("a/b/c/x.parquet"), PathBuf::from("a/b/c/y")]
    );
    assert_eq!(std::fs::read(root.path().join("a/b/c/x.parquet")).unwrap(), b"one two");
    assert_eq!(std::fs::read(root.path().join("a/b/c/y")).unwrap(), b"2");
}

#[tokio::test]
async fn what_is_given_up_leaves_nothing() {
    let root = tempfile::tempdir().unwrap();
    let destination = open(Some(root.path()), "").unwrap();
    drop(destination.objects().put_multipart(&Key::from("x")).await.unwrap());
    assert!(files(root.path()).is_empty());

    // Left by a process that died.
    let left = OpenUpload {
        path: "x".to_owned(),
        id: "tmp/dead.part".to_owned(),
    };
    std::fs::write(root.path().join(&left.id), "half").unwrap();
    destination.abort(&left).await.unwrap();
    destination.abort(&left).await.unwrap();
    assert!(files(root.path()).is_empty());
}

#[tokio::test]
async fn links_and_steps_upwards_do_not_lead_out() {
    let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::os::unix::fs::symlink(outside.path(), root.path().join("out")).unwrap();
    std::os::unix::fs::symlink("/nowhere/at/all", root.path().join("dangling")).unwrap();
    std::fs::create_dir(root.path().join("real")).unwrap();
    std::os::unix::fs::symlink(root.path().join("real"), root.path().join("inside")).unwrap();

    for bad in ["out", "out/a", "dangling", "dangling/a"] {
        assert_eq!(
            open(Some(root.path()), bad).unwrap_err().reason(),
            Reason::Prefix,
            "{bad}"
        );
    }
    let inside = open(Some(root.path()), "inside/a").unwrap();
    let put = async |key: &str| {
        let put = inside.objects().put(&Key::from(key), PutPayload::from("x")).await;
        put.map_err(|error| classify(&error, key).reason())
    };
    put("inside/a/x").await.unwrap();
    assert_eq!(put("out/x").await.unwrap_err(), Reason::Prefix);
    let up = OpenUpload {
        path: "x".to_owned(),
        id: "inside/../../x".to_owned(),
    };
    assert_eq!(inside.abort(&up).await.unwrap_err().reason(), Reason::Prefix);

    // A link that is put there later is noticed when it is used.
    std::os::unix::fs::symlink(outside.path(), root.path().join("real/a/late")).unwrap();
    assert_eq!(put("inside/a/late/x").await.unwrap_err(), Reason::Prefix);
    assert!(files(outside.path()).is_empty());
}

#[tokio::test]
async fn without_a_configured_folder_there_is_none() {
    assert!(open(None, "a").unwrap_err().to_string().contains("exports.file_root"));
}
