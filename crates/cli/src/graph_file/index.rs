//! `store.index` of a graph file.

use serde_json::Value;
use towpath_domain::Secret;
use towpath_domain::agent::text_path;
use towpath_runtime::{Embedder, EmbeddingEndpoint};
use towpath_workflows::item_index::{IndexSettings, MAX_DIMS};

/// Where OpenAI's models are.
const OPENAI: &str = "https://api.openai.com/v1";
/// Models of endpoints that the server calls itself.
const ENDPOINT: &str = "openai:";
const EMBED: &str = "store.index.embed: expected \"openai:model\" or \"./file.py:function\"";

/// How items are embedded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Index {
    dims: usize,
    embed: String,
    fields: Vec<String>,
}

impl Index {
    /// Reads the section; `None` if it is switched off.
    pub fn read(section: &Value) -> Result<Option<Self>, String> {
        let section = match section {
            Value::Null | Value::Bool(false) => return Ok(None),
            Value::Object(section) => section,
            _ => return Err("store.index: expected an object with `dims` and `embed`".to_owned()),
        };
        let dims = section.get("dims").and_then(Value::as_u64);
        let dims = dims.and_then(|dims| usize::try_from(dims).ok());
        let dims = dims.filter(|dims| (1..=MAX_DIMS).contains(dims)).ok_or_else(|| {
            format!("store.index.dims: expected the number of dimensions of the embedder's vectors, 1 to {MAX_DIMS}")
        })?;
        let embed = section.get("embed").and_then(Value::as_str).ok_or(EMBED)?;
        check_embed(embed)?;
        let fields = match section.get("fields") {
            None | Some(Value::Null) => vec!["$".to_owned()],
            Some(fields) => read_fields(fields)?,
        };
        Ok(Some(Self {
            dims,
            embed: embed.to_owned(),
            fields,
        }))
    }

    /// Whether a process with the user's code embeds.
    pub fn needs_host(&self) -> bool {
        !self.embed.starts_with(ENDPOINT)
    }

    /// The setting, with the variables of its endpoint. The error names the variable.
    pub fn settings(self, find: impl Fn(&str) -> Option<Secret>) -> Result<IndexSettings, String> {
        let embedder = match self.embed.strip_prefix(ENDPOINT) {
            None => Embedder::Code,
            Some(model) => {
                let named = find("OPENAI_BASE_URL").or_else(|| find("OPENAI_API_BASE"));
                let base_url = named.map_or(OPENAI.to_owned(), |url| url.reveal().to_owned());
                if !base_url.starts_with("http://") && !base_url.starts_with("https://") {
                    return Err("OPENAI_BASE_URL: expected an http or https address for store.index.embed".to_owned());
                }
                let key = find("OPENAI_API_KEY");
                if key.is_none() && base_url == OPENAI {
                    tracing::warn!("store.index.embed: OPENAI_API_KEY is not set, so no item can be embedded");
                }
                Embedder::Endpoint(EmbeddingEndpoint {
                    base_url,
                    model: model.to_owned(),
                    key,
                })
            }
        };
        Ok(IndexSettings {
            dims: self.dims,
            embed: self.embed,
            fields: self.fields,
            embedder,
        })
    }
}

fn check_embed(embed: &str) -> Result<(), String> {
    let (before, name) = embed.rsplit_once(':').unwrap_or_default();
    if before.is_empty() || name.is_empty() {
        return Err(format!("{EMBED}, not {embed:?}"));
    }
    let javascript = [".js", ".mjs", ".cjs", ".ts", ".mts"];
    if javascript.iter().any(|extension| before.ends_with(extension)) {
        return Err(format!(
            "store.index.embed: {embed:?} is JavaScript; this build calls only Python functions and endpoints"
        ));
    }
    Ok(())
}

fn read_fields(fields: &Value) -> Result<Vec<String>, String> {
    let wrong = || "store.index.fields: expected a list of paths, such as [\"$\"] or [\"text\"]".to_owned();
    let fields = fields
        .as_array()
        .filter(|fields| !fields.is_empty())
        .ok_or_else(wrong)?;
    let fields: Option<Vec<String>> = fields.iter().map(|field| field.as_str().map(str::to_owned)).collect();
    let fields = fields.ok_or_else(wrong)?;
    text_path::check(&fields).map_err(|why| format!("store.index.fields: {why}"))?;
    Ok(fields)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn settings(section: &Value, environment: &[(&str, &str)]) -> Result<IndexSettings, String> {
        let index = Index::read(section)?.expect("it is switched on");
        index.settings(|name| {
            let found = environment.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| Secret::new(*value))
        })
    }

    #[test]
    fn models_are_called_where_the_environment_says() {
        let section = json!({"dims": 1536, "embed": "openai:text-embedding-3-small", "fields": ["text", "notes[*]"]});
        let read = settings(&section, &[("OPENAI_API_KEY", "k")]).unwrap();
        assert_eq!(
            (read.dims, &read.fields[..]),
            (1536, &["text".to_owned(), "notes[*]".to_owned()][..])
        );
        let Embedder::Endpoint(endpoint) = read.embedder else {
            panic!("the server calls it")
        };
        assert_eq!(endpoint.base_url, OPENAI);
        assert_eq!(endpoint.model, "text-embedding-3-small");
        assert_eq!(endpoint.key.unwrap().reveal(), "k");
        let environment = [("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")];
        let Embedder::Endpoint(endpoint) = settings(&section, &environment).unwrap().embedder else {
            panic!("the server calls it")
        };
        assert_eq!(
            (endpoint.base_url.as_str(), endpoint.key),
            ("http://127.0.0.1:1/v1", None)
        );
        let refused = settings(&section, &[("OPENAI_BASE_URL", "ftp://x")]).unwrap_err();
        assert!(refused.contains("OPENAI_BASE_URL"), "{refused}");
    }

    #[test]
    fn functions_are_called_in_a_process() {
        let section = json!({"dims": 3, "embed": "./embed.py:embed"});
        assert!(Index::read(&section).unwrap().unwrap().needs_host());
        let read = settings(&section, &[]).unwrap();
        assert_eq!((read.embedder, read.fields), (Embedder::Code, vec!["$".to_owned()]));
        assert_eq!(Index::read(&json!(null)), Ok(None));
        assert_eq!(Index::read(&json!(false)), Ok(None));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let embed = "./e.py:embed";
        for (section, says) in [
            (json!(["x"]), "store.index: "),
            (json!({"embed": embed}), "store.index.dims: "),
            (json!({"dims": 0, "embed": embed}), "store.index.dims: "),
            (json!({"dims": 1.5, "embed": embed}), "store.index.dims: "),
            (json!({"dims": "3", "embed": embed}), "store.index.dims: "),
            (json!({"dims": MAX_DIMS + 1, "embed": embed}), "store.index.dims: "),
            (json!({"dims": 3}), "store.index.embed: "),
            (json!({"dims": 3, "embed": 7}), "store.index.embed: "),
            (json!({"dims": 3, "embed": "openai:"}), "store.index.embed: "),
            (json!({"dims": 3, "embed": "embed"}), "store.index.embed: "),
            (json!({"dims": 3, "embed": "./e.ts:embed"}), "JavaScript"),
            (
                json!({"dims": 3, "embed": embed, "fields": "text"}),
                "store.index.fields: ",
            ),
            (json!({"dims": 3, "embed": embed, "fields": []}), "store.index.fields: "),
            (
                json!({"dims": 3, "embed": embed, "fields": [1]}),
                "store.index.fields: ",
            ),
            (
                json!({"dims": 3, "embed": embed, "fields": [""]}),
                "store.index.fields: ",
            ),
        ] {
            let refused = Index::read(&section).unwrap_err();
            assert!(refused.contains(says), "{section}: {refused}");
        }
    }
}
