//! What the metadata of an assistant say about it as an agent, under `a2a`.

use serde_json::Value;
use towpath_domain::agent::a2a::{A2aError, Dialect, ErrorCode, MediaType};
use towpath_store::assistants::Assistant;

/// Media types of messages, unless the metadata name others.
const DEFAULT_MEDIA_TYPES: [&str; 2] = ["application/json", "text/plain"];

/// What the owner of an assistant chooses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AgentOptions {
    /// Versions of the protocol, the newest first.
    pub versions: Vec<Dialect>,
    pub output_modes: Vec<String>,
    /// Media types that messages may name; any if the metadata name none.
    input_modes: Option<Vec<String>>,
}

/// Whether a name is that of a version. Cards and clients may add a patch number: `0.3.0`.
fn is_version(name: &str, version: Dialect) -> bool {
    name.strip_prefix(version_name(version))
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

impl AgentOptions {
    pub(super) fn of(assistant: &Assistant) -> Self {
        let metadata: Value = serde_json::from_str(&assistant.metadata).unwrap_or_default();
        Self::from_metadata(&metadata)
    }

    fn from_metadata(metadata: &Value) -> Self {
        let named = texts(metadata, "versions").unwrap_or_default();
        let mut versions = vec![Dialect::V10, Dialect::V03];
        versions.retain(|version| named.iter().any(|name| is_version(name, *version)));
        Self {
            versions: if versions.is_empty() {
                vec![Dialect::V10, Dialect::V03]
            } else {
                versions
            },
            output_modes: texts(metadata, "output_modes").unwrap_or_else(default_media_types),
            input_modes: texts(metadata, "input_modes"),
        }
    }

    /// The media types of messages that the card names.
    pub(super) fn input_modes(&self) -> Vec<String> {
        self.input_modes.clone().unwrap_or_else(default_media_types)
    }

    /// Refuses a version of the protocol that the agent does not have.
    pub(super) fn check_version(&self, version: Dialect) -> Result<(), A2aError> {
        if self.versions.contains(&version) {
            return Ok(());
        }
        let known: Vec<&str> = self.versions.iter().copied().map(version_name).collect();
        let text = format!(
            "Version {} of the protocol is not supported by this assistant. Supported versions: {}",
            version_name(version),
            known.join(", ")
        );
        Err(A2aError::new(ErrorCode::VersionNotSupported, text))
    }

    /// Refuses a media type that the agent does not accept.
    pub(super) fn check_media_types(&self, named: &[MediaType]) -> Result<(), A2aError> {
        let Some(accepted) = &self.input_modes else {
            return Ok(());
        };
        let Some(refused) = named.iter().find(|media| !media.is_among(accepted)) else {
            return Ok(());
        };
        let text = format!(
            "{}: the assistant does not accept the media type {:.100}. Accepted media types: {}",
            refused.place,
            refused.name,
            accepted.join(", ")
        );
        Err(A2aError::new(ErrorCode::ContentTypeNotSupported, text))
    }
}

pub(super) const fn version_name(version: Dialect) -> &'static str {
    match version {
        Dialect::V03 => "0.3",
        Dialect::V10 => "1.0",
    }
}

fn default_media_types() -> Vec<String> {
    DEFAULT_MEDIA_TYPES.map(str::to_owned).to_vec()
}

/// A list of texts; nothing if it has none.
fn texts(metadata: &Value, key: &str) -> Option<Vec<String>> {
    let named = metadata.get("a2a")?.get(key)?.as_array()?;
    let named = named.iter().filter_map(Value::as_str).map(str::trim);
    let named: Vec<String> = named.filter(|text| !text.is_empty()).map(str::to_owned).collect();
    (!named.is_empty()).then_some(named)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn media(name: &str) -> Vec<MediaType> {
        vec![MediaType {
            place: "message.parts.0".to_owned(),
            name: name.to_owned(),
        }]
    }

    #[test]
    fn an_assistant_may_name_its_modes() {
        let metadata = json!({"a2a": {"input_modes": ["image/png", " "], "output_modes": []}});
        let options = AgentOptions::from_metadata(&metadata);
        assert_eq!(options.input_modes(), ["image/png"]);
        assert_eq!(options.output_modes, DEFAULT_MEDIA_TYPES);
        assert_eq!(options.check_media_types(&media("image/png")), Ok(()));
        let refused = options.check_media_types(&media("text/plain")).unwrap_err();
        assert_eq!(refused.code, ErrorCode::ContentTypeNotSupported);
        assert!(refused.message.starts_with("message.parts.0"), "{}", refused.message);
        let usual = AgentOptions::from_metadata(&json!({}));
        assert_eq!(usual.input_modes(), DEFAULT_MEDIA_TYPES);
        assert_eq!(usual.check_media_types(&media("image/png")), Ok(()));
    }

    #[test]
    fn an_assistant_may_name_its_versions() {
        let both = vec![Dialect::V10, Dialect::V03];
        for (named, expected) in [
            (json!(["1.0"]), vec![Dialect::V10]),
            (json!(["0.3.0"]), vec![Dialect::V03]),
            (json!(["0.3.0", "1.0"]), both.clone()),
            (json!(["9.0"]), both.clone()),
            (json!("1.0"), both),
        ] {
            let options = AgentOptions::from_metadata(&json!({"a2a": {"versions": named}}));
            assert_eq!(options.versions, expected, "{named}");
        }
        let newest = AgentOptions::from_metadata(&json!({"a2a": {"versions": ["1.0"]}}));
        assert_eq!(newest.check_version(Dialect::V10), Ok(()));
        let refused = newest.check_version(Dialect::V03).unwrap_err();
        assert_eq!(refused.code, ErrorCode::VersionNotSupported);
    }
}
