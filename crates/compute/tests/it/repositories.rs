use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use towpath_compute::git::{Repository, Token};
use towpath_compute::{Error, Log};
use towpath_domain::Secret;
use towpath_domain::git::{CommitSha, RepoRef, RepoUrl, TokenHost, Transport};
use towpath_outbound::{Guard, Policy};

use crate::fixture::{TestRepository, TestRoot, lines, write};

#[tokio::test]
async fn branches_and_tags_become_trees() {
    let home = TestRoot::new();
    let origin = home.repository();
    let first = origin.git(&["rev-parse", "HEAD"]);
    origin.git(&["tag", "-a", "v1", "-m", "annotated"]);
    origin.git(&["tag", "light"]);
    let second = origin.commit("dir/more.txt", "more");
    origin.git(&["branch", "feature/x"]);

    assert_eq!(home.resolve(&origin.url(), "main").await.unwrap().as_str(), second);
    assert_eq!(home.resolve(&origin.url(), "feature/x").await.unwrap().as_str(), second);
    // The commit, not the tag's own object.
    assert_eq!(
        home.resolve(&origin.url(), "refs/tags/v1").await.unwrap().as_str(),
        first
    );
    assert_eq!(
        home.resolve(&origin.url(), "refs/tags/light").await.unwrap().as_str(),
        first
    );
    for missing in ["nothing", "v1", "refs/tags/main", "ain", "x"] {
        let refused = home.resolve(&origin.url(), missing).await.unwrap_err();
        assert!(matches!(refused, Error::Refused(_)), "{missing}: {refused:?}");
        assert!(refused.to_string().starts_with("repo_ref: "), "{refused}");
    }

    let tree = home.fetch(&origin, "main", &Log::none()).await.unwrap();
    assert_eq!(std::fs::read_to_string(tree.join("dir/more.txt")).unwrap(), "more");
    assert!(!tree.join(".git").exists(), "the history came along");
    assert_eq!(home.scratch(), 0);
}

#[tokio::test]
async fn a_commit_is_fetched_also_when_its_branch_went_on() {
    let home = TestRoot::new();
    let origin = home.repository();
    let first = origin.commit("a.txt", "1");
    origin.commit("a.txt", "2");
    let sha = CommitSha::parse(&first).unwrap();
    let tree = home.fetch_commit(&origin, "main", &sha, &Log::none()).await.unwrap();
    assert_eq!(std::fs::read_to_string(tree.join("a.txt")).unwrap(), "1");
}

#[tokio::test]
async fn only_transports_that_are_listed_are_used() {
    let mut home = TestRoot::new();
    let origin = home.repository();
    home.settings.transports.clear();
    for url in [
        origin.url(),
        "http://example.org/x".to_owned(),
        "ssh://git@example.org/x".to_owned(),
    ] {
        let refused = home.resolve(&url, "main").await.unwrap_err();
        assert!(
            refused.to_string().contains("deployments.git_transports"),
            "{url}: {refused}"
        );
    }
}

#[tokio::test]
async fn addresses_inside_are_not_asked() {
    let mut home = TestRoot::new();
    home.settings.transports = vec![Transport::Http, Transport::Ssh];
    for url in [
        "https://127.0.0.1/x",
        "https://localhost/x",
        "https://2130706433/x",
        "https://0x7f.1/x",
        "https://10.0.0.1/x",
        "https://192.168.1.1/x",
        "https://169.254.169.254/latest/meta-data",
        "https://100.100.100.200/x",
        "https://0.0.0.0/x",
        "https://[::1]/x",
        "https://[::ffff:127.0.0.1]/x",
        "https://[64:ff9b::7f00:1]/x",
        "https://[fd00:ec2::254]/x",
        "http://127.0.0.1:1/x",
        "ssh://git@127.0.0.1/x",
    ] {
        let refused = home.resolve(url, "main").await.unwrap_err();
        // A form that no resolver takes for an address is as good.
        assert!(refused.to_string().starts_with("repo_url: "), "{url}: {refused}");
    }
}

/// A listener that counts who connects and keeps what the first one said.
async fn ear() -> (u16, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let to = Arc::clone(&heard);
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = vec![0; 8192];
            let read = stream.read(&mut head).await.unwrap();
            to.lock()
                .unwrap()
                .push(String::from_utf8_lossy(&head[..read]).into_owned());
            let answer = "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/elsewhere\r\nContent-Length: 0\r\n\r\n";
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    (port, heard)
}

#[tokio::test]
async fn a_token_is_not_sent_over_plain_http_and_redirects_lead_nowhere() {
    let mut home = TestRoot::new();
    home.settings.transports = vec![Transport::Http];
    home.settings.guard = Guard::new(Policy::development());
    let (port, heard) = ear().await;
    let url = RepoUrl::parse(&format!("http://localhost:{port}/owner/repo")).unwrap();
    let token = Token {
        secret: Secret::new("ghp_canary0123456789"),
        host: TokenHost::of_api(&format!("http://localhost:{port}/api/v3")).unwrap(),
    };
    let repository = Repository::new(&home.settings, &home.root, &url, Some(&token)).unwrap();
    let failed = repository
        .resolve(&RepoRef::parse("main").unwrap(), &CancellationToken::new())
        .await
        .unwrap_err();
    let heard = heard.lock().unwrap();
    assert_eq!(heard.len(), 1, "it went on to where it was sent: {heard:?}");
    let said = heard[0].to_lowercase();
    assert!(!said.contains("authorization"), "{said}");
    assert!(
        heard[0].starts_with("GET /owner/repo/info/refs?service=git-upload-pack"),
        "{}",
        heard[0]
    );
    let text = format!("{failed} {failed:?}");
    assert!(!text.contains("canary") && !text.contains("eC1hY2Nlc3M"), "{text}");
}

#[tokio::test]
async fn hooks_filters_and_configuration_of_others_do_not_run() {
    let home = TestRoot::new();
    let origin = home.repository();
    let trap = home.folder.path().join("trapped");
    let command = format!("touch {}", trap.display());
    // Of the tree.
    write(
        &origin.path.join(".gitattributes"),
        "*.txt filter=trap diff=trap merge=trap\n*.bin filter=lfs\n",
    );
    write(&origin.path.join("a.txt"), "text");
    write(
        &origin.path.join("b.bin"),
        "version https://git-lfs.github.com/spec/v1\n",
    );
    write(
        &origin.path.join(".gitmodules"),
        "[submodule \"x\"]\n\tpath = x\n\turl = ext::sh -c id\n",
    );
    origin.commit_all();
    // Of the repository itself, which is another's; set up last, because they would run for its owner.
    for hook in ["post-checkout", "reference-transaction", "pre-receive", "post-update"] {
        let path = origin.path.join(".git/hooks").join(hook);
        write(&path, &format!("#!/bin/sh\n{command}\n"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    origin.git(&["config", "uploadpack.packObjectsHook", &command]);
    origin.git(&["config", "filter.trap.smudge", &command]);
    let tree = home.fetch(&origin, "main", &Log::none()).await.unwrap();
    assert_eq!(std::fs::read_to_string(tree.join("a.txt")).unwrap(), "text");
    assert!(!trap.exists(), "something of the repository ran");
}

#[tokio::test]
async fn a_submodule_is_left_out_and_named() {
    let home = TestRoot::new();
    let origin = home.repository();
    let sha = origin.git(&["rev-parse", "HEAD"]);
    origin.git(&["update-index", "--add", "--cacheinfo", &format!("160000,{sha},sub")]);
    origin.git(&["commit", "--quiet", "--message", "sub"]);
    let (log, kept) = lines();
    let tree = home.fetch(&origin, "main", &log).await.unwrap();
    assert!(tree.join("langgraph.json").is_file());
    let kept = kept.lock().unwrap();
    assert!(
        kept.iter().any(|line| line == "the submodule sub was skipped"),
        "{kept:?}"
    );
}

#[tokio::test]
async fn links_stay_inside() {
    let home = TestRoot::new();
    let origin = home.repository();
    symlink("langgraph.json", origin.path.join("inside")).unwrap();
    symlink("nowhere", origin.path.join("dangling")).unwrap();
    origin.commit_all();
    let (log, kept) = lines();
    let tree = home.fetch(&origin, "main", &log).await.unwrap();
    assert!(tree.join("inside").is_file());
    assert!(tree.join("dangling").symlink_metadata().is_err());
    assert!(kept.lock().unwrap().iter().any(|line| line.contains("dangling")));
    std::fs::remove_dir_all(&tree).unwrap();

    for target in ["/etc/passwd", "../../../../../../../etc/passwd", "..", "/"] {
        let place = origin.path.join("leads-out");
        let _ = std::fs::remove_file(&place);
        symlink(target, &place).unwrap();
        origin.commit_all();
        let refused = home.fetch(&origin, "main", &Log::none()).await.unwrap_err();
        assert_eq!(
            refused.to_string(),
            "the link leads-out leads out of the source",
            "{target}"
        );
        assert!(!tree.exists());
    }
}

#[tokio::test]
async fn trees_have_a_size() {
    let mut home = TestRoot::new();
    let origin = home.repository();
    // Small as a pack, large as a file.
    origin.commit("zeros", &"0".repeat(8 << 20));
    home.settings.tree.bytes = 4 << 20;
    let refused = home.fetch(&origin, "main", &Log::none()).await.unwrap_err();
    assert_eq!(refused.to_string(), "the source is larger than 4 MB");
    home.settings.tree.bytes = 64 << 20;
    home.settings.tree.entries = 1;
    let refused = home.fetch(&origin, "main", &Log::none()).await.unwrap_err();
    assert_eq!(refused.to_string(), "the source has more than 1 files");
    assert_eq!(home.scratch(), 0);
}

/// Commits attributes without their taking effect on the files that are here.
fn attributes(home: &TestRoot, origin: &TestRepository, text: &str) {
    let aside = home.folder.path().join("attributes");
    write(&aside, text);
    let blob = origin.git(&["hash-object", "-w", "--no-filters", aside.to_str().unwrap()]);
    origin.git(&[
        "update-index",
        "--add",
        "--cacheinfo",
        &format!("100644,{blob},.gitattributes"),
    ]);
    origin.git(&["commit", "--quiet", "--message", "attributes"]);
}

#[tokio::test]
async fn files_are_written_as_they_are_kept() {
    let mut home = TestRoot::new();
    let origin = home.repository();
    // As their attributes have them, the first takes ten times its size, the others two and four times.
    let texts = [
        ("ids.txt", "$Id$\n".repeat(1 << 18)),
        ("lines.txt", "\n".repeat(1 << 19)),
        ("wide.txt", "wide\n".repeat(1 << 16)),
    ];
    for (file, text) in &texts {
        origin.commit(file, text);
    }
    let said = "ids.txt ident\nlines.txt text eol=crlf\nwide.txt text working-tree-encoding=UTF-32\n";
    attributes(&home, &origin, said);
    home.settings.tree.bytes = 4 << 20;
    let tree = home.fetch(&origin, "main", &Log::none()).await.unwrap();
    for (file, text) in &texts {
        assert!(std::fs::read_to_string(tree.join(file)).unwrap() == *text, "{file}");
    }
}

#[tokio::test]
async fn attributes_have_a_size() {
    let home = TestRoot::new();
    let origin = home.repository();
    attributes(&home, &origin, &"a b\n".repeat(5 << 18));
    let refused = home.fetch(&origin, "main", &Log::none()).await.unwrap_err();
    assert_eq!(refused.to_string(), "the source has more than 4 MB of .gitattributes");
    assert_eq!(home.scratch(), 0);
}

#[tokio::test]
async fn folders_are_counted_with_the_files() {
    let mut home = TestRoot::new();
    let origin = home.repository();
    origin.commit("a/b/c/d/e/f/g/h/file", "");
    home.settings.tree.entries = 9;
    let refused = home.fetch(&origin, "main", &Log::none()).await.unwrap_err();
    assert_eq!(refused.to_string(), "the source has more than 9 files");
    home.settings.tree.entries = 10;
    home.fetch(&origin, "main", &Log::none()).await.unwrap();
}

#[tokio::test]
async fn what_is_interrupted_leaves_nothing() {
    let home = TestRoot::new();
    let origin = home.repository();
    let url = RepoUrl::parse(&origin.url()).unwrap();
    let repository = Repository::new(&home.settings, &home.root, &url, None).unwrap();
    let cancel = CancellationToken::new();
    cancel.cancel();
    let stopped = repository
        .resolve(&RepoRef::parse("main").unwrap(), &cancel)
        .await
        .unwrap_err();
    assert!(matches!(stopped, Error::Cancelled), "{stopped:?}");
    assert_eq!(home.scratch(), 0);
}
