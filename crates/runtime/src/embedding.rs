//! Vectors of texts, for searches of the store: from an endpoint, or from the user's code.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use serde::Deserialize;
use serde_json::json;
use towpath_domain::Secret;
use towpath_outbound::{Call, Guard};

use crate::hosted::Pool;

/// A call of an endpoint takes at most this long.
const TIME_LIMIT: Duration = Duration::from_secs(60);
/// The maximum size of an endpoint's answer.
const MAX_ANSWER_BYTES: usize = 64 << 20;
/// Models that shorten their vectors to the dimensions that a request names.
const SHORTENING_MODELS: &str = "text-embedding-3";

/// What turns texts into vectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Embedder {
    /// An endpoint that takes what OpenAI's `/v1/embeddings` takes.
    Endpoint(EmbeddingEndpoint),
    /// What `store.index.embed` names, in a child process.
    Code,
}

/// An endpoint that takes what OpenAI's `/v1/embeddings` takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmbeddingEndpoint {
    /// Without `/embeddings`, such as `https://api.openai.com/v1`.
    pub base_url: String,
    pub model: String,
    /// For `Authorization: Bearer`.
    pub key: Option<Secret>,
}

/// Why there are no vectors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EmbedError {
    /// Nothing answers, or it is overloaded: later the same texts may be embedded.
    #[error("the embedder is unavailable: {0}")]
    Unavailable(String),
    /// It does not take these texts, or its answer cannot be used.
    #[error("the embedder refused: {0}")]
    Refused(String),
}

impl Embedder {
    /// One vector of `dims` numbers for each text. `pool` are the children that have loaded the user's code.
    pub async fn embed(
        &self,
        texts: &[String],
        dims: usize,
        guard: &Guard,
        pool: Option<&Pool>,
    ) -> Result<Vec<Vec<f32>>, EmbedError> {
        let vectors = match self {
            Self::Endpoint(endpoint) => endpoint.embed(texts, dims, guard).await?,
            Self::Code => {
                let missing = || EmbedError::Unavailable("no graph host has loaded store.index.embed".to_owned());
                pool.ok_or_else(missing)?.embed(texts).await?
            }
        };
        if vectors.len() != texts.len() {
            let (given, got) = (texts.len(), vectors.len());
            return Err(EmbedError::Refused(format!("{got} vectors for {given} texts")));
        }
        if let Some(vector) = vectors.iter().find(|vector| vector.len() != dims) {
            return Err(EmbedError::Refused(format!(
                "vectors of {} dimensions, but store.index.dims is {dims}",
                vector.len()
            )));
        }
        if vectors.iter().flatten().any(|number| !number.is_finite()) {
            return Err(EmbedError::Refused(
                "a vector with a number that is not finite".to_owned(),
            ));
        }
        Ok(vectors)
    }
}

#[derive(Deserialize)]
struct Answer {
    data: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    index: Option<usize>,
    embedding: Vec<f32>,
}

impl EmbeddingEndpoint {
    async fn embed(&self, texts: &[String], dims: usize, guard: &Guard) -> Result<Vec<Vec<f32>>, EmbedError> {
        let mut body = json!({"model": self.model, "input": texts, "encoding_format": "float"});
        if self.model.starts_with(SHORTENING_MODELS) {
            body["dimensions"] = json!(dims);
        }
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        if let Some(key) = &self.key {
            let value = HeaderValue::from_str(&format!("Bearer {}", key.reveal()));
            let mut value = value
                .map_err(|_| EmbedError::Unavailable("OPENAI_API_KEY has characters no header can have".to_owned()))?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        let call = Call {
            method: Method::POST,
            url: format!("{}/embeddings", self.base_url.trim_end_matches('/')),
            headers,
            body: Bytes::from(body.to_string()),
            limit: TIME_LIMIT,
        };
        let unavailable = |error: &dyn std::fmt::Display| EmbedError::Unavailable(error.to_string());
        let reply = guard.call(call).await.map_err(|error| unavailable(&error))?;
        let status = reply.status();
        let answer = reply
            .bytes(MAX_ANSWER_BYTES)
            .await
            .map_err(|error| unavailable(&error))?;
        if !status.is_success() {
            let text: String = String::from_utf8_lossy(&answer).chars().take(500).collect();
            let text = format!("{status}: {text}");
            // Only these are about the texts; keys, quotas and models are for the operator to mend.
            return Err(match status {
                StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE | StatusCode::UNPROCESSABLE_ENTITY => {
                    EmbedError::Refused(text)
                }
                _ => EmbedError::Unavailable(text),
            });
        }
        let answer: Answer = serde_json::from_slice(&answer)
            .map_err(|error| EmbedError::Refused(format!("its answer cannot be read: {error}")))?;
        let mut entries = answer.data;
        // The order of the texts is that of the indexes, where there are some.
        entries.sort_by_key(|entry| entry.index);
        Ok(entries.into_iter().map(|entry| entry.embedding).collect())
    }
}
