//! Users of the box, from its own `/etc/passwd`.

use std::fs::OpenOptions;
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;

use nix::fcntl::OFlag;

use super::AgentSetup;
use crate::launch::USER_COUNT;
use crate::wire::{Failure, FailureKind};

/// Without a user in the request and in the box.
const DEFAULT_USER: &str = "user";
/// More is no such file.
const MAX_PASSWD_BYTES: u64 = 1 << 20;

/// Who performs a command or a file operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct User {
    pub(super) name: String,
    pub(super) home: String,
    /// User and group. None: there is no other than the agent's.
    pub(super) ids: Option<(u32, u32)>,
}

impl User {
    pub(super) fn find(setup: &AgentSetup, asked: Option<&str>) -> Result<Self, Failure> {
        let table = read_passwd().unwrap_or_default();
        if setup.is_single_user {
            let root = table.lines().find_map(|line| parse_entry(line, "root"));
            return Ok(Self {
                name: "root".to_owned(),
                home: root.map_or_else(|| "/".to_owned(), |root| root.home),
                ids: None,
            });
        }
        let asked = asked.or(setup.user.as_deref()).unwrap_or(DEFAULT_USER);
        if let Some(user) = table.lines().find_map(|line| parse_entry(line, asked)) {
            return Ok(user);
        }
        match asked.parse::<u32>() {
            Ok(id) if id < USER_COUNT => Ok(Self {
                name: asked.to_owned(),
                home: "/".to_owned(),
                ids: Some((id, id)),
            }),
            _ => Err(Failure::new(
                FailureKind::Invalid,
                format!("user {asked} does not exist in the sandbox"),
            )),
        }
    }
}

/// A line, if it is the one with this name or id.
fn parse_entry(line: &str, asked: &str) -> Option<User> {
    let mut fields = line.split(':');
    let (name, _, id, group) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    let (_, home) = (fields.next()?, fields.next()?);
    if name != asked && id != asked {
        return None;
    }
    let ids = (id.parse().ok()?, group.parse().ok()?);
    (ids.0 < USER_COUNT && ids.1 < USER_COUNT && home.starts_with('/')).then(|| User {
        name: name.to_owned(),
        home: home.to_owned(),
        ids: Some(ids),
    })
}

/// The box may have put anything there.
fn read_passwd() -> Option<String> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags((OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW).bits())
        .open("/etc/passwd")
        .ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut text = Vec::new();
    file.take(MAX_PASSWD_BYTES).read_to_end(&mut text).ok()?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_lead_nowhere_are_no_users() {
        let user = parse_entry("user:x:1000:1001:user:/home/user:/bin/bash", "user").unwrap();
        assert_eq!((user.ids, user.home.as_str()), (Some((1000, 1001)), "/home/user"));
        assert_eq!(
            parse_entry("user:x:1000:1000::/home/user:", "1000").unwrap().name,
            "user"
        );
        for line in [
            "",
            "user",
            "user:x:1:1",
            "user:x:70000:0::/:",
            "user:x:1:-1::/:",
            "user:x:1:1::home:",
        ] {
            assert_eq!(parse_entry(line, "user"), None, "{line}");
        }
    }
}
