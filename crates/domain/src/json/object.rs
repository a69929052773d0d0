//! The members of an object, unparsed.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use super::InvalidJson;
use super::scan::Scanner;

/// The texts of the named members; null counts as absent. `None` if `text` is not an object.
///
/// Nothing is built for the other members, however large they are.
#[must_use]
pub fn members<'a, const N: usize>(text: &'a str, names: [&str; N]) -> Option<[Option<&'a str>; N]> {
    let mut found = [None; N];
    for_each_member(text, |member| {
        if let Some(at) = names.iter().position(|name| *name == member.name) {
            found[at] = (member.value != "null").then_some(member.value);
        }
    })
    .ok()?;
    Some(found)
}

/// Names and texts of all members, in order; null counts as absent. `None` if `text` is not an object.
#[must_use]
pub fn pairs(text: &str) -> Option<Vec<(Cow<'_, str>, &str)>> {
    let mut found = Vec::new();
    for_each_member(text, |member| {
        if member.value != "null" {
            found.push((member.name, member.value));
        }
    })
    .ok()?;
    Some(found)
}

struct RawMember<'a> {
    name: Cow<'a, str>,
    /// The name as written, with its quotes.
    key: &'a str,
    value: &'a str,
}

fn for_each_member<'a>(text: &'a str, mut member: impl FnMut(RawMember<'a>)) -> Result<(), InvalidJson> {
    let mut scan = Scanner::new(text);
    scan.skip_whitespace();
    if scan.peek() != Some(b'{') {
        return Err(scan.invalid("expected an object"));
    }
    let mut more = scan.open(b'}');
    while more {
        let (name, key) = scan.name()?;
        let value = scan.value()?;
        member(RawMember {
            name: name.decode(),
            key,
            value,
        });
        more = scan.next(b'}')?;
    }
    scan.end()
}

/// An object whose members can be replaced. All others keep their exact text.
#[derive(Clone, Debug, Default)]
pub struct Object<'a>(Vec<Member<'a>>);

#[derive(Clone, Debug)]
struct Member<'a> {
    name: Cow<'a, str>,
    key: Cow<'a, str>,
    value: Cow<'a, str>,
}

impl<'a> Object<'a> {
    /// Parses every object that [`check`](super::check) accepts.
    pub fn parse(text: &'a str) -> Result<Self, InvalidJson> {
        let mut members = Vec::new();
        for_each_member(text, |sent| {
            members.push(Member {
                name: sent.name,
                key: Cow::Borrowed(sent.key),
                value: Cow::Borrowed(sent.value),
            });
        })?;
        Ok(Self(members))
    }

    /// The text of a member; null counts as absent.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().rfind(|member| member.name == name);
        found.map(|member| &*member.value).filter(|value| *value != "null")
    }

    /// Whether the member exists, null included.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|member| member.name == name)
    }

    /// Replaces all members of that name by this one, whose text must be JSON.
    pub fn set(&mut self, name: &'a str, value: impl Into<Cow<'a, str>>) {
        self.0.retain(|member| member.name != name);
        self.0.push(Member {
            name: Cow::Borrowed(name),
            key: Cow::Owned(serde_json::Value::from(name).to_string()),
            value: value.into(),
        });
    }

    pub fn remove(&mut self, names: &[&str]) {
        self.0.retain(|member| !names.contains(&&*member.name));
    }

    /// Replaces members with those of `change`.
    #[must_use]
    pub fn merge(mut self, change: Self) -> Self {
        {
            let changed: HashSet<&str> = change.0.iter().map(|member| &*member.name).collect();
            self.0.retain(|member| !changed.contains(&*member.name));
        }
        self.0.extend(change.0);
        self
    }
}

impl fmt::Display for Object<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, Member { key, value, .. }) in self.0.iter().enumerate() {
            write!(f, "{}{key}:{value}", if at == 0 { "{" } else { "," })?;
        }
        f.write_str(if self.0.is_empty() { "{}" } else { "}" })
    }
}
