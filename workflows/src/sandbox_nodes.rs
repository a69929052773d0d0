//! Nodes for other processes: connections to sandboxes, the pools of their jobs, and the end of lost ones.

mod handshake;
pub mod listener;
pub mod lost;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::net::TcpStream;
use tokio::time::timeout;
use towpath_sandbox::{AgentDialer, BoxAgent, Error};
use towpath_store::sandboxes::boxes::SandboxBox;
use towpath_store::sandboxes::nodes::{self, Node};
use towpath_store::sealing::Sealer;
use towpath_store::{self as store, Dialect, Store, Tx};
use uuid::Uuid;

use crate::metric;
use crate::sandbox_host::POOL;
use handshake::{Key, NodeAction, NodeAnswer, NodeRequest, PURPOSE};

pub use handshake::ConnectionPurpose;

/// Time limit of a connection to a node.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Memory that a sandbox without a limit is expected to use.
const EXPECTED_MEMORY: i64 = 256 << 20;

/// The pool of jobs that only this node can perform.
#[must_use]
pub fn pool_of_node(node: Uuid) -> String {
    format!("{POOL}:{node}")
}

/// The pool of jobs for a node, or for any: also if the node was removed, which the job finds. SQLite has a single
/// process, which performs all jobs.
pub async fn pool_for(tx: &mut Tx<'_>, node: Option<Uuid>) -> store::Result<String> {
    if let (Dialect::Postgres, Some(node)) = (tx.dialect(), node)
        && nodes::exists(tx, node).await?
    {
        return Ok(pool_of_node(node));
    }
    Ok(POOL.to_owned())
}

/// Nodes for new sandboxes with this much memory, the best one first.
pub async fn eligible(tx: &mut Tx<'_>, memory_bytes: Option<i64>) -> store::Result<Vec<Uuid>> {
    nodes::eligible(tx, memory_bytes.unwrap_or(EXPECTED_MEMORY)).await
}

/// Reaches the sandboxes of other nodes. Clones share it.
#[derive(Clone)]
pub struct NodeClient {
    store: Store,
    key: Key,
}

/// Without the key.
impl fmt::Debug for NodeClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeClient").finish_non_exhaustive()
    }
}

impl NodeClient {
    #[must_use]
    pub fn new(store: Store, sealer: &Sealer) -> Self {
        Self {
            store,
            key: sealer.derive(PURPOSE),
        }
    }

    /// The agent of a sandbox on another node; `None` if this life of it is not running, or its node is gone.
    pub async fn agent(&self, row: &SandboxBox, purpose: ConnectionPurpose) -> Result<Option<BoxAgent>, Error> {
        let Some(target) = self.target(row).await? else {
            return Ok(None);
        };
        let generation = row.generation;
        let checked = self.send(&target, row, NodeAction::Check { generation }).await;
        match checked {
            Ok(_) => {}
            Err(Error::NotRunning) => return Ok(None),
            Err(error) => return Err(error),
        }
        let dialer = NodeDialer {
            client: self.clone(),
            request: request(&target, row, NodeAction::Connect { generation, purpose }),
            target,
        };
        let agent = BoxAgent::remote(Arc::new(dialer));
        let config = row.config().ok().and_then(|config| config.run_config);
        Ok(Some(match config.and_then(|config| config.user) {
            Some(user) => agent.with_user(&user),
            None => agent,
        }))
    }

    /// Makes the node of a sandbox apply its stored network configuration.
    pub async fn apply_network(&self, row: &SandboxBox) -> Result<(), Error> {
        match self.target(row).await? {
            Some(target) => self.send(&target, row, NodeAction::ApplyNetwork).await.map(drop),
            None => Err(Error::NotRunning),
        }
    }

    /// The node of a sandbox; `None` if it has none, or its node is gone.
    async fn target(&self, row: &SandboxBox) -> Result<Option<NodeTarget>, Error> {
        let Some(id) = row.host_id else { return Ok(None) };
        let found = self.store.read(async |tx| nodes::find(tx, id).await).await;
        let found = found.map_err(|error| {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "the node of a sandbox cannot be read"
            );
            Error::Unreachable("the node of the sandbox cannot be found: the database is unavailable".to_owned())
        })?;
        found.map(NodeTarget::new).transpose()
    }

    async fn send(&self, target: &NodeTarget, row: &SandboxBox, action: NodeAction) -> Result<TcpStream, Error> {
        self.send_request(target, &request(target, row, action)).await
    }

    /// Sends a request; the stream then carries what was requested.
    async fn send_request(&self, target: &NodeTarget, request: &NodeRequest) -> Result<TcpStream, Error> {
        let unreachable = |error: &std::io::Error| {
            metrics::counter!(metric::NODE_CALLS_FAILED, "node" => target.name.clone()).increment(1);
            tracing::warn!(node = target.name, %error, "a node of sandboxes does not answer");
            Error::Unreachable(format!(
                "the node {} of the sandbox does not answer; retry",
                target.name
            ))
        };
        let connected = timeout(CONNECT_TIMEOUT, TcpStream::connect(&target.address)).await;
        let mut stream = connected
            .map_err(std::io::Error::from)
            .and_then(|connected| connected)
            .map_err(|error| unreachable(&error))?;
        set_options(&stream).map_err(|error| unreachable(&error))?;
        match handshake::ask(&mut stream, &self.key, request).await {
            Ok(NodeAnswer::Done) => Ok(stream),
            Ok(NodeAnswer::NotRunning) => Err(Error::NotRunning),
            Ok(NodeAnswer::Busy(text)) => Err(Error::Busy(text)),
            Ok(NodeAnswer::Failed(text)) => {
                let text = format!("the node {} of the sandbox failed: {text}", target.name);
                Err(Error::Unreachable(text))
            }
            Err(error) => Err(unreachable(&error)),
        }
    }
}

/// A node that can be reached.
#[derive(Clone, Debug)]
struct NodeTarget {
    id: Uuid,
    name: String,
    address: String,
}

impl NodeTarget {
    fn new(node: Node) -> Result<Self, Error> {
        if !node.is_alive {
            return Err(Error::Unreachable(unavailable_text(&node)));
        }
        let address = node.address.ok_or_else(|| {
            Error::Unsupported(format!(
                "the sandbox is on the node {}, which other processes cannot reach: set sandboxes.node_listen there",
                node.name
            ))
        })?;
        Ok(Self {
            id: node.id,
            name: node.name,
            address,
        })
    }
}

/// Why the sandboxes and volumes of a node cannot be used.
#[must_use]
pub fn unavailable_text(node: &Node) -> String {
    format!(
        "its node {} has not reported since {}; its files are there",
        node.name, node.seen_at
    )
}

fn request(target: &NodeTarget, row: &SandboxBox, action: NodeAction) -> NodeRequest {
    NodeRequest {
        node: target.id,
        tenant: row.tenant_id,
        id: row.id,
        action,
    }
}

/// Connects to the agent of one life of a sandbox.
#[derive(Debug)]
struct NodeDialer {
    client: NodeClient,
    target: NodeTarget,
    request: NodeRequest,
}

#[async_trait]
impl AgentDialer for NodeDialer {
    async fn dial(&self) -> Result<TcpStream, Error> {
        self.client.send_request(&self.target, &self.request).await
    }
}

/// Small messages are sent at once, and a peer that disappeared is noticed within a minute.
fn set_options(stream: &TcpStream) -> std::io::Result<()> {
    use rustix::net::sockopt;

    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(15))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(15))?;
    sockopt::set_tcp_keepcnt(stream, 3)?;
    // For bytes that are on their way, when no probe is sent.
    #[cfg(target_os = "linux")]
    sockopt::set_tcp_user_timeout(stream, 60_000)?;
    Ok(())
}
