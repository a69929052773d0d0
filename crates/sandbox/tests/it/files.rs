//! Files, as the user of the box.

use towpath_sandbox::{ByteRange, Driver as _, Error, GlobRequest, GrepRequest, VolumeMount, VolumeSource};

use crate::fixture::{SandboxFixture, as_root, prints, request, run};

#[tokio::test]
async fn files_go_in_and_come_out() {
    let Some(world) = SandboxFixture::new().await else {
        return;
    };
    let (handle, agent) = world.start(&world.spec(), 1).await;
    let body = vec![b'x'; 3_000_000];
    let stat = agent.upload("deep/er/a.bin", &mut body.as_slice()).await.unwrap();
    assert_eq!(
        (stat.path.as_str(), stat.size_bytes, stat.mode),
        ("/home/user/deep/er/a.bin", 3_000_000, 0o644)
    );
    let all = agent.download("/home/user/deep/er/a.bin", None).await.unwrap();
    assert_eq!(all.stat.tag, stat.tag);
    assert_eq!(all.read_to_end().await.unwrap(), body);
    let part = agent.download("deep/er/a.bin", Some(ByteRange::Last(5))).await.unwrap();
    assert_eq!((part.start, part.end), (2_999_995, 3_000_000));
    assert_eq!(part.read_to_end().await.unwrap(), b"xxxxx");
    let past = agent
        .download("deep/er/a.bin", Some(ByteRange::From(3_000_000, None)))
        .await;
    assert!(matches!(past, Err(Error::Range { size: 3_000_000 })));
    assert!(matches!(agent.download("deep", None).await, Err(Error::IsDirectory(_))));
    assert!(matches!(agent.stat("nothing").await, Err(Error::NotFound(_))));
    assert!(matches!(agent.stat("a\0b").await, Err(Error::Invalid(_))));
    let again = agent.upload("deep/er/a.bin", &mut b"new".as_slice()).await.unwrap();
    assert_ne!(again.tag, stat.tag);
    world.driver.destroy(handle.id, 1).await.unwrap();
}

#[tokio::test]
async fn files_are_found() {
    let Some(world) = SandboxFixture::new().await else {
        return;
    };
    let (handle, agent) = world.start(&world.spec(), 1).await;
    prints(
        &agent,
        &request(
            "mkdir -p w/src/deep; echo 'a (needle) b' > w/src/a.py; echo no > w/src/deep/b.py; echo needle > w/c.txt",
        ),
    )
    .await;
    prints(
        &agent,
        &request("mkfifo w/pipe; ln -s / w/root; printf 'needle\\0' > w/binary"),
    )
    .await;
    let glob = |pattern: &str, limit| GlobRequest {
        pattern: pattern.to_owned(),
        path: "w".to_owned(),
        limit,
    };
    let found = agent.glob(&glob("*.py", 100)).await.unwrap();
    let paths: Vec<&str> = found.matches.iter().map(|entry| entry.path.as_str()).collect();
    assert_eq!(paths, ["/home/user/w/src/a.py", "/home/user/w/src/deep/b.py"]);
    assert!(agent.glob(&glob("*.py", 1)).await.unwrap().truncated);
    let grep = GrepRequest {
        pattern: "(needle".to_owned(),
        path: "w".to_owned(),
        glob: None,
        limit: 10,
    };
    let found = agent.grep(&grep).await.unwrap();
    assert_eq!((found.matches.len(), found.truncated), (1, false));
    assert_eq!(
        (found.matches[0].line, found.matches[0].text.as_str()),
        (1, "a (needle) b")
    );
    let listed = agent.list("w", 100).await.unwrap();
    assert_eq!(listed.matches.len(), 5);
    world.driver.destroy(handle.id, 1).await.unwrap();
}

/// The kernel decides, for the user and not for the agent.
#[tokio::test]
async fn operations_have_the_rights_of_the_user() {
    let Some(world) = SandboxFixture::new().await else {
        return;
    };
    let (handle, agent) = world.start(&world.spec(), 1).await;
    for link in ["/run/towpath/box.json", "/proc/1/environ"] {
        prints(&agent, &request(&format!("ln -sfn {link} link"))).await;
        if world.has_users() {
            assert!(agent.download("link", None).await.is_err(), "{link}");
        }
    }
    prints(&agent, &request("mkfifo pipe")).await;
    assert!(matches!(agent.download("pipe", None).await, Err(Error::Invalid(_))));
    assert!(agent.download("/dev/zero", None).await.is_err());
    assert!(agent.upload("/usr/x", &mut b"x".as_slice()).await.is_err());
    if world.has_users() {
        prints(&agent, &as_root("umask 077; echo secret > /var/lib/kept")).await;
        assert!(matches!(
            agent.download("/var/lib/kept", None).await,
            Err(Error::Denied(_))
        ));
        let root = agent.clone().with_user("root");
        let read = root.download("/var/lib/kept", None).await.unwrap();
        assert_eq!(read.read_to_end().await.unwrap(), b"secret\n");
    }
    world.driver.destroy(handle.id, 1).await.unwrap();
}

#[tokio::test]
async fn volumes_outlive_their_box() {
    let Some(world) = SandboxFixture::new().await else {
        return;
    };
    let volume = uuid::Uuid::now_v7();
    let source = world.driver.make_volume(volume, 64 << 20).await.unwrap();
    assert_eq!(
        matches!(source, VolumeSource::Image(_)),
        world.capabilities.can_mount_images
    );
    let mount = |path: &str, read_only| VolumeMount {
        source: source.clone(),
        path: path.to_owned(),
        read_only,
    };
    let mut first = world.spec();
    first.mounts = vec![mount("/data/deep", false)];
    let (handle, agent) = world.start(&first, 1).await;
    prints(&agent, &request("echo kept > /data/deep/file")).await;
    if world.capabilities.can_mount_images {
        assert_ne!(
            run(&agent, &request("head -c 100000000 /dev/zero > /data/deep/big"))
                .await
                .exit_code,
            0
        );
        prints(&agent, &request("rm /data/deep/big")).await;
    }
    world.driver.destroy(handle.id, 1).await.unwrap();

    world.driver.grow_volume(volume, 128 << 20).await.unwrap();
    let mut second = world.spec();
    second.mounts = vec![mount("/elsewhere", true)];
    let (handle, agent) = world.start(&second, 1).await;
    assert_eq!(prints(&agent, &request("cat /elsewhere/file")).await, "kept\n");
    assert_ne!(run(&agent, &request("touch /elsewhere/x")).await.exit_code, 0);
    world.driver.destroy(handle.id, 1).await.unwrap();
    world.driver.remove_volume(volume).await.unwrap();
    world.driver.remove_volume(volume).await.unwrap();
}

/// A link that a box put where a volume is mounted at the next start leads nowhere.
#[tokio::test]
async fn a_link_in_place_of_a_mount_is_refused() {
    let Some(world) = SandboxFixture::new().await else {
        return;
    };
    let mut spec = world.spec();
    let (handle, agent) = world.start(&spec, 1).await;
    let outside = world.path("outside");
    std::fs::create_dir(&outside).unwrap();
    prints(&agent, &request(&format!("ln -s {} data", outside.display()))).await;
    world
        .driver
        .stop(handle.id, 1, std::time::Duration::ZERO)
        .await
        .unwrap();
    spec.mounts = vec![VolumeMount {
        source: VolumeSource::Folder(outside.clone()),
        path: "/home/user/data/made".to_owned(),
        read_only: false,
    }];
    assert!(world.driver.start(&spec, 2).await.is_err());
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
    world.driver.destroy(handle.id, 2).await.unwrap();
}
