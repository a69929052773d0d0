//! Serves the sandboxes of this node to other processes of the installation.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use towpath_domain::sandbox::BoxStatus;
use towpath_sandbox::Error;
use towpath_store::sandboxes::boxes::{self, SandboxBox};
use towpath_store::sandboxes::network;
use towpath_store::sealing::Sealer;
use towpath_store::{self as store, Store};

use super::handshake::{self, ConnectionPurpose, Key, NodeAction, NodeAnswer, NodeRequest, PURPOSE};
use super::set_options;
use crate::metric;
use crate::sandbox_host::{MAX_CONNECTIONS, SandboxHost, UseGuard, error_text};

/// Maximum number of connections of other processes.
const MAX_PEERS: usize = 8192;
/// Delay after a failed accept, which usually means that no file can be opened.
const ACCEPT_DELAY: Duration = Duration::from_millis(100);

/// Accepts connections of other processes.
pub struct NodeListener {
    listener: TcpListener,
    node: Arc<NodeService>,
}

struct NodeService {
    store: Store,
    sealer: Sealer,
    keys: Vec<Key>,
    host: Arc<SandboxHost>,
}

/// What follows an answer.
enum Served {
    /// Nothing.
    Answer(NodeAnswer),
    /// A connection to an agent.
    Agent(UnixStream, Option<UseGuard>),
}

impl NodeListener {
    #[must_use]
    pub fn new(listener: TcpListener, store: Store, sealer: Sealer, host: Arc<SandboxHost>) -> Self {
        let keys = sealer.derive_all(PURPOSE);
        let node = NodeService {
            store,
            sealer,
            keys,
            host,
        };
        Self {
            listener,
            node: Arc::new(node),
        }
    }

    /// Runs until `stop` is cancelled, which ends open connections: their clients connect again.
    pub async fn run(self, stop: CancellationToken) {
        let places = Arc::new(Semaphore::new(MAX_PEERS));
        loop {
            let Ok(place) = Arc::clone(&places).acquire_owned().await else {
                return;
            };
            let accepted = tokio::select! {
                () = stop.cancelled() => return,
                accepted = self.listener.accept() => accepted,
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "a connection of another process cannot be accepted");
                    tokio::time::sleep(ACCEPT_DELAY).await;
                    continue;
                }
            };
            let (node, stop) = (Arc::clone(&self.node), stop.clone());
            tokio::spawn(async move {
                let _place = place;
                tokio::select! {
                    () = stop.cancelled() => {}
                    served = node.serve(stream) => {
                        if let Err(error) = served {
                            tracing::debug!(%error, "a connection of another process ended");
                        }
                    }
                }
            });
        }
    }
}

impl NodeService {
    async fn serve(&self, mut stream: TcpStream) -> io::Result<()> {
        set_options(&stream)?;
        let received = handshake::receive(&mut stream, &self.keys).await;
        if let Err(error) = &received
            && error.kind() == io::ErrorKind::InvalidData
        {
            metrics::counter!(metric::NODE_PEERS_REFUSED).increment(1);
            tracing::warn!(%error, "a connection to this node was refused");
        }
        let received = received?;
        match self.perform(&received.request).await {
            Served::Answer(answer) => handshake::answer(&mut stream, &received, &answer).await,
            Served::Agent(mut agent, _in_use) => {
                handshake::answer(&mut stream, &received, &NodeAnswer::Done).await?;
                copy_bidirectional(&mut stream, &mut agent).await.map(drop)
            }
        }
    }

    async fn perform(&self, request: &NodeRequest) -> Served {
        let answered = match request.action {
            NodeAction::Check { generation } => self.check(request, generation).await,
            NodeAction::Connect { generation, purpose } => return self.connect(request, generation, purpose).await,
            NodeAction::ApplyNetwork => self.apply_network(request).await,
        };
        Served::Answer(answered.err().unwrap_or(NodeAnswer::Done))
    }

    /// This life of a sandbox, if it runs here: its row names this node and this generation.
    async fn find(&self, request: &NodeRequest, generation: i64) -> Result<SandboxBox, NodeAnswer> {
        let found = self.read(request).await?;
        let is_here = found.host_id == Some(self.host.host_id());
        if is_here && found.generation == generation && found.status == BoxStatus::Ready {
            Ok(found)
        } else {
            Err(NodeAnswer::NotRunning)
        }
    }

    async fn read(&self, request: &NodeRequest) -> Result<SandboxBox, NodeAnswer> {
        // It may run all the same, so this is no answer about the sandbox.
        if request.node != self.host.host_id() || self.host.is_lost() {
            return Err(NodeAnswer::Failed(
                "another process has registered it or has its address".to_owned(),
            ));
        }
        let (tenant, id) = (request.tenant, request.id);
        match self.store.read(async |tx| boxes::get(tx, tenant, id).await).await {
            Ok(row) => Ok(row),
            Err(store::Error::NotFound) => Err(NodeAnswer::NotRunning),
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "a sandbox cannot be read");
                Err(NodeAnswer::Failed("its database is unavailable".to_owned()))
            }
        }
    }

    async fn check(&self, request: &NodeRequest, generation: i64) -> Result<(), NodeAnswer> {
        let row = self.find(request, generation).await?;
        match self.host.agent(&row).await {
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err(NodeAnswer::NotRunning),
            Err(error) => Err(refusal(&error)),
        }
    }

    async fn connect(&self, request: &NodeRequest, generation: i64, purpose: ConnectionPurpose) -> Served {
        let row = match self.find(request, generation).await {
            Ok(row) => row,
            Err(refused) => return Served::Answer(refused),
        };
        let in_use = match purpose {
            ConnectionPurpose::View => None,
            ConnectionPurpose::Use if self.host.connections(row.id) >= MAX_CONNECTIONS => {
                let text = format!("the sandbox has reached its limit of {MAX_CONNECTIONS} connections");
                return Served::Answer(NodeAnswer::Busy(text));
            }
            ConnectionPurpose::Use => Some(self.host.begin_use(row.id)),
        };
        let opened = async {
            match self.host.agent(&row).await? {
                Some(agent) => agent.open_socket().await,
                None => Err(Error::NotRunning),
            }
        };
        match opened.await {
            Ok(agent) => Served::Agent(agent, in_use),
            Err(error) => {
                if matches!(error, Error::NotRunning) {
                    // The next request gets a new handle from the driver.
                    self.host.remove_handle(row.id);
                }
                Served::Answer(refusal(&error))
            }
        }
    }

    async fn apply_network(&self, request: &NodeRequest) -> Result<(), NodeAnswer> {
        let row = self.read(request).await?;
        if row.host_id != Some(self.host.host_id()) {
            return Err(NodeAnswer::NotRunning);
        }
        let found = self
            .store
            .read(async |tx| network::find(tx, row.tenant_id, row.id).await)
            .await;
        match found {
            Ok(Some(network)) => self.host.set_network(&network, &self.sealer),
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "the network of a sandbox cannot be read"
                );
                return Err(NodeAnswer::Failed("its database is unavailable".to_owned()));
            }
        }
        Ok(())
    }
}

fn refusal(error: &Error) -> NodeAnswer {
    match error {
        Error::NotRunning | Error::Stale { .. } => NodeAnswer::NotRunning,
        Error::Busy(text) => NodeAnswer::Busy(text.clone()),
        error => NodeAnswer::Failed(error_text(error)),
    }
}
