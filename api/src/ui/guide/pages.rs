//! The pages and where each is served.

use std::collections::HashMap;

/// Below it are the pages; it is the index of them.
pub(super) const BASE: &str = "/guide";
/// The index of the pages.
pub(super) const INDEX: &str = "docs/README.md";
/// The page about the whole.
pub(super) const OVERVIEW: &str = "README.md";

/// Where the sources are that are no pages.
const REPOSITORY: &str = env!("CARGO_PKG_REPOSITORY");

/// Files from the root of the sources, with their text.
static PAGES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/pages.rs"));
/// Images that pages show.
static IMAGES: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/images.rs"));

pub(super) struct Page {
    /// Its file, from the root of the sources.
    pub(super) file: &'static str,
    /// As it is in the file.
    pub(super) text: &'static str,
    pub(super) title: String,
    /// Where it is served.
    pub(super) address: String,
}

impl Page {
    fn new(file: &'static str, text: &'static str) -> Self {
        let title = text.lines().find_map(|line| line.strip_prefix("# ")).unwrap_or(file);
        let name = name_of(file);
        let address = if name.is_empty() {
            BASE.to_owned()
        } else {
            format!("{BASE}/{name}")
        };
        Self {
            file,
            text,
            title: title.replace('`', ""),
            address,
        }
    }

    /// Where its Markdown is served. That of `docs` is at the place of its file, so that its links lead to other Markdown.
    pub(super) fn source(&self) -> String {
        match self.file.strip_prefix("docs/") {
            Some(below) => format!("{BASE}/{below}"),
            None => format!("{}.md", self.address),
        }
    }
}

/// The last part of a page's address: its file without the extension, or the folder whose index it is.
fn name_of(file: &str) -> String {
    if file == OVERVIEW {
        return "overview".to_owned();
    }
    let stem = file.strip_suffix(".md").unwrap_or(file);
    match stem.strip_prefix("docs/") {
        Some(below) => below
            .strip_suffix("README")
            .unwrap_or(below)
            .trim_end_matches('/')
            .to_owned(),
        None => stem.to_ascii_lowercase(),
    }
}

/// All pages and images.
pub(super) struct Library {
    pub(super) pages: Vec<Page>,
    /// Where each file and folder of the sources is served, of those that are.
    addresses: HashMap<String, String>,
}

impl Library {
    /// Those of this program.
    pub(super) fn embedded() -> Self {
        let pages: Vec<Page> = PAGES.iter().map(|(file, text)| Page::new(file, text)).collect();
        let mut addresses = HashMap::new();
        for page in &pages {
            addresses.insert(page.file.to_owned(), page.address.clone());
            if let Some(folder) = page.file.strip_suffix("/README.md") {
                addresses.insert(folder.to_owned(), page.address.clone());
            }
        }
        for (file, address, _) in Self::images() {
            addresses.insert(file.to_owned(), address);
        }
        // The same as a page.
        addresses.insert("docs/openapi.json".to_owned(), "/docs".to_owned());
        Self { pages, addresses }
    }

    /// The file, the address and the content of each image.
    pub(super) fn images() -> impl Iterator<Item = (&'static str, String, &'static [u8])> {
        IMAGES.iter().map(|(file, content)| {
            let below = file.strip_prefix("docs/").unwrap_or(file);
            (*file, format!("{BASE}/{below}"), *content)
        })
    }

    pub(super) fn by_file(&self, file: &str) -> Option<&Page> {
        self.pages.iter().find(|page| page.file == file)
    }

    pub(super) fn by_address(&self, address: &str) -> Option<&Page> {
        self.pages.iter().find(|page| page.address == address)
    }

    /// Where a link leads that stands in a file. Files that are not served are shown by the repository.
    pub(super) fn link(&self, from: &str, to: &str) -> String {
        if to.starts_with(['#', '/']) || has_scheme(to) {
            return to.to_owned();
        }
        let (path, anchor) = match to.find('#') {
            Some(at) => to.split_at(at),
            None => (to, ""),
        };
        let file = joined(from, path);
        match self.addresses.get(&file) {
            Some(address) => format!("{address}{anchor}"),
            None => format!("{REPOSITORY}/blob/main/{file}{anchor}"),
        }
    }
}

fn has_scheme(link: &str) -> bool {
    link.split_once(':')
        .is_some_and(|(scheme, _)| !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_alphabetic()))
}

/// What a relative path in a file means.
fn joined(from: &str, path: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_page_has_an_address_of_its_own() {
        let library = Library::embedded();
        let mut seen = HashSet::new();
        for page in &library.pages {
            assert!(
                seen.insert(&page.address),
                "{} is the address of two pages",
                page.address
            );
            let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '/';
            assert!(page.address.chars().all(is_plain), "{}", page.address);
        }
        for (file, address, source) in [
            ("docs/README.md", "/guide", "/guide/README.md"),
            ("docs/traces.md", "/guide/traces", "/guide/traces.md"),
            (
                "docs/decisions/README.md",
                "/guide/decisions",
                "/guide/decisions/README.md",
            ),
            ("README.md", "/guide/overview", "/guide/overview.md"),
            ("SECURITY.md", "/guide/security", "/guide/security.md"),
        ] {
            let page = library.by_file(file).unwrap();
            assert_eq!(
                (page.address.as_str(), page.source().as_str()),
                (address, source),
                "{file}"
            );
        }
    }

    #[test]
    fn links_of_files_become_links_of_pages() {
        let library = Library::embedded();
        for (from, to, leads) in [
            ("docs/traces.md", "exports.md#x", "/guide/exports#x"),
            ("docs/traces.md", "README.md", "/guide"),
            ("docs/traces.md", "../README.md", "/guide/overview"),
            ("docs/traces.md", "#x", "#x"),
            ("docs/traces.md", "decisions/", "/guide/decisions"),
            ("docs/decisions/README.md", "../openapi.json", "/docs"),
            ("ARCHITECTURE.md", "docs/decisions/", "/guide/decisions"),
            ("README.md", "docs/traces.md", "/guide/traces"),
            ("README.md", "https://example.com/a.md", "https://example.com/a.md"),
            (
                "docs/sandboxes.md",
                "../examples/sandbox/",
                "https://github.com/towpath/towpath/blob/main/examples/sandbox",
            ),
        ] {
            assert_eq!(library.link(from, to), leads, "{to} in {from}");
        }
    }
}
