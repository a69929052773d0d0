//! The order of the pages: that of the index, `docs/README.md`.

use super::pages::{INDEX, Library};

/// A page, or something else that the index names.
pub(super) struct Entry {
    pub(super) title: String,
    /// What the index says about it.
    pub(super) note: String,
    pub(super) address: String,
    /// Pages of its folder that the index does not name.
    pub(super) children: Vec<Self>,
}

/// What stands below one heading of the index.
pub(super) struct Group {
    pub(super) title: String,
    pub(super) entries: Vec<Entry>,
}

/// What the index names.
pub(super) struct Contents {
    pub(super) index: Entry,
    pub(super) groups: Vec<Group>,
}

impl Contents {
    /// Reads the index.
    pub(super) fn of(library: &Library) -> Self {
        let page = library.by_file(INDEX);
        let text = page.map_or("", |page| page.text);
        let mut groups: Vec<Group> = Vec::new();
        for line in text.lines() {
            if let Some(title) = line.strip_prefix("## ") {
                groups.push(Group {
                    title: title.to_owned(),
                    entries: Vec::new(),
                });
            } else if let (Some(group), Some(entry)) = (groups.last_mut(), entry(library, line)) {
                group.entries.push(entry);
            }
        }
        let mut contents = Self {
            index: Entry {
                title: page.map_or("", |page| page.title.as_str()).to_owned(),
                note: String::new(),
                address: library.link("", INDEX),
                children: Vec::new(),
            },
            groups,
        };
        contents.add_children(library);
        contents
    }

    fn add_children(&mut self, library: &Library) {
        let named: Vec<String> = self.all().map(|entry| entry.address.clone()).collect();
        for entry in self.groups.iter_mut().flat_map(|group| &mut group.entries) {
            let file = library.by_address(&entry.address).map_or("", |page| page.file);
            let Some(folder) = file.strip_suffix("README.md").filter(|folder| !folder.is_empty()) else {
                continue;
            };
            let children = library.pages.iter().filter(|page| {
                let name = page.file.strip_prefix(folder);
                name.is_some_and(|name| !name.contains('/')) && !named.contains(&page.address)
            });
            entry.children = children
                .map(|page| Entry {
                    title: page.title.clone(),
                    note: String::new(),
                    address: page.address.clone(),
                    children: Vec::new(),
                })
                .collect();
        }
    }

    /// All that it names, in the order in which it is read.
    pub(super) fn all(&self) -> impl Iterator<Item = &Entry> {
        let entries = self.groups.iter().flat_map(|group| &group.entries);
        std::iter::once(&self.index).chain(entries.flat_map(|entry| std::iter::once(entry).chain(&entry.children)))
    }
}

/// A row of a table of the index: `| [title](link) | note |`.
fn entry(library: &Library, line: &str) -> Option<Entry> {
    let (title, rest) = line.strip_prefix("| [")?.split_once("](")?;
    let (to, note) = rest.split_once(')')?;
    Some(Entry {
        title: title.to_owned(),
        note: note.trim_matches([' ', '|']).to_owned(),
        address: library.link(INDEX, to),
        children: Vec::new(),
    })
}
