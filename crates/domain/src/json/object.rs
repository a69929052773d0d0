//! Members of an object as they were sent.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use super::Invalid;
use super::scan::Scan;

/// The texts of the members of these names; null counts as absent. `None` if `text` is no object.
///
/// Nothing is built for the other members, however large they are.
#[must_use]
pub fn members<'a, const N: usize>(text: &'a str, names: [&str; N]) -> Option<[Option<&'a str>; N]> {
    let mut found = [None; N];
    each(text, |member| {
        if let Some(at) = names.iter().position(|name| *name == member.name) {
            found[at] = (member.value != "null").then_some(member.value);
        }
    })
    .ok()?;
    Some(found)
}

/// A member as it was sent.
struct Sent<'a> {
    name: Cow<'a, str>,
    /// The text of the name, with its quotes.
    key: &'a str,
    value: &'a str,
}

fn each<'a>(text: &'a str, mut member: impl FnMut(Sent<'a>)) -> Result<(), Invalid> {
    let mut scan = Scan::new(text);
    scan.blank();
    if scan.peek() != Some(b'{') {
        return Err(scan.invalid("expected an object"));
    }
    let mut more = scan.open(b'}');
    while more {
        let (name, key) = scan.name()?;
        let value = scan.value()?;
        member(Sent {
            name: name.decode(),
            key,
            value,
        });
        more = scan.next(b'}')?;
    }
    scan.end()
}

/// An object whose members can be replaced. All others stay as they were sent, to the letter.
#[derive(Clone, Debug, Default)]
pub struct Object<'a>(Vec<Member<'a>>);

#[derive(Clone, Debug)]
struct Member<'a> {
    name: Cow<'a, str>,
    key: Cow<'a, str>,
    value: Cow<'a, str>,
}

impl<'a> Object<'a> {
    /// Reads every object that [`check`](super::check) passes.
    ///
    /// # Errors
    /// Where the text stops being an object.
    pub fn parse(text: &'a str) -> Result<Self, Invalid> {
        let mut members = Vec::new();
        each(text, |sent| {
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

    /// Whether there is a member of that name, null or not.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|member| member.name == name)
    }

    /// Puts a member of that name, whose text is JSON, in the place of every one that is there.
    pub fn set(&mut self, name: &'a str, value: impl Into<Cow<'a, str>>) {
        self.0.retain(|member| member.name != name);
        self.0.push(Member {
            name: Cow::Borrowed(name),
            key: Cow::Owned(serde_json::Value::from(name).to_string()),
            value: value.into(),
        });
    }

    /// Leaves out the members of these names.
    pub fn remove(&mut self, names: &[&str]) {
        self.0.retain(|member| !names.contains(&&*member.name));
    }

    /// With the members of `change` in the place of those of the same names.
    #[must_use]
    pub fn merged(mut self, change: Self) -> Self {
        {
            let changed: HashSet<&str> = change.0.iter().map(|member| &*member.name).collect();
            self.0.retain(|member| !changed.contains(&*member.name));
        }
        self.0.extend(change.0);
        self
    }
}

/// As JSON.
impl fmt::Display for Object<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, Member { key, value, .. }) in self.0.iter().enumerate() {
            write!(f, "{}{key}:{value}", if at == 0 { "{" } else { "," })?;
        }
        f.write_str(if self.0.is_empty() { "{}" } else { "}" })
    }
}
