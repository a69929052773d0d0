//! Rules about text: where SQL may stand, and what must not be in the tree at all.

use crate::tree;

/// Where SQL may stand: the store, tests, and measurements that write statements by hand to compare with.
const SQL_AT_HOME: [&str; 6] = [
    "crates/store/",
    "/tests/",
    "/benches/",
    "tests/",
    "crates/cli/src/bench",
    "crates/testing/",
];

const SQL_BEGINNINGS: [&str; 12] = [
    "SELECT ",
    "INSERT ",
    "UPDATE ",
    "DELETE ",
    "WITH ",
    "CREATE ",
    "ALTER ",
    "DROP ",
    "BEGIN",
    "SAVEPOINT ",
    "PRAGMA ",
    "LISTEN ",
];

#[test]
fn only_the_store_holds_sql() {
    let mut wrong = Vec::new();
    for file in tree::files().iter().filter(|file| file.ends_with(".rs")) {
        if SQL_AT_HOME
            .iter()
            .any(|home| file.starts_with(home) || (home.starts_with('/') && file.contains(home)))
        {
            continue;
        }
        for (line, text) in tree::string_literals(&product_part(&tree::read(file))) {
            let statement = text.trim_start_matches(|c: char| c.is_whitespace() || c == '\\' || c == '(');
            if SQL_BEGINNINGS.iter().any(|word| statement.starts_with(word)) {
                wrong.push(format!(
                    "{file}:{line}: {}",
                    statement.lines().next().unwrap_or_default()
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "SQL outside of the store:\n{}", wrong.join("\n"));
}

#[test]
fn the_tree_names_no_machine() {
    // Split, so that this file passes its own rule.
    let marks = [
        concat!("/wo", "rk/"),
        concat!("/ro", "ot/"),
        concat!("bash_", "jobs"),
        concat!("/tmp/", "tp"),
    ];
    let own_home = tree::root().display().to_string();
    let mut wrong = Vec::new();
    for file in tree::files() {
        for (number, line) in tree::read(&file).lines().enumerate() {
            let named =
                marks.iter().any(|mark| names_path(line, mark)) || (own_home.len() > 5 && line.contains(&own_home));
            if named {
                wrong.push(format!(
                    "{file}:{}: {}",
                    number + 1,
                    line.chars().take(120).collect::<String>()
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "paths of one machine:\n{}", wrong.join("\n"));
}

/// Whether `mark` is in the line as a path of its own: behind a host's name it is part of a caller's address.
fn names_path(line: &str, mark: &str) -> bool {
    line.match_indices(mark).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_ascii_alphanumeric() || "_-.}>)/".contains(c))
    })
}

/// A file up to its test module, which may write what it likes.
pub fn product_part(source: &str) -> String {
    source
        .split("#[cfg(test)]\nmod tests {")
        .next()
        .unwrap_or_default()
        .to_owned()
}
