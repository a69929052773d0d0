//! Boxes of images, pulled from a registry on loopback.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use towpath_sandbox::image::RegistryLogin;
use towpath_sandbox::{BoxSpec, Driver as _, Error, ImageRequest, ImageSettings};
use uuid::Uuid;

use crate::fixture::{SandboxFixture, as_root, prints, request, run};
use crate::registry::{LoopbackTransport, Registry, add_file, add_programs, layer};

/// Everything that the commands of these tests call.
const PROGRAMS: [&str; 6] = ["/bin/cat", "/bin/id", "/bin/ls", "/bin/sh", "/bin/sleep", "/bin/touch"];
const PASSWD: &[u8] = b"root:x:0:0:root:/root:/bin/sh\napp:x:1234:1234:app:/srv:/bin/sh\n";

fn images() -> ImageSettings {
    ImageSettings {
        transport: Some(Arc::new(LoopbackTransport)),
        ..ImageSettings::default()
    }
}

fn request_of(registry: &Registry, tag: &str) -> ImageRequest {
    ImageRequest {
        name: registry.image(tag),
        login: Some(Registry::login()),
    }
}

/// Stores an image of two layers. False if this machine has no programs for it.
fn store_image(registry: &Registry) -> bool {
    let mut first = layer();
    if !add_programs(&mut first, &PROGRAMS) {
        eprintln!("skipped: the machine has no ldd to find the libraries of programs");
        return false;
    }
    add_file(&mut first, "etc/passwd", 0o644, PASSWD);
    add_file(&mut first, "srv/kept", 0o644, b"kept");
    add_file(&mut first, "srv/hidden", 0o644, b"hidden");
    let mut second = layer();
    add_file(&mut second, "srv/.wh.hidden", 0o644, b"");
    add_file(&mut second, "srv/added", 0o4755, b"added");
    let config = json!({"User": "app", "WorkingDir": "/srv/work", "Env": ["OF_IMAGE=1", "OVER=image"]});
    registry.store("v1", &config, vec![first, second]);
    true
}

#[tokio::test]
async fn a_box_runs_on_an_image() {
    let Some(world) = SandboxFixture::with_images(images()).await else {
        return;
    };
    let registry = Registry::new().await;
    if !store_image(&registry) {
        return;
    }
    let root = world.driver.prepare(&request_of(&registry, "v1")).await.unwrap();
    let mut spec = BoxSpec { root, ..world.spec() };
    spec.env.insert("OVER".to_owned(), "box".to_owned());
    let (handle, agent) = world.start(&spec, 1).await;

    let seen = prints(
        &agent,
        &request("cat /srv/kept /srv/added; echo \" $OF_IMAGE $OVER $PWD\"; ls /srv"),
    )
    .await;
    assert_eq!(seen, "keptadded 1 box /srv/work\nadded\nkept\nwork\n");
    let user = if world.has_users() { "1234" } else { "0" };
    assert_eq!(prints(&agent, &request("id -u")).await.trim(), user);
    // Nothing of the host is there but what the agent needs.
    let found = prints(&agent, &as_root("ls /; ls /usr/share 2>&1 || :")).await;
    assert!(!found.contains("python") && !found.contains("doc\n"), "{found}");
    let written = run(&agent, &as_root("echo changed > /srv/kept && touch /srv/made")).await;
    assert_eq!(written.exit_code, 0, "{written:?}");
    let download = agent.download("/srv/kept", None).await.unwrap();
    assert_eq!(download.read_to_end().await.unwrap(), b"changed\n");

    // Another box has its own files, and a capture lies over the image.
    let layer = world.driver.capture_layer(handle.id, 1, Uuid::now_v7()).await;
    let (other, agent) = world
        .start(
            &BoxSpec {
                id: Uuid::now_v7(),
                ..spec.clone()
            },
            1,
        )
        .await;
    assert_eq!(prints(&agent, &request("cat /srv/kept")).await, "kept");
    world.driver.destroy(other.id, 1).await.unwrap();
    if world.capabilities.can_freeze {
        let layer = layer.unwrap();
        let mut root = spec.root.clone();
        root.layers.push(layer.id);
        let captured = BoxSpec {
            id: Uuid::now_v7(),
            root,
            ..spec.clone()
        };
        let (other, agent) = world.start(&captured, 1).await;
        assert_eq!(
            prints(&agent, &request("cat /srv/kept /srv/added")).await,
            "changed\nadded"
        );
        world.driver.destroy(other.id, 1).await.unwrap();
    } else {
        eprintln!("skipped: {}", world.capabilities.missing.join("; "));
    }

    // A second platform starts it again without the registry.
    world.driver.stop(handle.id, 1, Duration::ZERO).await.unwrap();
    registry.requests();
    let driver = world.reopen();
    let again = driver.start(&spec, 2).await.unwrap();
    assert_eq!(
        prints(&driver.agent(&again), &request("cat /srv/kept")).await,
        "changed\n"
    );
    assert_eq!(registry.requests(), Vec::<String>::new());
    driver.destroy(again.id, 2).await.unwrap();
}

#[tokio::test]
async fn images_are_for_those_who_may_read_them() {
    let Some(world) = SandboxFixture::with_images(images()).await else {
        return;
    };
    let registry = Registry::new().await;
    if !store_image(&registry) {
        return;
    }
    let with = |login| ImageRequest {
        name: registry.image("v1"),
        login,
    };
    let wrong = RegistryLogin {
        password: "wrong-password".to_owned(),
        ..Registry::login()
    };
    for login in [None, Some(wrong.clone())] {
        let error = world.driver.prepare(&with(login)).await.unwrap_err();
        assert!(matches!(error, Error::Denied(_)), "{error}");
        assert!(!format!("{error:?}").contains("wrong-password"), "{error:?}");
    }
    let root = world.driver.prepare(&request_of(&registry, "v1")).await.unwrap();
    let layers = registry
        .requests()
        .iter()
        .filter(|path| path.contains("/blobs/"))
        .count();
    assert!(layers > 0);
    // It is here now, and still not theirs: not even by its digest.
    for name in [registry.image("v1"), root.base.clone()] {
        for login in [None, Some(wrong.clone())] {
            let asked = ImageRequest {
                name: name.clone(),
                login,
            };
            let error = world.driver.prepare(&asked).await.unwrap_err();
            assert!(matches!(error, Error::Denied(_)), "{error}");
        }
    }
    registry.requests();
    assert_eq!(world.driver.prepare(&request_of(&registry, "v1")).await.unwrap(), root);
    let again = registry.requests();
    assert!(!again.iter().any(|path| path.contains("/blobs/")), "{again:?}");
    let missing = world.driver.prepare(&request_of(&registry, "v2")).await.unwrap_err();
    assert!(matches!(missing, Error::NotFound(_)), "{missing}");
    let elsewhere = ImageRequest::anonymous("registry.example/app");
    let refused = world.driver.prepare(&elsewhere).await.unwrap_err();
    assert!(refused.to_string().contains("is not on loopback"), "{refused}");
}

#[tokio::test]
async fn an_image_outlives_a_sweep_as_long_as_it_is_new_or_named() {
    let Some(world) = SandboxFixture::with_images(images()).await else {
        return;
    };
    let registry = Registry::new().await;
    if !store_image(&registry) {
        return;
    }
    let root = world.driver.prepare(&request_of(&registry, "v1")).await.unwrap();
    let used = || -> Vec<_> {
        let found = std::fs::read_dir(world.path("boxes/images")).unwrap();
        found.map(|entry| entry.unwrap().path().join("used")).collect()
    };
    let age = || {
        for path in used() {
            let file = std::fs::File::options().write(true).open(path).unwrap();
            file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        }
    };
    let nothing = BTreeSet::new();
    world.driver.remove_unused_images(&nothing).await.unwrap();
    assert_eq!(used().len(), 1);
    age();
    let named = BTreeSet::from([root.base.clone()]);
    world.driver.remove_unused_images(&named).await.unwrap();
    assert_eq!(used().len(), 1);
    // A start is a use.
    let spec = BoxSpec { root, ..world.spec() };
    let (handle, _agent) = world.start(&spec, 1).await;
    world.driver.remove_unused_images(&nothing).await.unwrap();
    assert_eq!(used().len(), 1);
    world.driver.destroy(handle.id, 1).await.unwrap();
    age();
    world.driver.remove_unused_images(&nothing).await.unwrap();
    assert_eq!(used().len(), 0);
    let missing = world
        .driver
        .start(
            &BoxSpec {
                id: Uuid::now_v7(),
                ..spec
            },
            1,
        )
        .await
        .unwrap_err();
    assert!(matches!(missing, Error::NotFound(_)), "{missing}");
}

#[tokio::test]
async fn plain_names_of_public_images_stand_for_the_host() {
    let Some(world) = SandboxFixture::new().await else {
        return;
    };
    for name in ["host", "python:3.12-slim", "ubuntu:24.04", "debian"] {
        let root = world.driver.prepare(&ImageRequest::anonymous(name)).await.unwrap();
        assert_eq!(root.base, "host", "{name}");
    }
    for name in [
        "docker.io/library/python:3.12",
        "registry.example/team/python",
        "alpine",
    ] {
        let error = world.driver.prepare(&ImageRequest::anonymous(name)).await.unwrap_err();
        assert!(matches!(error, Error::Unsupported(_)), "{name}: {error}");
    }
    let error = world
        .driver
        .prepare(&ImageRequest::anonymous("UPPER"))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "{error}");
}
