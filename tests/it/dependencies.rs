//! What Cargo.lock may hold: the bans and sources of deny.toml, checked on machines without cargo-deny too.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use crate::tree;

#[test]
fn banned_crates_are_not_in_the_lock() {
    let versions = locked_versions();
    let mut wrong = Vec::new();
    for (name, only_twice) in bans() {
        let count = versions.get(&name).map_or(0, BTreeSet::len);
        if count > usize::from(only_twice) {
            wrong.push(format!("{name} {:?}", versions[&name]));
        }
    }
    assert!(
        wrong.is_empty(),
        "deny.toml bans these, or more than one version of them:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn every_dependency_comes_from_the_registry() {
    let lock: toml::Table = tree::read("Cargo.lock").parse().expect("Cargo.lock is TOML");
    let foreign: Vec<&str> = packages(&lock)
        .filter_map(|package| package.get("source").and_then(toml::Value::as_str))
        .filter(|source| *source != "registry+https://github.com/rust-lang/crates.io-index")
        .collect();
    assert!(foreign.is_empty(), "{foreign:?}");
}

/// A feature that only tests ask for makes cargo compile that crate, and everything above it, once for the binary and
/// once more for the tests.
#[test]
fn tests_add_no_features_to_what_the_binary_is_built_of() {
    let binary = features(&["--package", "towpath", "--edges", "normal,build"]);
    let all = features(&["--workspace", "--edges", "normal,build,dev"]);
    let wrong: Vec<String> = binary
        .iter()
        .filter(|(package, features)| all[*package] != **features)
        .map(|(package, features)| format!("{package}: {features:?}, with the tests {:?}", all[package]))
        .collect();
    assert!(
        wrong.is_empty(),
        "name these features in the root manifest, or for the binary:\n{}",
        wrong.join("\n")
    );
}

/// The feature sets that each package is built with, as `cargo tree` resolves them.
fn features(selection: &[&str]) -> BTreeMap<String, BTreeSet<String>> {
    let output = Command::new("cargo")
        .args([
            "tree",
            "--locked",
            "--offline",
            "--prefix",
            "none",
            "--format",
            "{p}|{f}",
        ])
        .args(selection)
        .current_dir(tree::root())
        .output()
        .expect("cargo is on the path");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let text = String::from_utf8_lossy(&output.stdout);
    // Workspace members are separated by empty lines.
    for line in text.lines().filter(|line| !line.is_empty()) {
        let (package, features) = line.trim_end_matches(" (*)").split_once('|').expect("as formatted");
        found.entry(package.to_owned()).or_default().insert(features.to_owned());
    }
    found
}

/// Each name that deny.toml bans, and whether only a second version of it is banned.
fn bans() -> Vec<(String, bool)> {
    let deny: toml::Table = tree::read("deny.toml").parse().expect("deny.toml is TOML");
    let bans = deny["bans"]["deny"].as_array().expect("a list of bans");
    let bans: Vec<(String, bool)> = bans
        .iter()
        .map(|ban| {
            let name = ban["crate"].as_str().expect("a ban names its crate");
            (
                name.to_owned(),
                ban.get("deny-multiple-versions")
                    .and_then(toml::Value::as_bool)
                    .unwrap_or(false),
            )
        })
        .collect();
    assert!(bans.iter().any(|(name, _)| name == "backoff"), "the list was not read");
    bans
}

fn locked_versions() -> BTreeMap<String, BTreeSet<String>> {
    let lock: toml::Table = tree::read("Cargo.lock").parse().expect("Cargo.lock is TOML");
    let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in packages(&lock) {
        let text = |key: &str| {
            package[key]
                .as_str()
                .expect("packages have a name and a version")
                .to_owned()
        };
        versions.entry(text("name")).or_default().insert(text("version"));
    }
    versions
}

fn packages(lock: &toml::Table) -> impl Iterator<Item = &toml::Value> {
    lock["package"].as_array().expect("Cargo.lock lists packages").iter()
}
