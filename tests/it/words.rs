//! Names: words that were given up do not come back, and the glossary names what is there.

use std::collections::BTreeSet;

use crate::tree;

const TYPES: &str = include_str!("words/types.txt");
const MODULES: &str = include_str!("words/modules.txt");
const FUNCTIONS: &str = include_str!("words/functions.txt");

/// The words of a source file, without comments.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(|line| line.split(|c: char| !c.is_alphanumeric() && c != '_'))
        .filter(|word| !word.is_empty())
}

/// The names that follow one of `keywords`.
fn defined<'a>(text: &'a str, keywords: &[&str]) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut is_next = false;
    for word in words(text) {
        if is_next {
            found.insert(word);
        }
        is_next = keywords.contains(&word);
    }
    found
}

#[test]
fn retired_words_name_nothing() {
    let rules = [
        (TYPES, &["struct", "enum", "trait", "type", "union"][..]),
        (MODULES, &["mod"]),
        (FUNCTIONS, &["fn"]),
    ];
    let mut wrong = Vec::new();
    for file in tree::files().iter().filter(|file| file.ends_with(".rs")) {
        let text = tree::read(file);
        for (retired, keywords) in rules {
            let retired: BTreeSet<&str> = retired.lines().collect();
            wrong.extend(
                defined(&text, keywords)
                    .intersection(&retired)
                    .map(|word| format!("{file}: {word}")),
            );
        }
    }
    assert!(
        wrong.is_empty(),
        "names that say nothing to a reader (docs/glossary.md has today's):\n{}",
        wrong.join("\n")
    );
}

#[test]
fn the_glossary_names_what_is_there() {
    let mut known = BTreeSet::new();
    for file in tree::files().iter().filter(|file| file.ends_with(".rs")) {
        known.extend(words(&tree::read(file)).map(str::to_owned));
    }
    let glossary = tree::read("docs/glossary.md");
    let mut wrong = Vec::new();
    for row in glossary.lines().filter(|line| line.starts_with("| ")) {
        let Some(types) = row.split(" | ").nth(2) else { continue };
        let names = types.split('`').skip(1).step_by(2).flat_map(words);
        wrong.extend(
            names
                .filter(|name| !known.contains(*name))
                .map(|name| format!("{name}, in {row}")),
        );
    }
    assert!(
        wrong.is_empty(),
        "docs/glossary.md names what is not in the source:\n{}",
        wrong.join("\n")
    );
}
