//! The configuration file (TOML) as a source of settings.

use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::keys;
use super::nearest::nearest;
use super::values::{Layer, Origin, Value};

/// The settings of the file. Each unknown key and each value of a wrong type is a problem with its line number.
pub fn layer(path: &Path, problems: &mut Vec<String>) -> Layer {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(why) => {
            problems.push(format!("configuration file {} cannot be read: {why}", path.display()));
            return Layer::new();
        }
    };
    let table = match DeTable::parse(&text) {
        Ok(table) => table,
        Err(why) => {
            let line = why.span().map_or(1, |span| line_of(&text, span.start));
            problems.push(format!("{}:{line}: {}", path.display(), why.message()));
            return Layer::new();
        }
    };
    let mut reader = Reader {
        path,
        text: &text,
        layer: Layer::new(),
        problems,
    };
    reader.table("", table.get_ref());
    reader.layer
}

struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
    layer: Layer,
    problems: &'a mut Vec<String>,
}

impl Reader<'_> {
    fn table(&mut self, prefix: &str, table: &DeTable<'_>) {
        for (name, value) in table {
            let line = line_of(self.text, name.span().start);
            let name = if prefix.is_empty() {
                name.get_ref().to_string()
            } else {
                format!("{prefix}.{}", name.get_ref())
            };
            match (keys::all().find(|key| key.name == name), value.get_ref()) {
                (Some(key), value) => match plain(value) {
                    Some(text) => {
                        let origin = Origin::File {
                            path: self.path.to_owned(),
                            line,
                        };
                        self.layer.insert(key.name, Value { text, origin });
                    }
                    None => self.complain(line, &format!("{name}: {UNUSABLE}")),
                },
                (None, DeValue::Table(inner)) if is_section(&name) => self.table(&name, inner),
                (None, _) if let Some(new) = keys::renamed(&name) => {
                    self.complain(line, &format!("{name} is now {new}: rename it"));
                }
                (None, _) => match nearest(&name, known_names()) {
                    Some(near) => self.complain(line, &format!("unknown key {name}; did you mean {near}?")),
                    None => self.complain(line, &format!("unknown key {name}")),
                },
            }
        }
    }

    fn complain(&mut self, line: usize, what: &str) {
        self.problems.push(format!("{}:{line}: {what}", self.path.display()));
    }
}

const UNUSABLE: &str = "expected a text, a number, true or false, or a list of texts";

/// The value as text; parts of a list are separated by commas.
fn plain(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => Some(number.to_string()),
        DeValue::Boolean(switch) => Some(switch.to_string()),
        DeValue::Array(parts) => {
            let parts: Option<Vec<_>> = parts.iter().map(Spanned::get_ref).map(plain).collect();
            parts.map(|parts| parts.join(","))
        }
        DeValue::Float(_) | DeValue::Datetime(_) | DeValue::Table(_) => None,
    }
}

fn is_section(name: &str) -> bool {
    keys::all().any(|key| key.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('.')))
}

fn known_names() -> impl Iterator<Item = &'static str> {
    keys::all().map(|key| key.name).chain(
        keys::all()
            .filter_map(|key| key.name.split_once('.'))
            .map(|(section, _)| section),
    )
}

fn line_of(text: &str, offset: usize) -> usize {
    text.as_bytes()[..offset.min(text.len())]
        .iter()
        .filter(|byte| **byte == b'\n')
        .count()
        + 1
}
