//! Names of sandboxes and related objects.

use uuid::Uuid;

use crate::rejection::Rejection;

/// Paths on which a mount would break a sandbox.
const RESERVED: [&str; 3] = ["/proc", "/sys", "/dev"];

/// Checks the name of a sandbox, template, pool, snapshot or registry. A UUID is not allowed, because paths accept
/// both.
pub fn check_box_name(field: &str, name: &str) -> Result<(), Rejection> {
    let edge = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_name = (1..=63).contains(&name.len())
        && edge(name.bytes().next())
        && edge(name.bytes().last())
        && name.bytes().all(inner);
    if !is_name {
        let text = "expected 1 to 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends";
        return Err(Rejection::invalid(field, text));
    }
    if name.parse::<Uuid>().is_ok() {
        return Err(Rejection::invalid(
            field,
            "a UUID cannot be a name because it would be read as an id",
        ));
    }
    Ok(())
}

/// The rules are those of DNS-1035 labels.
pub fn check_volume_name(field: &str, name: &str) -> Result<(), Rejection> {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_name = (1..=63).contains(&name.len())
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && !name.ends_with('-')
        && name.bytes().all(inner);
    if is_name && name.parse::<Uuid>().is_err() {
        return Ok(());
    }
    let text = "expected 1 to 63 lower-case letters, digits and '-', with a letter first and no '-' at the end";
    Err(Rejection::invalid(field, text))
}

pub fn check_tag(field: &str, tag: &str) -> Result<(), Rejection> {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let starts_well = tag.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '_');
    if (1..=128).contains(&tag.len()) && starts_well && tag.bytes().all(inner) {
        return Ok(());
    }
    let text = "expected 1 to 128 letters, digits, '-', '_' and '.', with a letter, digit or '_' first";
    Err(Rejection::invalid(field, text))
}

pub fn check_mount_path(field: &str, path: &str) -> Result<(), Rejection> {
    let fits = path.len() <= 1024 && !path.contains('\0');
    let mut parts = path.split('/').skip(1);
    let is_plain = path.starts_with('/') && parts.all(|part| !part.is_empty() && part != "." && part != "..");
    if !fits || !is_plain {
        let text = "expected an absolute path other than '/', without '.', '..', '//' and '/' at its end";
        return Err(Rejection::invalid(field, text));
    }
    let below = |reserved: &&str| path == *reserved || path.starts_with(&format!("{reserved}/"));
    match RESERVED.iter().find(|reserved| below(reserved)) {
        None => Ok(()),
        Some(reserved) => Err(Rejection::invalid(
            field,
            format!("nothing can be mounted on {reserved}"),
        )),
    }
}

/// Checks a free text.
pub fn check_text(field: &str, text: &str, longest: usize) -> Result<(), Rejection> {
    if text.chars().count() <= longest && !text.contains('\0') {
        return Ok(());
    }
    let text = format!("expected at most {longest} characters and no NUL");
    Err(Rejection::invalid(field, text))
}

#[must_use]
pub fn host_name(name: &str) -> String {
    name.chars()
        .map(|letter| {
            if letter.is_ascii_alphanumeric() {
                letter.to_ascii_lowercase()
            } else {
                '-'
            }
        })
        .collect()
}

/// A reference to a snapshot in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotReference {
    Id(Uuid),
    /// A name and an optional tag.
    Name(String, Option<String>),
}

impl SnapshotReference {
    /// Parses an id, `name` or `name:tag`.
    pub fn parse(field: &str, text: &str) -> Result<Self, Rejection> {
        if let Ok(id) = text.parse() {
            return Ok(Self::Id(id));
        }
        match text.split_once(':') {
            None => {
                check_box_name(field, text)?;
                Ok(Self::Name(text.to_owned(), None))
            }
            Some((name, tag)) => {
                check_box_name(field, name)?;
                check_tag(field, tag)?;
                Ok(Self::Name(name.to_owned(), Some(tag.to_owned())))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_neither_ids_nor_paths() {
        for name in ["a", "my-box", "My_Box.2"] {
            assert!(check_box_name("name", name).is_ok(), "{name}");
        }
        for name in [
            "",
            "-a",
            "a-",
            "a/b",
            "a b",
            "ä",
            "0197a1b2-0000-7000-8000-000000000001",
        ] {
            assert!(check_box_name("name", name).is_err(), "{name}");
        }
        for name in ["data", "a-1"] {
            assert!(check_volume_name("name", name).is_ok(), "{name}");
        }
        for name in ["Data", "1a", "a-", "a.b", &"a".repeat(64)] {
            assert!(check_volume_name("name", name).is_err(), "{name}");
        }
        assert_eq!(host_name("My_Box.2"), "my-box-2");
    }

    #[test]
    fn mounts_stay_clear_of_the_system() {
        for path in ["/data", "/home/user/x"] {
            assert!(check_mount_path("mount_path", path).is_ok(), "{path}");
        }
        for path in [
            "", "data", "/", "/a/../b", "/a//b", "/a/", "/proc", "/sys/fs", "/dev/shm",
        ] {
            assert!(check_mount_path("mount_path", path).is_err(), "{path}");
        }
    }

    #[test]
    fn snapshots_are_named_in_three_ways() {
        let id = "0197a1b2-0000-7000-8000-000000000001";
        let parse = |text| SnapshotReference::parse("snapshot", text);
        assert_eq!(parse(id), Ok(SnapshotReference::Id(id.parse().unwrap())));
        assert_eq!(parse("base"), Ok(SnapshotReference::Name("base".into(), None)));
        assert_eq!(
            parse("base:v1"),
            Ok(SnapshotReference::Name("base".into(), Some("v1".into())))
        );
        assert!(parse("base:").is_err());
    }
}
