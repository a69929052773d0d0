//! The guide at `/guide`: the pages of `docs` and some beside it, which are part of the program. People read them as
//! pages, programs as Markdown and from `/llms.txt` on. Nothing in it is secret, so that it needs no key.

mod contents;
mod highlight;
mod markdown;
mod pages;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::OnceLock;

use askama::Template;
use axum::response::{IntoResponse, Redirect, Response};
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use http::{HeaderMap, HeaderValue, StatusCode, Uri};
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use towpath_domain::RequestId;

use self::contents::{Contents, Entry};
use self::markdown::Rendered;
use self::pages::{BASE, Library, OVERVIEW, Page};

const HTML: &str = "text/html; charset=utf-8";
const MARKDOWN: &str = "text/markdown; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";

/// Put together when somebody first asks for a page.
static SITE: OnceLock<Site> = OnceLock::new();

/// Whatever is served here, by its path.
pub(super) async fn get(uri: Uri, headers: HeaderMap) -> Response {
    site().await.answer(uri.path(), &headers)
}

async fn site() -> &'static Site {
    if let Some(site) = SITE.get() {
        return site;
    }
    // It takes a core for a moment, so not on a thread that answers others.
    let built = tokio::task::spawn_blocking(|| SITE.get_or_init(Site::build)).await;
    built.expect("the pages can be put together: tests do")
}

/// All answers: as many as there are pages, images and files beside them.
struct Site {
    files: HashMap<String, File>,
    missing: File,
    policy: HeaderValue,
}

struct File {
    kind: &'static str,
    tag: HeaderValue,
    content: Bytes,
}

impl File {
    fn new(kind: &'static str, content: impl Into<Bytes>) -> Self {
        let content = content.into();
        let digest = hex::encode(&Sha256::digest(&content)[..16]);
        Self {
            kind,
            tag: HeaderValue::from_str(&format!("\"{digest}\"")).expect("hex digits may stand in a header"),
            content,
        }
    }

    /// Whether the caller has this content.
    fn is_known(&self, headers: &HeaderMap) -> bool {
        let known = headers.get(IF_NONE_MATCH).and_then(|known| known.to_str().ok());
        known.is_some_and(|known| {
            known.split(',').map(str::trim).any(|known| {
                let tag = known.strip_prefix("W/").unwrap_or(known);
                known == "*" || tag.as_bytes() == self.tag.as_bytes()
            })
        })
    }
}

impl Site {
    fn build() -> Self {
        let library = Library::embedded();
        let contents = Contents::of(&library);
        // One for as long as the process lasts: a browser that kept a page is sent the headers that go with it. Nothing in
        // a page comes from a request, so that nobody can put a script beside ours.
        let nonce = RequestId::new().to_string();
        let policy = format!(
            "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'self'; img-src 'self'; connect-src 'self'; \
             form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
        );
        let mut files = HashMap::new();
        let mut found = Vec::new();
        for page in &library.pages {
            let rendered = markdown::render(page.text, |to| library.link(page.file, to));
            let html = framed(page, &rendered, &contents, &library, &nonce);
            files.insert(page.address.clone(), File::new(HTML, html));
            let source = Bytes::from_static(page.text.as_bytes());
            let short = if page.address == BASE {
                format!("{BASE}/index.md")
            } else {
                format!("{}.md", page.address)
            };
            files.insert(short, File::new(MARKDOWN, source.clone()));
            files.insert(page.source(), File::new(MARKDOWN, source));
            found.extend(searchable(page, rendered));
        }
        for (_, address, content) in Library::images() {
            files.insert(
                address.clone(),
                File::new(image_type(&address), Bytes::from_static(content)),
            );
        }
        let index = serde_json::to_vec(&found).expect("texts are JSON");
        for (name, file) in [
            ("search.json", File::new("application/json", index)),
            ("assets/guide.css", File::new("text/css; charset=utf-8", STYLE)),
            ("assets/guide.js", File::new("text/javascript; charset=utf-8", SCRIPT)),
        ] {
            files.insert(format!("{BASE}/{name}"), file);
        }
        files.insert("/llms.txt".to_owned(), File::new(TEXT, overview(&contents, &library)));
        files.insert("/llms-full.txt".to_owned(), File::new(TEXT, whole(&contents, &library)));
        Self {
            files,
            missing: File::new(HTML, missing(&contents, &nonce)),
            policy: HeaderValue::from_str(&policy).expect("a nonce may stand in a header"),
        }
    }

    fn answer(&self, path: &str, headers: &HeaderMap) -> Response {
        let (status, file) = match self.files.get(path) {
            Some(file) if file.is_known(headers) => (StatusCode::NOT_MODIFIED, file),
            Some(file) => (StatusCode::OK, file),
            None => match path.strip_suffix('/').filter(|path| self.files.contains_key(*path)) {
                Some(path) => return Redirect::to(path).into_response(),
                None => (StatusCode::NOT_FOUND, &self.missing),
            },
        };
        let content = if status == StatusCode::NOT_MODIFIED {
            Bytes::new()
        } else {
            file.content.clone()
        };
        let headers = [
            (CONTENT_TYPE, HeaderValue::from_static(file.kind)),
            (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
            (CONTENT_SECURITY_POLICY, self.policy.clone()),
            (ETAG, file.tag.clone()),
        ];
        (status, headers, content).into_response()
    }
}

const STYLE: &[u8] = include_bytes!("../../assets/guide.css");
const SCRIPT: &[u8] = include_bytes!("../../assets/guide.js");

fn image_type(address: &str) -> &'static str {
    match address.rsplit('.').next() {
        Some("svg") => "image/svg+xml",
        Some("jpg") => "image/jpeg",
        Some("webp") => "image/webp",
        _ => "image/png",
    }
}

/// A section of a page, for the search.
#[derive(Serialize)]
struct SearchEntry {
    address: String,
    page: String,
    /// Empty for the page's beginning.
    heading: String,
    text: String,
}

fn searchable(page: &Page, rendered: Rendered) -> impl Iterator<Item = SearchEntry> {
    let (address, title) = (page.address.clone(), page.title.clone());
    rendered.sections.into_iter().map(move |section| {
        let is_title = section.anchor.is_empty();
        SearchEntry {
            address: if is_title {
                address.clone()
            } else {
                format!("{address}#{}", section.anchor)
            },
            page: title.clone(),
            heading: if is_title { String::new() } else { section.heading },
            text: section.text,
        }
    })
}

/// The frame around a page.
#[derive(Template)]
#[template(path = "ui/guide.html")]
struct Frame<'a> {
    title: &'a str,
    nonce: &'a str,
    index: Link<'a>,
    groups: Vec<Group<'a>>,
    /// Headings of the page: anchor and text.
    headings: Vec<(&'a str, &'a str)>,
    content: &'a str,
    previous: Option<Link<'a>>,
    next: Option<Link<'a>>,
    /// Where its Markdown is.
    source: Option<String>,
}

/// A heading of the contents, and what stands below it.
struct Group<'a> {
    title: &'a str,
    items: Vec<Item<'a>>,
}

struct Item<'a> {
    link: Link<'a>,
    /// Pages below it, where the reader is at one of them or at it.
    children: Vec<Link<'a>>,
}

struct Link<'a> {
    title: &'a str,
    address: &'a str,
    /// Whether it leads to the page on which it stands.
    is_here: bool,
}

impl<'a> Link<'a> {
    fn of(entry: &'a Entry, here: &str) -> Self {
        Self {
            title: &entry.title,
            address: &entry.address,
            is_here: entry.address == here,
        }
    }
}

impl<'a> Frame<'a> {
    /// Without anything of a page.
    fn new(contents: &'a Contents, here: &str, nonce: &'a str) -> Self {
        let item = |entry: &'a Entry| {
            let is_open = entry.address == here || entry.children.iter().any(|child| child.address == here);
            let children = entry.children.iter().filter(|_| is_open);
            Item {
                link: Link::of(entry, here),
                children: children.map(|child| Link::of(child, here)).collect(),
            }
        };
        let groups = contents.groups.iter().map(|group| Group {
            title: &group.title,
            items: group.entries.iter().map(item).collect(),
        });
        Self {
            title: "",
            nonce,
            index: Link::of(&contents.index, here),
            groups: groups.collect(),
            headings: Vec::new(),
            content: "",
            previous: None,
            next: None,
            source: None,
        }
    }

    fn html(&self) -> String {
        self.render().expect("a page is written to memory")
    }
}

fn framed(page: &Page, rendered: &Rendered, contents: &Contents, library: &Library, nonce: &str) -> String {
    // What the index names beside pages leads out of the guide.
    let order: Vec<&Entry> = contents
        .all()
        .filter(|entry| library.by_address(&entry.address).is_some())
        .collect();
    let here = order.iter().position(|entry| entry.address == page.address);
    let at = |place: Option<usize>| Some(Link::of(order.get(place?)?, &page.address));
    let headings = rendered.sections.iter().filter(|section| section.level == 2);
    let frame = Frame {
        title: &page.title,
        headings: headings
            .map(|section| (section.anchor.as_str(), section.heading.as_str()))
            .collect(),
        content: &rendered.html,
        previous: at(here.and_then(|here| here.checked_sub(1))),
        next: at(here.map(|here| here + 1)),
        source: Some(page.source()),
        ..Frame::new(contents, &page.address, nonce)
    };
    frame.html()
}

fn missing(contents: &Contents, nonce: &str) -> String {
    let frame = Frame {
        title: "No such page",
        content: "<h1>No such page</h1>\n<p>The contents and the search have all pages.</p>\n",
        ..Frame::new(contents, "", nonce)
    };
    frame.html()
}

/// The pages for programs, as <https://llmstxt.org> has it: what this is, and a list of links to Markdown.
fn overview(contents: &Contents, library: &Library) -> String {
    let about = library.by_file(OVERVIEW).map_or("", |page| page.text);
    let mut paragraphs = about
        .split("\n\n")
        .filter(|text| !text.trim_start().starts_with(['#', '<']));
    let about = paragraphs.next().unwrap_or_default().trim().replace('\n', " ");
    let mut text = format!("# Towpath\n\n> {about}\n\n`/llms-full.txt` has all pages in one.\n");
    for group in &contents.groups {
        text.push_str("\n## ");
        text.push_str(&group.title);
        text.push_str("\n\n");
        for entry in group
            .entries
            .iter()
            .flat_map(|entry| std::iter::once(entry).chain(&entry.children))
        {
            let address = match library.by_address(&entry.address) {
                Some(page) => page.source(),
                None => entry.address.clone(),
            };
            let note = if entry.note.is_empty() {
                String::new()
            } else {
                format!(": {}", entry.note)
            };
            writeln!(text, "- [{}]({address}){note}", entry.title).expect("a text takes all");
        }
    }
    text
}

/// All pages in one, in the order in which they are read.
fn whole(contents: &Contents, library: &Library) -> String {
    let mut text = String::new();
    for page in contents.all().filter_map(|entry| library.by_address(&entry.address)) {
        writeln!(text, "<!-- {} -->\n\n{}", page.source(), page.text).expect("a text takes all");
    }
    text
}
