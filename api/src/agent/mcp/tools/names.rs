//! Names of tools. They have to be unique and of few characters; names of assistants are neither.

use std::collections::HashSet;

use towpath_domain::{AssistantId, Timestamp};
use towpath_store::assistants::AssistantName;
use uuid::Uuid;

/// The longest name of a tool.
const MAX_NAME_LENGTH: usize = 128;
/// Characters of an id.
const ID_LENGTH: usize = 36;

/// An assistant as a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tool {
    pub id: AssistantId,
    pub name: String,
    pub created_at: Timestamp,
    /// Its name with its id, which no other tool will ever have.
    long_name: String,
}

impl Tool {
    /// Whether a client means this one.
    pub(super) fn has_name(&self, name: &str) -> bool {
        self.name == name || self.long_name == name
    }
}

/// Names assistants, the oldest first: of those that would be named alike, the oldest keeps the name however many come
/// after it.
pub(super) fn assign_names(assistants: Vec<AssistantName>) -> Vec<Tool> {
    let mut taken = HashSet::new();
    let assistants = assistants.into_iter();
    assistants
        .map(|assistant| {
            let plain = sanitize_name(&assistant.name);
            let long_name = name_with_id(&plain, assistant.id);
            let is_free = !plain.is_empty() && !has_id_suffix(&plain) && taken.insert(plain.clone());
            Tool {
                id: assistant.id,
                name: if is_free { plain } else { long_name.clone() },
                created_at: assistant.created_at,
                long_name,
            }
        })
        .collect()
}

/// As much of a name as the protocol allows: letters, digits, `_`, `-` and `.`; blanks are `_`.
fn sanitize_name(name: &str) -> String {
    let joined = name.split_whitespace().collect::<Vec<_>>().join("_");
    let allowed = |letter: &char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-' | '.');
    joined.chars().filter(allowed).take(MAX_NAME_LENGTH).collect()
}

fn name_with_id(plain: &str, id: AssistantId) -> String {
    // All of its characters are one byte long.
    match &plain[..plain.len().min(MAX_NAME_LENGTH - ID_LENGTH - 1)] {
        "" => id.to_string(),
        start => format!("{start}-{id}"),
    }
}

/// Whether it could be a name with an id.
fn has_id_suffix(plain: &str) -> bool {
    let start = plain.len().checked_sub(ID_LENGTH);
    start.is_some_and(|start| plain[start..].parse::<Uuid>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &[&str]) -> Vec<AssistantName> {
        let made = (1..).map(Timestamp::from_micros);
        let named = names.iter().zip(made).map(|(name, created_at)| AssistantName {
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
        let made = assign_names(assistants);
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
        assert!(made[0].has_name("my_agent") && made[0].has_name(&format!("my_agent-{}", ids[0])));
        assert!(!made[1].has_name("my_agent"));
    }

    #[test]
    fn nobody_takes_the_name_of_another() {
        let mut assistants = named(&["", "agent", "agent"]);
        assistants[0].name = format!("agent-{}", assistants[2].id);
        let names: HashSet<String> = assign_names(assistants).into_iter().map(|tool| tool.name).collect();
        assert_eq!(names.len(), 3);
    }
}
