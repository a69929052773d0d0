//! Requests that may be sent again: `Idempotency-Key` on what creates work.
//!
//! A client whose answer got lost cannot know whether the work was recorded. Under a key it may ask again: the same
//! request gets the answer of the first time, another one is refused. The answer is kept in the transaction that
//! records the work, so the two cannot disagree, wherever the process dies.

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use towpath_domain::{TenantId, failpoint};
use towpath_store::idempotency::{self, IdempotentRequest, KeyState};
use towpath_store::{self as store, Store, Tx};

use crate::errors::{ApiError, LocSegment};
use crate::extract::{JSON_BODY_BYTES, expect_json, is_json, parse_json, read_body};

const KEY: HeaderName = HeaderName::from_static("idempotency-key");
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
/// The longest key, in bytes.
const MAX_KEY_BYTES: usize = 255;

/// A JSON body, and the key it came under.
#[derive(Debug)]
pub struct IdempotentJson<T> {
    pub body: T,
    /// Set where the request has a key.
    pub key: Option<IdempotentRequest>,
}

/// As [`Once`], of a request that may leave its body out.
#[derive(Debug)]
pub struct IdempotentJsonOrEmpty<T>(pub IdempotentJson<T>);

/// The header, for the API description.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "names the header in the API description")]
pub struct IdempotencyKey {
    /// Any text. Within 24 hours the same request under the same key is performed once and answered as the first time;
    /// another request under that key is refused with 409.
    #[param(rename = "Idempotency-Key", min_length = 1, max_length = 255, pattern = "^[ -~]+$")]
    key: Option<String>,
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for IdempotentJson<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _state: &S) -> Result<Self, ApiError> {
        expect_json(&request)?;
        let (keyed, bytes) = read(request).await?;
        Ok(Self {
            body: parse_json(&bytes)?,
            key: keyed,
        })
    }
}

impl<T: DeserializeOwned + Default, S: Send + Sync> FromRequest<S> for IdempotentJsonOrEmpty<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _state: &S) -> Result<Self, ApiError> {
        let says_json = is_json(&request);
        let (keyed, bytes) = read(request).await?;
        let body = if bytes.is_empty() {
            T::default()
        } else if says_json {
            parse_json(&bytes)?
        } else {
            let text = "send the body as Content-Type: application/json";
            return Err(ApiError::unsupported_media_type(text));
        };
        Ok(Self(IdempotentJson { body, key: keyed }))
    }
}

/// The body, and what the request is known by where it has a key: the same body for another object is another request.
async fn read(request: Request) -> Result<(Option<IdempotentRequest>, Bytes), ApiError> {
    let (head, body) = request.into_parts();
    let key = key(&head.headers)?;
    let bytes = read_body(body, JSON_BODY_BYTES).await?;
    let keyed = key.map(|key| IdempotentRequest::new(key, &format!("{} {}", head.method, head.uri.path()), &bytes));
    Ok((keyed, bytes))
}

fn key(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let mut sent = headers.get_all(KEY).iter();
    let Some(key) = sent.next() else { return Ok(None) };
    if sent.next().is_some() {
        return Err(ApiError::bad_request(
            "the header idempotency-key was sent more than once",
        ));
    }
    let plain = key.as_bytes().iter().all(|byte| matches!(byte, 0x20..=0x7e));
    match key.to_str() {
        Ok(text) if plain && (1..=MAX_KEY_BYTES).contains(&text.len()) => Ok(Some(text.to_owned())),
        _ => Err(ApiError::invalid_at(
            vec!["header".into(), LocSegment::from(KEY.as_str())],
            "value_error",
            "expected 1 to 255 printable ASCII characters",
        )),
    }
}

/// What was answered to this request before, if anything was. For handlers that look outside before they write.
///
/// # Errors
/// The key belongs to another request, or the database does not answer.
pub async fn recorded_answer(
    store: &Store,
    tenant: TenantId,
    keyed: Option<&IdempotentRequest>,
) -> Result<Option<Response>, ApiError> {
    let Some(keyed) = keyed else { return Ok(None) };
    let known = store
        .read(async |tx| idempotency::find(tx, tenant, keyed).await)
        .await?;
    match known {
        KeyState::New => Ok(None),
        KeyState::Answered(answer) => Ok(Some(replay(answer))),
        KeyState::OtherRequest => Err(key_conflict()),
    }
}

/// Does `work` and gives what `tell` makes of it, or gives what the same request was answered before.
///
/// # Errors
/// Those of `work`; the key belongs to another request.
pub async fn run_once<R, T>(
    store: &Store,
    tenant: TenantId,
    keyed: Option<&IdempotentRequest>,
    tell: impl FnOnce(R) -> Result<T, ApiError>,
    work: impl AsyncFnOnce(&mut Tx<'_>) -> store::Result<R>,
) -> Result<Response, ApiError>
where
    T: Serialize,
{
    let mut problem = None;
    let done = store
        .write(async |tx| {
            if let Some(keyed) = keyed {
                match idempotency::claim(tx, tenant, keyed).await? {
                    KeyState::New => {}
                    known => return Ok(Err(known)),
                }
            }
            let answer = match tell(work(tx).await?).and_then(|made| json(&made)) {
                Ok(answer) => answer,
                Err(error) => {
                    // Only an error rolls back.
                    problem = Some(error);
                    return Err(store::Error::Stale);
                }
            };
            if let Some(keyed) = keyed {
                idempotency::keep(tx, tenant, keyed, &answer).await?;
            }
            Ok(Ok(answer))
        })
        .await;
    if let Some(problem) = problem {
        return Err(problem);
    }
    match done? {
        Ok(answer) => {
            failpoint::hit("api.committed");
            Ok(fresh(answer))
        }
        Err(KeyState::Answered(answer)) => Ok(replay(answer)),
        Err(KeyState::OtherRequest) => Err(key_conflict()),
        // Its row went away between two statements: it had just grown too old.
        Err(KeyState::New) => Err(ApiError::conflict(
            "the idempotency key has just expired; send the request again",
        )),
    }
}

/// The answer to a request that made something others are asked about by its address.
pub fn created(mut answer: Response) -> Response {
    *answer.status_mut() = StatusCode::CREATED;
    answer
}

fn json(made: &impl Serialize) -> Result<String, ApiError> {
    serde_json::to_string(made).map_err(|error| ApiError::internal(&error))
}

fn fresh(answer: String) -> Response {
    ([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], answer).into_response()
}

fn replay(answer: String) -> Response {
    ([(REPLAYED, HeaderValue::from_static("true"))], fresh(answer)).into_response()
}

fn key_conflict() -> ApiError {
    ApiError::conflict("this Idempotency-Key was used for another request within the last 24 hours")
}
