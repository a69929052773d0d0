//! Secrets: environment variables of a deployment, stored sealed and never shown.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use crate::{Rejection, Secret};

/// The placeholder for a secret's value in answers. Sent back, it keeps the stored value.
pub const MASK: &str = "********";

const MOST: usize = 1_000;
/// In bytes; the limit of Linux for an environment variable.
const LONGEST_VALUE: usize = 128 << 10;

/// Names that the platform sets itself or that would change the agent server; `langgraph deploy` does not send them.
pub const RESERVED: [&str; 40] = [
    "LANGCHAIN_TRACING_V2",
    "LANGSMITH_TRACING_V2",
    "LANGCHAIN_ENDPOINT",
    "LANGCHAIN_PROJECT",
    "LANGSMITH_PROJECT",
    "LANGSMITH_LANGGRAPH_GIT_REPO",
    "LANGGRAPH_GIT_REPO_PATH",
    "LANGCHAIN_API_KEY",
    "LANGSMITH_CONTROL_PLANE_API_KEY",
    "POSTGRES_URI",
    "POSTGRES_PASSWORD",
    "DATABASE_URI",
    "LANGSMITH_LANGGRAPH_GIT_REF",
    "LANGSMITH_LANGGRAPH_GIT_REF_SHA",
    "LANGGRAPH_AUTH_TYPE",
    "LANGSMITH_AUTH_ENDPOINT",
    "LANGSMITH_TENANT_ID",
    "LANGSMITH_AUTH_VERIFY_TENANT_ID",
    "LANGSMITH_HOST_PROJECT_ID",
    "LANGSMITH_HOST_PROJECT_NAME",
    "LANGSMITH_HOST_REVISION_ID",
    "LOG_JSON",
    "LOG_DICT_TRACEBACKS",
    "REDIS_URI",
    "LANGCHAIN_CALLBACKS_BACKGROUND",
    "DD_TRACE_PSYCOPG_ENABLED",
    "DD_TRACE_REDIS_ENABLED",
    "LANGSMITH_DEPLOYMENT_NAME",
    "LANGGRAPH_CLOUD_LICENSE_KEY",
    "LANGSMITH_API_KEY",
    "LANGSMITH_ENDPOINT",
    "POSTGRES_URI_CUSTOM",
    "REDIS_URI_CUSTOM",
    "PATH",
    "PORT",
    "MOUNT_PREFIX",
    "LSD_ENV",
    "LSD_DD_API_KEY",
    "LSD_DD_ENDPOINT",
    "LSD_DEPLOYMENT_TYPE",
];

/// An environment variable of a deployment. It serialises with its value, so it is sealed before it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvSecret {
    pub name: String,
    pub value: Secret,
}

pub fn check_secrets(secrets: &[EnvSecret]) -> Result<(), Rejection> {
    if secrets.len() > MOST {
        return Err(Rejection::invalid("secrets", format!("at most {MOST} secrets")));
    }
    let mut names = HashSet::new();
    for (index, secret) in secrets.iter().enumerate() {
        let name = secret.name.as_str();
        let field = |part: &str| format!("secrets.{index}.{part}");
        let mut letters = name.bytes();
        let begins = letters
            .next()
            .is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
        if !begins || !letters.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') || name.len() > 255 {
            let text =
                "expected the name of an environment variable: letters, digits and _, not beginning with a digit";
            return Err(Rejection::invalid(field("name"), text));
        }
        if !names.insert(name) {
            return Err(Rejection::invalid(field("name"), "duplicate name"));
        }
        if RESERVED.contains(&name) {
            return Err(Rejection::rule(
                "secrets",
                format!("secrets: {name} is a reserved name and is set by the platform"),
            ));
        }
        if secret.value.reveal().contains('\0') || secret.value.reveal().len() > LONGEST_VALUE {
            return Err(Rejection::invalid(
                field("value"),
                format!("expected at most {LONGEST_VALUE} bytes and no NUL character"),
            ));
        }
    }
    Ok(())
}

/// Replaces `stored` with `sent`; a masked value keeps the stored one.
pub fn merge_secrets(sent: Vec<EnvSecret>, stored: &[EnvSecret]) -> Result<Vec<EnvSecret>, Rejection> {
    let merge = |secret: EnvSecret| {
        if secret.value.reveal() != MASK {
            return Ok(secret);
        }
        let kept = stored.iter().find(|known| known.name == secret.name);
        kept.cloned().ok_or_else(|| {
            Rejection::rule(
                "secrets",
                format!(
                    "secrets: {} has the masked value, but no value is stored under that name",
                    secret.name
                ),
            )
        })
    };
    sent.into_iter().map(merge).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RejectionKind;

    fn secret(name: &str, value: &str) -> EnvSecret {
        EnvSecret {
            name: name.to_owned(),
            value: Secret::new(value),
        }
    }

    #[test]
    fn names_are_judged() {
        assert!(check_secrets(&[secret("OPENAI_API_KEY", "a"), secret("_x1", "")]).is_ok());
        for wrong in ["", "1A", "A-B", "A B", "Ä", "A="] {
            assert_eq!(
                check_secrets(&[secret(wrong, "a")]).unwrap_err().kind,
                RejectionKind::Invalid,
                "{wrong}"
            );
        }
        let twice = check_secrets(&[secret("A", "1"), secret("A", "2")]).unwrap_err();
        assert_eq!(
            (twice.kind, twice.field.as_str()),
            (RejectionKind::Invalid, "secrets.1.name")
        );
        for name in RESERVED {
            let refused = check_secrets(&[secret(name, "a")]).unwrap_err();
            assert_eq!(refused.kind, RejectionKind::Rule);
            assert!(refused.message.contains(name));
        }
    }

    #[test]
    fn the_mask_keeps_what_is_stored() {
        let stored = [secret("A", "old"), secret("B", "gone")];
        let merged = merge_secrets(vec![secret("A", MASK), secret("C", "new")], &stored).unwrap();
        assert_eq!(merged, [secret("A", "old"), secret("C", "new")]);
        let refused = merge_secrets(vec![secret("D", MASK)], &stored).unwrap_err();
        assert_eq!(refused.kind, RejectionKind::Rule);
    }
}
