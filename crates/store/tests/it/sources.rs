//! What statements and migrations may not say.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn of_this_crate(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)
}

/// Names and texts of the files below a folder.
fn files(folder: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push((path.display().to_string(), fs::read_to_string(&path).unwrap()));
        }
    }
    found.sort_unstable();
    found
}

/// Without the lines that are comments, and with one space wherever there is white space.
fn bare(text: &str, comment: &str) -> String {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with(comment));
    let words: Vec<&str> = lines.flat_map(str::split_whitespace).collect();
    words.join(" ")
}

fn word(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    &text[..end.unwrap_or(text.len())]
}

/// Tables that these migrations make.
fn tables(migrations: &[(String, String)]) -> BTreeSet<&str> {
    let made = migrations
        .iter()
        .flat_map(|(_, text)| text.split("CREATE TABLE ").skip(1));
    made.map(word).collect()
}

/// Whether a star between these two stands for the columns of a table.
fn is_of_a_table(before: &str, after: &str, tables: &BTreeSet<&str>) -> bool {
    if before.ends_with("RETURNING ") {
        return true;
    }
    if let Some(alias) = before.strip_suffix('.') {
        return alias.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    }
    if !before.ends_with("SELECT ") {
        return false;
    }
    // A subselect, a list or a common table expression names its columns itself.
    let source = after.strip_prefix(" FROM ").unwrap_or_default();
    let name = word(source);
    !source.starts_with('(') && (name.is_empty() || tables.contains(name))
}

/// A newer build may add a column while older ones are at work: a statement of theirs that returns all columns is
/// refused from then on, and one that copies all fails or puts values into other columns.
#[test]
fn statements_name_their_columns() {
    let migrations = files(&of_this_crate("migrations/sqlite"));
    let tables = tables(&migrations);
    assert!(tables.contains("job") && tables.contains("job_history"));
    let mut found = Vec::new();
    for (file, text) in files(&of_this_crate("src")) {
        let text = bare(&text, "//");
        for (at, _) in text.match_indices('*') {
            let (before, after) = (&text[..at], &text[at + 1..]);
            if is_of_a_table(before, after, &tables) {
                let after: String = after.chars().take(60).collect();
                found.push(format!("{file}: *{after}"));
            }
        }
        for (_, rest) in text
            .match_indices("INSERT INTO ")
            .map(|(at, into)| text.split_at(at + into.len()))
        {
            let name = word(rest);
            let what = rest[name.len()..].trim_start();
            if tables.contains(name) && (what.starts_with("SELECT") || what.starts_with("VALUES")) {
                found.push(format!("{file}: INSERT INTO {name}"));
            }
        }
    }
    assert!(found.is_empty(), "these say no columns:\n{}", found.join("\n"));
}

/// An index that is made inside a migration lets no one write to its table until all of it is read.
#[test]
fn migrations_of_postgresql_make_indexes_of_new_tables_only() {
    // The pairs before this one have been released.
    const RELEASED: &str = "0008";
    let mut found = Vec::new();
    for (file, text) in files(&of_this_crate("migrations/postgres")) {
        let name = file.rsplit('/').next().unwrap_or_default();
        if &name[..RELEASED.len()] <= RELEASED {
            continue;
        }
        let migration = [(file.clone(), bare(&text, "--"))];
        let made = tables(&migration);
        for statement in migration[0].1.split(';').map(str::trim) {
            let is_index = statement.starts_with("CREATE INDEX ") || statement.starts_with("CREATE UNIQUE INDEX ");
            let table = statement.split(" ON ").nth(1).map(word).unwrap_or_default();
            if is_index && !made.contains(table) {
                found.push(format!("{file}: {statement}"));
            }
        }
    }
    assert!(
        found.is_empty(),
        "these belong into postgres/indexes.rs:\n{}",
        found.join("\n")
    );
}
