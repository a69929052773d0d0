//! Questions to children: states of threads, graph schemas, authentication and authorization.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::calls::{self, CreditWindow, SaveBatch};
use super::connection::{OpenError, Stream};
use super::frame::FrameType;
use super::message::{self, Answer, Authenticate, Authorize, Authorized, Cancel, Depth, Embed, Json, Question, Raised};
use super::pool::Pool;
use crate::{
    CheckpointRef, EmbedError, GraphError, HistoryQuery, Host, Schemas, StateRef, StateSnapshot, Update, Xray,
};

/// A question in flight. Dropped before its answer, it is withdrawn.
struct PendingQuestion {
    stream: Stream,
    answered: bool,
}

impl Drop for PendingQuestion {
    fn drop(&mut self) {
        if !self.answered {
            let action = "interrupt".to_owned();
            self.stream.send(FrameType::CANCEL, &Cancel { action });
        }
    }
}

/// Asks, and returns what the child asks meanwhile.
async fn ask_child<T: DeserializeOwned>(
    pool: &Pool,
    r#type: FrameType,
    question: &impl Serialize,
    host: Option<&dyn Host>,
) -> Result<Result<Option<T>, Raised>, GraphError> {
    let seat = pool.lease_for_question().await?;
    let stream = match seat.child().connection.open(r#type, question) {
        Ok(stream) => stream,
        Err(OpenError::Closed) => return Err(host_ended()),
        Err(OpenError::TooLong(error)) => return Err(GraphError::new("ValueError", error.to_string())),
    };
    let mut asked = PendingQuestion {
        stream,
        answered: false,
    };
    let limit = pool.options().question_limit;
    match tokio::time::timeout(limit, asked.answer(host)).await {
        Ok(answer) => answer,
        Err(_) => Err(GraphError::lost(
            "HostTimeout",
            format!("the graph host did not answer within {limit:?}"),
        )),
    }
}

fn host_ended() -> GraphError {
    GraphError::lost("HostCrashed", "the graph host exited before it answered")
}

impl PendingQuestion {
    async fn answer<T: DeserializeOwned>(
        &mut self,
        host: Option<&dyn Host>,
    ) -> Result<Result<Option<T>, Raised>, GraphError> {
        let mut frames = Vec::new();
        let mut window = CreditWindow::default();
        loop {
            if self.stream.next(&mut frames).await == 0 {
                self.answered = true;
                return Err(host_ended());
            }
            let stream = &self.stream;
            let mut saves = SaveBatch::default();
            let mut dealt = 0;
            let mut answered = None;
            for frame in frames.drain(..) {
                match (frame.r#type, host) {
                    (FrameType::ANSWER, _) => answered = Some(frame),
                    (FrameType::CP_PUT | FrameType::CP_WRITES, Some(_)) => {
                        dealt += frame.payload.len();
                        saves.add(&frame)?;
                    }
                    (call, Some(host)) if calls::is_call(call) => {
                        saves.flush(stream, host).await?;
                        calls::answer(&frame, stream, host).await?;
                    }
                    _ => {}
                }
            }
            if let Some(host) = host {
                saves.flush(stream, host).await?;
            }
            window.consumed(dealt, stream);
            if let Some(frame) = answered {
                self.answered = true;
                let answer: Answer<T> = message::read(&frame.payload).map_err(calls::protocol)?;
                return Ok(match answer.error {
                    Some(raised) => Err(raised),
                    None => Ok(answer.value),
                });
            }
        }
    }
}

/// As [`ask`], where every refusal is an error of the graph.
async fn ask_graph(
    pool: &Pool,
    r#type: FrameType,
    question: &Question,
    host: Option<&dyn Host>,
) -> Result<Option<Json>, GraphError> {
    ask_child::<Json>(pool, r#type, question, host)
        .await?
        .map_err(graph_error)
}

fn graph_error(raised: Raised) -> GraphError {
    let retry = matches!(raised.kind.as_deref(), Some("lost" | "fenced" | "retry"));
    GraphError {
        class: raised.error,
        message: raised.message,
        retry,
        traceback: raised.traceback,
    }
}

#[expect(clippy::needless_pass_by_value, reason = "as `map_err` calls it")]
fn unreadable(error: serde_json::Error) -> GraphError {
    GraphError::new(
        "RuntimeError",
        format!("the graph host's answer cannot be read: {error}"),
    )
}

fn question_about(graph: &str, at: &StateRef) -> Question {
    Question {
        graph: graph.to_owned(),
        thread: Some(at.thread_id.to_string()),
        ns: Some(at.ns.clone()),
        id: at.id.clone(),
        ..Question::default()
    }
}

pub(super) async fn state(
    pool: &Pool,
    graph: &str,
    at: &StateRef,
    subgraphs: bool,
    host: &dyn Host,
) -> Result<Option<StateSnapshot>, GraphError> {
    let question = Question {
        subgraphs,
        ..question_about(graph, at)
    };
    let answer = ask_graph(pool, FrameType::STATE_GET, &question, Some(host)).await?;
    answer.map_or(Ok(None), |state| state.read().map_err(unreadable))
}

pub(super) async fn history(
    pool: &Pool,
    graph: &str,
    at: &StateRef,
    query: &HistoryQuery,
    host: &dyn Host,
) -> Result<Vec<StateSnapshot>, GraphError> {
    let question = Question {
        limit: query.limit.map(|limit| limit as u64),
        before: query.before.clone(),
        filter: Some(Json::of(&query.filter).map_err(unreadable)?),
        ..question_about(graph, at)
    };
    let answer = ask_graph(pool, FrameType::HISTORY, &question, Some(host)).await?;
    answer.map_or(Ok(Vec::new()), |states| states.read().map_err(unreadable))
}

pub(super) async fn update_state(
    pool: &Pool,
    graph: &str,
    at: &StateRef,
    supersteps: &[Vec<Update>],
    metadata: &Map<String, Value>,
    host: &dyn Host,
) -> Result<CheckpointRef, GraphError> {
    let shown = |update: &Update| {
        let command = update.command.as_ref().map(|command| json!(command));
        json!({"values": update.values, "as_node": update.as_node, "command": command})
    };
    let supersteps: Vec<Vec<Value>> = supersteps
        .iter()
        .map(|updates| updates.iter().map(shown).collect())
        .collect();
    let question = Question {
        supersteps: Some(Json::of(&supersteps).map_err(unreadable)?),
        metadata: Some(Json::of(metadata).map_err(unreadable)?),
        ..question_about(graph, at)
    };
    let answer = ask_graph(pool, FrameType::STATE_UPDATE, &question, Some(host)).await?;
    let answer = answer.ok_or_else(|| GraphError::new("RuntimeError", "the graph host created no checkpoint"))?;
    answer.read().map_err(unreadable)
}

pub(super) async fn drawing(pool: &Pool, graph: &str, xray: Xray) -> Result<Value, GraphError> {
    let question = Question {
        graph: graph.to_owned(),
        xray: Some(match xray {
            Xray::No => Depth::All(false),
            Xray::All => Depth::All(true),
            Xray::Levels(levels) => Depth::Levels(levels),
        }),
        ..Question::default()
    };
    let answer = ask_graph(pool, FrameType::DRAW, &question, None).await?;
    let answer = answer.ok_or_else(|| GraphError::new("ValueError", "the graph cannot be drawn"))?;
    answer.read().map_err(unreadable)
}

pub(super) async fn subgraphs(
    pool: &Pool,
    graph: &str,
    namespace: Option<&str>,
    recurse: bool,
) -> Result<BTreeMap<String, Schemas>, GraphError> {
    let question = Question {
        graph: graph.to_owned(),
        namespace: namespace.map(str::to_owned),
        recurse,
        ..Question::default()
    };
    let answer = ask_graph(pool, FrameType::SUBGRAPHS, &question, None).await?;
    answer.map_or(Ok(BTreeMap::new()), |found| found.read().map_err(unreadable))
}

/// A request, as a user's auth sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Request {
    /// `GET`, …
    pub method: String,
    pub path: String,
    pub query: String,
    /// Its headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// Of the route.
    pub path_params: BTreeMap<String, String>,
}

/// The caller according to the user's auth: `identity`, `permissions`, and further fields.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct Caller(pub Map<String, Value>);

impl Caller {
    #[must_use]
    pub fn identity(&self) -> &str {
        self.0.get("identity").and_then(Value::as_str).unwrap_or_default()
    }

    /// What runs of this caller find in their `configurable`.
    #[must_use]
    pub fn configurable(&self) -> Map<String, Value> {
        let permissions = self.0.get("permissions").cloned().unwrap_or_else(|| json!([]));
        Map::from_iter([
            ("langgraph_auth_user".to_owned(), Value::Object(self.0.clone())),
            ("langgraph_auth_user_id".to_owned(), json!(self.identity())),
            ("langgraph_auth_permissions".to_owned(), permissions),
        ])
    }
}

/// What a caller may.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Authorization {
    /// Only rows whose metadata have this.
    pub filter: Map<String, Value>,
    /// What the handlers made of the value.
    pub value: Option<Value>,
}

/// Why a caller may not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthDenied {
    /// The user's auth refuses.
    #[error("{message}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// What the caller reads.
        message: String,
        /// Headers of the answer.
        headers: BTreeMap<String, String>,
    },
    /// The user's auth failed, or there is no one to ask.
    #[error("{0}")]
    Failed(String),
}

impl From<GraphError> for AuthDenied {
    fn from(error: GraphError) -> Self {
        Self::Failed(error.to_string())
    }
}

fn denied(raised: Raised) -> AuthDenied {
    if raised.kind.as_deref() == Some("denied") {
        return AuthDenied::Refused {
            status: raised.status.unwrap_or(403),
            message: raised.message,
            headers: raised.headers.unwrap_or_default(),
        };
    }
    AuthDenied::Failed(format!("{}: {}", raised.error, raised.message))
}

impl Pool {
    /// Asks the user's auth who calls.
    pub async fn authenticate(&self, request: Request) -> Result<Caller, AuthDenied> {
        let question = Authenticate {
            method: request.method,
            path: request.path,
            query: request.query,
            headers: request.headers,
            path_params: request.path_params,
        };
        let answer = ask_child::<Json>(self, FrameType::AUTHENTICATE, &question, None).await?;
        let answer = answer.map_err(denied)?;
        let answer = answer.ok_or_else(|| AuthDenied::Failed("the auth handler returned no identity".to_owned()))?;
        answer.read().map_err(|error| AuthDenied::Failed(error.to_string()))
    }

    /// Asks the user's auth whether a caller may do something.
    pub async fn authorize(
        &self,
        resource: &str,
        action: &str,
        value: &Value,
        caller: &Caller,
    ) -> Result<Authorization, AuthDenied> {
        let failed = |error: serde_json::Error| AuthDenied::Failed(error.to_string());
        let question = Authorize {
            resource: resource.to_owned(),
            action: action.to_owned(),
            value: Json::of(value).map_err(failed)?,
            user: Json::of(&caller.0).map_err(failed)?,
        };
        let answer = ask_child::<Authorized>(self, FrameType::AUTHORIZE, &question, None).await?;
        let answer = answer.map_err(denied)?;
        let refused = || AuthDenied::Refused {
            status: 403,
            message: "Forbidden".to_owned(),
            headers: BTreeMap::new(),
        };
        let answer = answer.filter(|answer| answer.allowed).ok_or_else(refused)?;
        let filter: Option<Map<String, Value>> = match &answer.filter {
            Some(filter) => filter.read().map_err(failed)?,
            None => None,
        };
        let value = match &answer.value {
            Some(value) => value.read().map_err(failed)?,
            None => None,
        };
        Ok(Authorization {
            filter: filter.unwrap_or_default(),
            value,
        })
    }

    /// Asks the embedder that `store.index` names for the vectors of texts.
    pub async fn embed(&self, texts: &[String]) -> Result<Vec<Vec<f32>>, EmbedError> {
        let question = Embed { texts: texts.to_vec() };
        let answer = ask_child::<Vec<Vec<f32>>>(self, FrameType::EMBED, &question, None).await;
        match answer.map_err(|error| EmbedError::Unavailable(error.to_string()))? {
            Ok(vectors) => Ok(vectors.unwrap_or_default()),
            Err(raised) => Err(EmbedError::Refused(format!("{}: {}", raised.error, raised.message))),
        }
    }
}
