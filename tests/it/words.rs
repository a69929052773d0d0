//! Names: words that were given up do not come back, the glossary names what is there, and comments say more than names.

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

/// Words that add nothing to a name.
const EMPTY_WORDS: [&str; 14] = [
    "the", "a", "an", "its", "it", "of", "which", "this", "that", "these", "in", "with", "for", "as",
];

/// The words of prose or of names in any case, in lower case and the singular.
fn single_words(text: &str) -> BTreeSet<String> {
    let mut spaced = String::new();
    let mut last = ' ';
    for c in text.chars() {
        if c.is_uppercase() && last.is_lowercase() {
            spaced.push(' ');
        }
        spaced.push(if c.is_alphanumeric() { c } else { ' ' });
        last = c;
    }
    spaced
        .to_lowercase()
        .split_whitespace()
        .filter(|word| !EMPTY_WORDS.contains(word))
        .map(|word| word.strip_suffix('s').unwrap_or(word).to_owned())
        .collect()
}

/// The line of the item below the doc comment that ends before `rest`: attributes are passed over.
fn item<'a>(rest: &[&'a str]) -> &'a str {
    let mut open = 0;
    for line in rest.iter().map(|line| line.trim()) {
        if open == 0 && !line.starts_with("#[") {
            return line;
        }
        open += line.matches('[').count() as i64 - line.matches(']').count() as i64;
    }
    ""
}

/// Comments of one line that only repeat the name and the type of a field, a variant or a type.
fn repeated_names(text: &str) -> Vec<String> {
    const OTHERS: [&str; 11] = [
        "fn",
        "async",
        "const",
        "impl",
        "mod",
        "use",
        "type",
        "static",
        "trait",
        "macro_rules!",
        "//",
    ];
    let lines: Vec<&str> = text.lines().collect();
    let comment = |line: usize| lines.get(line).and_then(|line| line.trim().strip_prefix("///"));
    let mut found = Vec::new();
    for at in 0..lines.len() {
        let Some(said) = comment(at).filter(|said| said.contains(char::is_alphanumeric)) else {
            continue;
        };
        if at > 0 && comment(at - 1).is_some() || comment(at + 1).is_some() {
            continue;
        }
        let item = item(&lines[at + 1..]);
        let named = item.strip_prefix("pub").unwrap_or(item).trim_start();
        let named = match named.strip_prefix('(').and_then(|rest| rest.split_once(')')) {
            Some((_, rest)) => rest.trim_start(),
            None => named,
        };
        let is_other = OTHERS.contains(&named.split(' ').next().unwrap_or_default());
        if !is_other && !item.is_empty() && single_words(said).is_subset(&single_words(item)) {
            found.push(format!("{}: {} ({item})", at + 1, said.trim()));
        }
    }
    found
}

#[test]
fn comments_say_more_than_names() {
    let repeated = "/// The action.\n#[derive(Debug)]\npub(crate) enum Action {\n    /// The pool.\n    pool: String,";
    assert_eq!(repeated_names(repeated).len(), 2);
    let telling =
        "/// Seconds until it ends.\nend: u64,\n/// The pool.\n/// By name.\npool: String,\n/// Runs.\nfn runs() {}";
    assert!(repeated_names(telling).is_empty());
    let mut wrong = Vec::new();
    for file in tree::files().iter().filter(|file| file.ends_with(".rs")) {
        let found = repeated_names(&tree::read(file));
        wrong.extend(found.into_iter().map(|found| format!("{file}:{found}")));
    }
    assert!(
        wrong.is_empty(),
        "doc comments that repeat a name; say units, shape or errors, or nothing:\n{}",
        wrong.join("\n")
    );
}
