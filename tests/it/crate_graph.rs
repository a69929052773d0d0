//! Which crate may be on which: the picture of ARCHITECTURE.md. An arrow that is not listed here is a decision to be
//! made, not a line to be added in passing.

use std::collections::{BTreeMap, BTreeSet};

use crate::tree;

const EVERY: &[&str] = &[
    "api",
    "compute",
    "domain",
    "durable",
    "outbound",
    "query",
    "queue",
    "runtime",
    "sandbox",
    "scheduler",
    "store",
    "traces",
    "workers",
    "workflows",
];

/// Each crate and what it may depend on.
const ARROWS: &[(&str, &[&str])] = &[
    ("domain", &[]),
    ("store", &["domain"]),
    ("queue", &["domain"]),
    ("outbound", &["domain"]),
    ("runtime", &["domain", "outbound"]),
    ("compute", &["domain", "outbound"]),
    ("sandbox", &[]),
    ("durable", &["domain", "queue", "store"]),
    ("traces", &["domain", "store"]),
    ("query", &["domain", "store", "traces"]),
    (
        "workflows",
        &[
            "compute", "domain", "durable", "outbound", "query", "queue", "runtime", "sandbox", "store", "traces",
        ],
    ),
    ("workers", &["domain", "durable", "queue", "store"]),
    ("scheduler", &["domain", "durable", "queue", "store"]),
    (
        "api",
        &[
            "domain",
            "durable",
            "outbound",
            "query",
            "queue",
            "runtime",
            "sandbox",
            "store",
            "traces",
            "workflows",
        ],
    ),
    ("cli", EVERY),
    ("testing", &[]),
    ("tests", EVERY),
];

/// The room of tests alone.
const TESTING: &str = "testing";

/// What the tests of a crate may use beyond that. The engine's own suite runs it with the real pools and sweeps.
const TEST_ARROWS: &[(&str, &[&str])] = &[("durable", &["scheduler", "workers"])];

#[test]
fn crates_stand_only_on_crates_below_them() {
    let allowed: BTreeMap<&str, &[&str]> = ARROWS.iter().copied().collect();
    let in_tests: BTreeMap<&str, &[&str]> = TEST_ARROWS.iter().copied().collect();
    let mut wrong = Vec::new();
    let mut seen = BTreeSet::new();
    for manifest in tree::files().iter().filter(|file| is_of_the_workspace(file)) {
        let parsed: toml::Table = tree::read(manifest)
            .parse()
            .unwrap_or_else(|error| panic!("{manifest}: {error}"));
        let name = parsed["package"]["name"].as_str().expect("a package has a name");
        let from = short(name).unwrap_or_else(|| panic!("{manifest}: {name} is not named after Towpath"));
        let Some(below) = allowed.get(from) else {
            wrong.push(format!("{manifest}: {from} is not in the picture"));
            continue;
        };
        seen.insert(from.to_owned());
        for (section, to) in dependencies(&parsed) {
            let also: &[&str] = if section.ends_with("dev-dependencies") {
                in_tests.get(from).copied().unwrap_or_default()
            } else {
                &[]
            };
            let of_tests = to == TESTING && (from == "tests" || section.ends_with("dev-dependencies"));
            // A crate's own tests may name it again to switch a feature on.
            if to != from && !of_tests && !below.contains(&to.as_str()) && !also.contains(&to.as_str()) {
                wrong.push(format!("{manifest}: [{section}] {from} → {to}"));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "arrows that the picture does not have:\n{}",
        wrong.join("\n")
    );
    let drawn: BTreeSet<String> = ARROWS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(seen, drawn, "crates of the workspace and of the picture");
}

/// Whether it is the manifest of a crate of the workspace; `fuzz` is none.
fn is_of_the_workspace(file: &str) -> bool {
    file.ends_with("Cargo.toml") && !matches!(file, "Cargo.toml" | "fuzz/Cargo.toml")
}

#[test]
fn versions_stand_in_the_root_manifest_only() {
    let mut wrong = Vec::new();
    for manifest in tree::files().iter().filter(|file| is_of_the_workspace(file)) {
        let parsed: toml::Table = tree::read(manifest)
            .parse()
            .unwrap_or_else(|error| panic!("{manifest}: {error}"));
        for (section, table) in dependency_tables(&parsed) {
            for (name, value) in table {
                if value.get("workspace").and_then(toml::Value::as_bool) != Some(true) {
                    wrong.push(format!("{manifest}: [{section}] {name}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "not `workspace = true`:\n{}", wrong.join("\n"));
}

/// `towpath-store` → `store`; the binary's package is called `towpath` and lives in `cli`.
fn short(package: &str) -> Option<&str> {
    if package == "towpath" {
        Some("cli")
    } else {
        package.strip_prefix("towpath-")
    }
}

/// Section and crate of each arrow.
fn dependencies(manifest: &toml::Table) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (section, table) in dependency_tables(manifest) {
        let ours = table.keys().filter_map(|name| short(name));
        found.extend(ours.map(|to| (section.clone(), to.to_owned())));
    }
    found
}

fn dependency_tables(manifest: &toml::Table) -> Vec<(String, &toml::Table)> {
    const SECTIONS: [&str; 3] = ["dependencies", "dev-dependencies", "build-dependencies"];
    let mut tables = Vec::new();
    let targets = manifest.get("target").and_then(toml::Value::as_table);
    let targets = targets
        .into_iter()
        .flatten()
        .filter_map(|(name, value)| Some((name.as_str(), value.as_table()?)));
    for (target, holder) in std::iter::once(("", manifest)).chain(targets) {
        for section in SECTIONS {
            if let Some(table) = holder.get(section).and_then(toml::Value::as_table) {
                let prefix = if target.is_empty() {
                    String::new()
                } else {
                    format!("target.{target}.")
                };
                tables.push((format!("{prefix}{section}"), table));
            }
        }
    }
    tables
}
