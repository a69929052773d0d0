//! Names of tools. They have to be unique and of few characters; names of assistants are neither.

use std::collections::HashSet;

use towpath_domain::{AssistantId, Timestamp};
use towpath_store::assistants::Named;
use uuid::Uuid;

/// The longest name of a tool.
const LONGEST: usize = 128;
/// Characters of an id.
const ID: usize = 36;

/// An assistant as a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tool {
    pub id: AssistantId,
    pub name: String,
    pub made: Timestamp,
    /// Its name with its id, which no other tool will ever have.
    long_name: String,
}

impl Tool {
    /// Whether a client means this one.
    pub(super) fn is_called(&self, name: &str) -> bool {
        self.name == name || self.long_name == name
    }
}

/// Names assistants, the oldest first: of those that would be named alike, the oldest keeps the name however many come
/// after it.
pub(super) fn tools(assistants: Vec<Named>) -> Vec<Tool> {
    let mut taken = HashSet::new();
    let assistants = assistants.into_iter();
    assistants
        .map(|assistant| {
            let plain = plain(&assistant.name);
            let long_name = long(&plain, assistant.id);
            let is_free = !plain.is_empty() && !ends_with_id(&plain) && taken.insert(plain.clone());
            Tool {
                id: assistant.id,
                name: if is_free { plain } else { long_name.clone() },
                made: assistant.created_at,
                long_name,
            }
        })
        .collect()
}

/// As much of a name as the protocol allows: letters, digits, `_`, `-` and `.`; blanks are `_`.
fn plain(name: &str) -> String {
    let joined = name.split_whitespace().collect::<Vec<_>>().join("_");
    let allowed = |letter: &char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-' | '.');
    joined.chars().filter(allowed).take(LONGEST).collect()
}

fn long(plain: &str, id: AssistantId) -> String {
    // All of its characters are one byte long.
    match &plain[..plain.len().min(LONGEST - ID - 1)] {
        "" => id.to_string(),
        start => format!("{start}-{id}"),
    }
}

/// Whether it could be a name with an id.
fn ends_with_id(plain: &str) -> bool {
    let start = plain.len().checked_sub(ID);
    start.is_some_and(|start| plain[start..].parse::<Uuid>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &[&str]) -> Vec<Named> {
        let made = (1..).map(Timestamp::from_micros);
        let named = names.iter().zip(made).map(|(name, created_at)| Named {
            id: AssistantId::random(),
            name: (*name).to_owned(),
            created_at,
        });
        named.collect()
    }

    #[test]
    fn names_are_valid_and_the_oldest_keeps_its_own() {
        let long_name = "x".repeat(200);
        let assistants = named(&[
            "my  agent ",
            "my_agent",
            "Größe (2.0)",
            "你好",
            long_name.as_str(),
            long_name.as_str(),
        ]);
        let ids: Vec<AssistantId> = assistants.iter().map(|one| one.id).collect();
        let made = tools(assistants);
        let names: Vec<&str> = made.iter().map(|tool| tool.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "my_agent",
                format!("my_agent-{}", ids[1]).as_str(),
                "Gre_2.0",
                ids[3].to_string().as_str(),
                "x".repeat(128).as_str(),
                format!("{}-{}", "x".repeat(91), ids[5]).as_str(),
            ]
        );
        assert!(made[0].is_called("my_agent") && made[0].is_called(&format!("my_agent-{}", ids[0])));
        assert!(!made[1].is_called("my_agent"));
    }

    #[test]
    fn nobody_takes_the_name_of_another() {
        let mut assistants = named(&["", "agent", "agent"]);
        assistants[0].name = format!("agent-{}", assistants[2].id);
        let names: HashSet<String> = tools(assistants).into_iter().map(|tool| tool.name).collect();
        assert_eq!(names.len(), 3);
    }
}
