//! Addresses and refs that would be something else to git: an option, another transport, another line, another host.

use http::Method;
use serde_json::{Value, json};

use super::{github, with};
use crate::world::{Call, World};

const SCHEME: &str = "must be an address such as https://host/owner/repository";
const USER: &str = "must not contain a user or password; use an integration to provide a token";
const HOST: &str = "must name a host";
const PORT: &str = "must have a port between 1 and 65535";
const LETTERS: &str = "must have only letters, digits and . _ ~ / + @ - after the host";
const PARTS: &str = "must name a repository after the host, without empty parts or `..`";
const DASH: &str = "must not begin with a dash";
const CONTROL: &str = "must have no control characters and no leading or trailing spaces";
const NAME: &str = "must be a valid git ref name: letters, digits and . _ / - + = # % ,";
const BARE: &str = "must be the bare name of a branch, or refs/tags/<tag>";
const INSIDE: &str = "must be a path inside the repository";
const NO_UP: &str = "must be a path inside the repository, without `..`";

/// What is sent, and the reason it is refused with.
const URLS: [(&str, &str); 29] = [
    // Options.
    ("--upload-pack=touch /tmp/pwned", DASH),
    ("-u./evil", DASH),
    ("--config=core.sshCommand=evil", DASH),
    ("https://-oProxyCommand=evil/x", HOST),
    ("ssh://-oProxyCommand=evil/x", HOST),
    ("ssh://git@-oProxyCommand=evil/x", HOST),
    ("https://host/-x/y", PARTS),
    // Transports.
    ("ext::sh -c evil", SCHEME),
    ("ext::sh%20-c%20evil", SCHEME),
    ("fd::17/evil", SCHEME),
    ("transport::https://host/x", SCHEME),
    ("git://host/x", SCHEME),
    ("ftp://host/x", SCHEME),
    ("gopher://host/x", SCHEME),
    ("git@host:owner/repository", SCHEME),
    ("/srv/git/repository", SCHEME),
    ("../repository", SCHEME),
    ("HTTPS://host/x", SCHEME),
    (
        "file://host/srv/x",
        "must be file:///path for a repository on this machine",
    ),
    ("file:///srv/../etc/shadow", PARTS),
    // Another line, another word, another host.
    ("https://host/x\n--upload-pack=evil", CONTROL),
    ("https://host/x\0y", CONTROL),
    ("https://ho\u{202e}st/x", CONTROL),
    ("https://host/$(evil)", LETTERS),
    ("https://host/x?service=git-receive-pack", LETTERS),
    ("https://host/%2e%2e/x", LETTERS),
    ("https://user:password@host/x", USER),
    ("https://host\\@other/x", USER),
    ("https://host:0/x", PORT),
];
const REFS: [(&str, &str); 13] = [
    ("--upload-pack=evil", DASH),
    ("-b", DASH),
    ("refs/tags/-x", NAME),
    ("refs/heads/main", BARE),
    ("refs/remotes/origin/main", BARE),
    ("main:refs/heads/evil", NAME),
    ("main\\evil", NAME),
    ("main..evil", NAME),
    ("main^{commit}", NAME),
    ("@{-1}", NAME),
    ("main\n--evil", CONTROL),
    ("main evil", NAME),
    ("../../config", NAME),
];
const PATHS: [(&str, &str); 6] = [
    ("../../etc/passwd", NO_UP),
    ("/etc/passwd", INSIDE),
    (".git/config", NO_UP),
    ("a/.GIT/hooks/x", NO_UP),
    ("a\\b", INSIDE),
    ("--config", DASH),
];

async fn refused(world: &World, method: Method, path: &str, body: &Value, field: [&str; 2], msg: &str) {
    let call = Call::new(method, path).in_workspace(world.tenant).json(body);
    let answer = world.call(call).await.expect(422);
    let issue = json!({"loc": ["body", field[0], field[1]], "msg": msg, "type": "value_error"});
    assert_eq!(answer, json!({"detail": [issue]}), "{body}");
}

#[tokio::test]
async fn of_git_are_refused() {
    let world = World::new().await;
    let tables = [
        (["source_config", "repo_url"], &URLS[..]),
        (["source_revision_config", "repo_ref"], &REFS[..]),
        (["source_revision_config", "graph_config_path"], &PATHS[..]),
    ];
    let mut cases = 0;
    for (field, table) in tables {
        for (value, msg) in table {
            let body = with(github(), &format!("/{}/{}", field[0], field[1]), json!(value));
            refused(&world, Method::POST, "/v2/deployments", &body, field, msg).await;
            cases += 1;
        }
    }
    assert!(cases >= 40, "{cases} cases");
    assert_eq!(world.get("/v2/deployments").await.expect(200)["resources"], json!([]));

    // Of what may be changed, likewise; and a revision may be made with it too.
    let made = world.post("/v2/deployments", &github()).await.expect(201);
    let path = format!("/v2/deployments/{}", made["id"].as_str().unwrap());
    for (field, table) in &tables[1..] {
        for (value, msg) in *table {
            let body = json!({"source_revision_config": {field[1]: value}});
            refused(&world, Method::PATCH, &path, &body, *field, msg).await;
            refused(&world, Method::POST, &format!("{path}/revisions"), &body, *field, msg).await;
        }
    }
    let revisions = world.get(&format!("{path}/revisions")).await.expect(200);
    assert_eq!(revisions["resources"].as_array().unwrap().len(), 1);
}
