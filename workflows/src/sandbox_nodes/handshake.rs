//! The handshake between processes of the platform and nodes.
//!
//! ```text
//! node    nonce (32 bytes)
//! client  nonce (32 bytes), proof (32 bytes), length (4 bytes), request (JSON)
//! node    proof (32 bytes), length (4 bytes), answer (JSON)
//! ```
//!
//! A proof is the HMAC-SHA256 of its side, both nonces and the message, under a key derived from the encryption keys of
//! the installation. So both sides prove that they belong to it, and a recorded handshake is worth nothing. What follows
//! is not encrypted.

use std::io;
use std::time::Duration;

use hmac::{Hmac, Mac as _};
use rand::TryRngCore as _;
use rand::rngs::OsRng;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;
use towpath_domain::{BoxId, TenantId};
use uuid::Uuid;

/// The purpose of the derived key.
pub(super) const PURPOSE: &str = "sandbox nodes";
/// Time limit of each side.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_MESSAGE_BYTES: usize = 64 << 10;
const NONCE_BYTES: usize = 32;

pub(super) type Key = [u8; 32];
type Nonce = [u8; NONCE_BYTES];

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NodeRequest {
    /// The node that is asked: another process may have its address by now.
    pub node: Uuid,
    pub tenant: TenantId,
    #[serde(rename = "box")]
    pub id: BoxId,
    pub action: NodeAction,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub(super) enum NodeAction {
    /// Whether this life of the box runs.
    Check { generation: i64 },
    /// A connection to the agent of this life, which follows the answer.
    Connect {
        generation: i64,
        purpose: ConnectionPurpose,
    },
    /// Apply the stored network configuration.
    ApplyNetwork,
}

/// Whether a connection keeps its box from stopping as idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConnectionPurpose {
    Use,
    View,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", content = "message")]
pub(super) enum NodeAnswer {
    Done,
    /// This life of the box does not run.
    NotRunning,
    /// The box has as many connections as it may.
    Busy(String),
    Failed(String),
}

#[derive(Clone, Copy)]
enum Side {
    Client,
    Node,
}

struct Session<'a> {
    key: &'a Key,
    of_node: Nonce,
    of_client: Nonce,
}

impl Session<'_> {
    fn mac(&self, side: Side, message: &[u8]) -> Hmac<Sha256> {
        let mut mac = <Hmac<Sha256> as hmac::Mac>::new_from_slice(self.key).expect("a key of any length will do");
        mac.update(match side {
            Side::Client => b"client",
            Side::Node => b"node..",
        });
        mac.update(&self.of_node);
        mac.update(&self.of_client);
        mac.update(message);
        mac
    }

    fn prove(&self, side: Side, message: &[u8]) -> [u8; 32] {
        self.mac(side, message).finalize().into_bytes().into()
    }

    /// In constant time.
    fn is_proof(&self, side: Side, message: &[u8], proof: &[u8; 32]) -> bool {
        self.mac(side, message).verify_slice(proof).is_ok()
    }
}

/// Sends a request and returns the answer of the node.
pub(super) async fn ask<S>(stream: &mut S, key: &Key, request: &NodeRequest) -> io::Result<NodeAnswer>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let asked = async {
        let mut of_node = [0; NONCE_BYTES];
        stream.read_exact(&mut of_node).await?;
        let of_client = random_nonce()?;
        let session = Session {
            key,
            of_node,
            of_client,
        };
        let message = serde_json::to_vec(request)?;
        stream.write_all(&of_client).await?;
        write_message(stream, &session.prove(Side::Client, &message), &message).await?;
        let (proof, message) = read_message(stream).await?;
        if !session.is_proof(Side::Node, &message, &proof) {
            return Err(invalid("the node does not belong to this installation"));
        }
        parse(&message)
    };
    timeout(HANDSHAKE_TIMEOUT, asked).await?
}

/// A request whose sender belongs to the installation.
pub(super) struct ReceivedRequest<'a> {
    pub request: NodeRequest,
    session: Session<'a>,
}

/// Receives a request. `keys` are those of the installation: a client may still have an older one.
pub(super) async fn receive<'a, S>(stream: &mut S, keys: &'a [Key]) -> io::Result<ReceivedRequest<'a>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let received = async {
        let of_node = random_nonce()?;
        stream.write_all(&of_node).await?;
        let mut of_client = [0; NONCE_BYTES];
        stream.read_exact(&mut of_client).await?;
        let (proof, message) = read_message(stream).await?;
        let mut sessions = keys.iter().map(|key| Session {
            key,
            of_node,
            of_client,
        });
        let session = sessions
            .find(|session| session.is_proof(Side::Client, &message, &proof))
            .ok_or_else(|| invalid("the client does not belong to this installation"))?;
        Ok(ReceivedRequest {
            request: parse(&message)?,
            session,
        })
    };
    timeout(HANDSHAKE_TIMEOUT, received).await?
}

/// Answers a request. Afterwards the stream carries what was requested.
pub(super) async fn answer<S>(stream: &mut S, received: &ReceivedRequest<'_>, answer: &NodeAnswer) -> io::Result<()>
where
    S: AsyncWrite + Unpin,
{
    let message = serde_json::to_vec(answer)?;
    let proof = received.session.prove(Side::Node, &message);
    timeout(HANDSHAKE_TIMEOUT, write_message(stream, &proof, &message)).await?
}

async fn write_message(stream: &mut (impl AsyncWrite + Unpin), proof: &[u8; 32], message: &[u8]) -> io::Result<()> {
    let length = u32::try_from(message.len()).map_err(io::Error::other)?;
    let mut bytes = Vec::with_capacity(proof.len() + 4 + message.len());
    bytes.extend_from_slice(proof);
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(message);
    stream.write_all(&bytes).await?;
    stream.flush().await
}

async fn read_message(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<([u8; 32], Vec<u8>)> {
    let mut proof = [0; 32];
    stream.read_exact(&mut proof).await?;
    let length = usize::try_from(stream.read_u32().await?).map_err(io::Error::other)?;
    if length > MAX_MESSAGE_BYTES {
        return Err(invalid("the message is too long"));
    }
    let mut message = vec![0; length];
    stream.read_exact(&mut message).await?;
    Ok((proof, message))
}

fn random_nonce() -> io::Result<Nonce> {
    let mut nonce = [0; NONCE_BYTES];
    OsRng.try_fill_bytes(&mut nonce).map_err(io::Error::other)?;
    Ok(nonce)
}

fn parse<T: DeserializeOwned>(message: &[u8]) -> io::Result<T> {
    serde_json::from_slice(message).map_err(|_| invalid("the message cannot be read"))
}

fn invalid(text: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    const OLD: Key = [1; 32];
    const NEW: Key = [2; 32];
    const STRANGER: Key = [3; 32];

    fn request() -> NodeRequest {
        NodeRequest {
            node: Uuid::from_u128(1),
            tenant: TenantId::new(),
            id: BoxId::new(),
            action: NodeAction::Connect {
                generation: 7,
                purpose: ConnectionPurpose::Use,
            },
        }
    }

    async fn serve(mut stream: impl AsyncRead + AsyncWrite + Unpin, keys: &[Key]) -> io::Result<NodeRequest> {
        let received = receive(&mut stream, keys).await?;
        answer(&mut stream, &received, &NodeAnswer::Done).await?;
        Ok(received.request)
    }

    #[tokio::test]
    async fn both_sides_know_each_other() {
        let request = request();
        for (key, keys) in [(NEW, vec![NEW, OLD]), (OLD, vec![NEW, OLD])] {
            let (mut here, there) = duplex(1024);
            let (answer, received) = tokio::join!(ask(&mut here, &key, &request), serve(there, &keys));
            assert_eq!(answer.unwrap(), NodeAnswer::Done);
            assert_eq!(received.unwrap(), request);
        }
    }

    #[tokio::test]
    async fn strangers_are_refused() {
        let request = request();
        let (mut here, there) = duplex(1024);
        let (answer, received) = tokio::join!(ask(&mut here, &STRANGER, &request), serve(there, &[NEW, OLD]));
        assert!(answer.is_err());
        assert_eq!(received.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    /// A node that accepts everybody, without the key.
    #[tokio::test]
    async fn a_false_node_is_refused() {
        let request = request();
        let (mut here, mut there) = duplex(4096);
        let impostor = async {
            there.write_all(&[0; NONCE_BYTES]).await?;
            let mut of_client = [0; NONCE_BYTES];
            there.read_exact(&mut of_client).await?;
            let (proof, _) = read_message(&mut there).await?;
            // The proof of the client proves nothing of the node.
            write_message(&mut there, &proof, br#"{"kind":"done"}"#).await
        };
        let (answer, sent) = tokio::join!(ask(&mut here, &NEW, &request), impostor);
        sent.unwrap();
        assert_eq!(answer.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[tokio::test]
    async fn a_recorded_handshake_is_worth_nothing() {
        let request = request();
        let session = Session {
            key: &NEW,
            of_node: [9; NONCE_BYTES],
            of_client: [8; NONCE_BYTES],
        };
        let message = serde_json::to_vec(&request).unwrap();
        let proof = session.prove(Side::Client, &message);
        let (mut here, there) = duplex(4096);
        let replay = async {
            let mut of_node = [0; NONCE_BYTES];
            here.read_exact(&mut of_node).await?;
            here.write_all(&[8; NONCE_BYTES]).await?;
            write_message(&mut here, &proof, &message).await
        };
        let (sent, received) = tokio::join!(replay, serve(there, &[NEW]));
        sent.unwrap();
        assert_eq!(received.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[tokio::test]
    async fn a_long_message_is_not_read() {
        let (mut here, there) = duplex(4096);
        let flood = async {
            let mut of_node = [0; NONCE_BYTES];
            here.read_exact(&mut of_node).await?;
            here.write_all(&[0; NONCE_BYTES + 32]).await?;
            here.write_all(&u32::MAX.to_be_bytes()).await
        };
        let (sent, received) = tokio::join!(flood, serve(there, &[NEW]));
        sent.unwrap();
        assert_eq!(received.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
