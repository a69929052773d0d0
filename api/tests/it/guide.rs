//! The guide: each page of `docs` is served, is in the contents and the search, and its links lead somewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use http::Method;
use serde_json::Value;
use towpath_api::Settings;

use crate::world::{Answer, Call, World};

/// Where files are that are no pages.
const REPOSITORY: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/");

const AT_THE_ROOT: [&str; 5] = [
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "SECURITY.md",
];

fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap().to_owned()
}

/// The files that have to be pages, from the root of the sources.
fn files() -> Vec<String> {
    let root = root();
    let mut files: Vec<String> = AT_THE_ROOT.map(str::to_owned).into();
    let mut folders = vec![root.join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                files.push(path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    files.sort();
    assert!(files.len() > 30, "{files:?}");
    files
}

/// Where the page of a file is.
fn address(file: &str) -> String {
    let stem = file.strip_suffix(".md").unwrap();
    let name = match stem.strip_prefix("docs/") {
        Some("README") => return "/guide".to_owned(),
        Some(below) => below.strip_suffix("/README").unwrap_or(below).to_owned(),
        None if stem == "README" => "overview".to_owned(),
        None => stem.to_lowercase(),
    };
    format!("/guide/{name}")
}

/// The values of an attribute, each after this text.
fn values<'a>(html: &'a str, before: &'a str) -> impl Iterator<Item = &'a str> {
    html.split(before).skip(1).filter_map(|rest| rest.split('"').next())
}

/// All pages by their addresses.
async fn pages(world: &World) -> BTreeMap<String, Answer> {
    let mut pages = BTreeMap::new();
    for file in files() {
        let address = address(&file);
        let page = world.open(Method::GET, &address).await;
        assert_eq!(page.status, 200, "{file} at {address}");
        pages.insert(address, page);
    }
    pages
}

#[tokio::test]
async fn every_page_is_served() {
    let world = World::new().await;
    for (address, page) in pages(&world).await {
        assert_eq!(page.headers["content-type"], "text/html; charset=utf-8", "{address}");
        let article = page.text.split("<article>").nth(1).unwrap();
        let article = article.split("</article>").next().unwrap();
        assert_eq!(article.matches("<h1 id=").count(), 1, "{address}");
        assert!(!article.contains("<!--") && !article.contains("style="), "{address}");
        // As on the dashboard: nothing from elsewhere, and only the script that the page names.
        let policy = page.headers["content-security-policy"].to_str().unwrap();
        assert!(
            policy.starts_with("default-src 'none'") && !policy.contains("unsafe"),
            "{policy}"
        );
        let nonce = values(&page.text, "nonce=\"").collect::<Vec<_>>();
        assert!(
            nonce.len() == 1 && policy.contains(&format!("'nonce-{}'", nonce[0])),
            "{address}: {nonce:?}, {policy}"
        );
        assert_eq!(page.text.matches("<script").count(), 1, "{address}");
        for source in values(&page.text, " src=\"").chain(values(&page.text, "srcset=\"")) {
            assert!(source.starts_with("/guide/"), "{address} loads {source}");
        }
    }
}

#[tokio::test]
async fn markdown_is_that_of_the_file() {
    let world = World::new().await;
    for file in files() {
        let text = std::fs::read_to_string(root().join(&file)).unwrap();
        let address = address(&file);
        let beside = match file.strip_prefix("docs/") {
            Some(below) => format!("/guide/{below}"),
            None => format!("{address}.md"),
        };
        let short = if address == "/guide" {
            "/guide/index.md".to_owned()
        } else {
            format!("{address}.md")
        };
        for at in [beside, short] {
            let answer = world.open(Method::GET, &at).await;
            assert_eq!(answer.status, 200, "{at}");
            assert_eq!(answer.headers["content-type"], "text/markdown; charset=utf-8", "{at}");
            assert!(answer.text == text, "{at} is not {file}");
        }
    }
}

/// With those of the contents, the pages before and after, and images.
#[tokio::test]
async fn every_link_leads_somewhere() {
    let world = World::new().await;
    let pages = pages(&world).await;
    let mut wrong = BTreeSet::new();
    let mut checked = 0;
    for (address, page) in &pages {
        let links = [
            "<a href=\"",
            "rel=\"prev\" href=\"",
            "rel=\"next\" href=\"",
            "<img src=\"",
            "srcset=\"",
            "<link rel=\"alternate\" href=\"",
        ];
        let links: BTreeSet<&str> = links.iter().flat_map(|before| values(&page.text, before)).collect();
        for link in links {
            checked += 1;
            let (path, anchor) = link
                .split_once('#')
                .map_or((link, None), |(path, anchor)| (path, Some(anchor)));
            let is_right = if let Some(file) = path.strip_prefix(REPOSITORY) {
                root().join(file).exists()
            } else if path.contains("://") || path.starts_with("mailto:") {
                true
            } else if let Some(target) = pages.get(if path.is_empty() { address.as_str() } else { path }) {
                anchor.is_none_or(|anchor| target.text.contains(&format!(" id=\"{anchor}\"")))
            } else if path.starts_with("/ui/") {
                // Whoever has not signed in is asked to.
                world.open(Method::GET, path).await.status == 401
            } else {
                path.starts_with('/') && bytes(&world, path).await
            };
            if !is_right {
                wrong.insert(format!("{address}: {link}"));
            }
        }
    }
    println!("{checked} links checked");
    assert!(checked > 1000, "only {checked} links were checked");
    assert!(wrong.is_empty(), "links that lead nowhere:\n{wrong:#?}");
}

/// Whether something is served there, which need not be text.
async fn bytes(world: &World, path: &str) -> bool {
    use tower::ServiceExt as _;
    let request = http::Request::builder()
        .uri(path)
        .body(axum::body::Body::empty())
        .unwrap();
    world.router.clone().oneshot(request).await.unwrap().status() == 200
}

#[tokio::test]
async fn the_contents_and_the_search_have_every_page() {
    let world = World::new().await;
    let pages = pages(&world).await;
    let index = world.open(Method::GET, "/guide/search.json").await.expect(200);
    let sections = index.as_array().unwrap();
    let text = |section: &Value, name: &str| section[name].as_str().unwrap().to_owned();
    for (address, page) in &pages {
        // A folder is open where one of its pages is read, so each page shows itself.
        let contents = page.text.split("<aside class=\"contents\">").nth(1).unwrap();
        let contents = contents.split("</aside>").next().unwrap();
        let here = format!("<a href=\"{address}\" aria-current=\"page\">");
        assert_eq!(contents.matches(&here).count(), 1, "{address} is not in docs/README.md");
        assert_eq!(contents.matches("aria-current").count(), 1, "{address}");

        let found: Vec<_> = sections
            .iter()
            .filter(|section| text(section, "address").split('#').next() == Some(address.as_str()))
            .collect();
        assert!(!found.is_empty(), "{address} cannot be found");
        for section in found {
            let at = text(section, "address");
            if let Some((_, anchor)) = at.split_once('#') {
                assert!(page.text.contains(&format!(" id=\"{anchor}\"")), "{at}");
                assert!(!text(section, "heading").is_empty(), "{at}");
            }
        }
    }
    let glossary = sections
        .iter()
        .find(|section| text(section, "address") == "/guide/glossary");
    assert_eq!(text(glossary.unwrap(), "page"), "Glossary");
    // What stands on a page can be found.
    let has = |word: &str| sections.iter().any(|section| text(section, "text").contains(word));
    assert!(has("pool") && has("towpath keys create") && !has("a word of no page"));
}

#[tokio::test]
async fn each_page_is_read_after_another() {
    let world = World::new().await;
    let pages = pages(&world).await;
    let mut read = BTreeSet::new();
    let mut at = "/guide".to_owned();
    loop {
        assert!(read.insert(at.clone()), "{at} comes twice");
        let page = &pages[&at];
        let Some(next) = values(&page.text, "rel=\"next\" href=\"").next() else {
            break;
        };
        let back = values(&pages[next].text, "rel=\"prev\" href=\"").next();
        assert_eq!(back, Some(at.as_str()), "before {next}");
        at = next.to_owned();
    }
    let all: BTreeSet<String> = pages.keys().cloned().collect();
    assert_eq!(read, all);
}

#[tokio::test]
async fn programs_are_told_of_every_page() {
    let world = World::new().await;
    let list = world.open(Method::GET, "/llms.txt").await;
    assert_eq!(list.headers["content-type"], "text/plain; charset=utf-8");
    let first = list.text.lines().nth(2).unwrap();
    assert!(
        list.text.starts_with("# Towpath\n\n> ") && first.contains("platform for AI agents"),
        "{}",
        list.text
    );
    let whole = world.open(Method::GET, "/llms-full.txt").await;
    for file in files() {
        let text = std::fs::read_to_string(root().join(&file)).unwrap();
        assert!(whole.text.contains(&text), "{file} is missing");
        let at = match file.strip_prefix("docs/") {
            // The list stands for it.
            Some("README.md") => continue,
            Some(below) => format!("/guide/{below}"),
            None => format!("{}.md", address(&file)),
        };
        assert!(list.text.contains(&format!("]({at})")), "{file} is missing");
    }
    for line in list.text.lines().filter(|line| line.starts_with("- [")) {
        let link = line.split("](").nth(1).and_then(|rest| rest.split(')').next()).unwrap();
        assert_eq!(world.open(Method::GET, link).await.status, 200, "{line}");
    }
}

#[tokio::test]
async fn what_a_browser_has_is_not_sent_again() {
    let world = World::new().await;
    for path in [
        "/guide",
        "/guide/traces",
        "/guide/traces.md",
        "/guide/search.json",
        "/guide/assets/guide.css",
        "/guide/assets/guide.js",
        "/llms.txt",
    ] {
        let first = world.open(Method::GET, path).await;
        assert_eq!(first.status, 200, "{path}");
        assert_eq!(first.headers["cache-control"], "no-cache", "{path}");
        let tag = first.headers["etag"].to_str().unwrap();
        let again = |known: &str| world.call(Call::new(Method::GET, path).header("if-none-match", known));
        for known in [tag.to_owned(), format!("\"x\", W/{tag}")] {
            let again = again(&known).await;
            assert_eq!((again.status.as_u16(), again.text.as_str()), (304, ""), "{path}");
            // The page that is kept names the nonce of this policy.
            for header in ["etag", "content-security-policy"] {
                assert_eq!(again.headers[header], first.headers[header], "{path}");
            }
        }
        assert_eq!(again("\"x\"").await.text, first.text, "{path}");

        let head = world.open(Method::HEAD, path).await;
        assert_eq!((head.status.as_u16(), head.text.as_str()), (200, ""), "{path}");
        assert_eq!(head.headers["etag"], first.headers["etag"], "{path}");
    }
}

#[tokio::test]
async fn what_is_not_in_the_guide() {
    let world = World::new().await;
    for path in [
        "/guide/nothing",
        "/guide/nothing.md",
        "/guide/../Cargo.toml",
        "/guide/%2e%2e/Cargo.toml",
    ] {
        let page = world.open(Method::GET, path).await;
        assert_eq!(page.status, 404, "{path}");
        assert!(
            page.text.contains("No such page") && page.text.contains("/guide/glossary"),
            "{path}"
        );
    }
    for (path, leads) in [("/guide/", "/guide"), ("/guide/traces/", "/guide/traces")] {
        let page = world.open(Method::GET, path).await;
        assert_eq!(page.status, 303, "{path}");
        assert_eq!(page.headers["location"], leads, "{path}");
    }
    assert_eq!(world.open(Method::POST, "/guide/traces").await.status, 405);
    // As with the dashboard, a page of elsewhere must not get a server of this machine by a name of its own.
    let world = World::with(Settings {
        loopback: true,
        ..Settings::default()
    })
    .await;
    let led = Call::new(Method::GET, "/guide").header("host", "evil.example:8400");
    assert_eq!(world.call(led).await.status, 421);
}

#[tokio::test]
async fn the_dashboard_leads_to_the_guide() {
    let world = World::new().await;
    let signed_in = crate::dashboard::sign_in(&world, crate::world::KEY).await;
    let cookie = crate::dashboard::cookie(&signed_in);
    let page = world
        .call(Call::new(Method::GET, "/ui/queues").header("cookie", &cookie))
        .await;
    assert!(page.text.contains("<a href=\"/guide\">Guide</a>"), "{}", page.text);
}
