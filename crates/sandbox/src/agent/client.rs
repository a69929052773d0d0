//! Who listens to a command, and how far.

use std::sync::Arc;

use nix::sys::signal::Signal;
use tokio::sync::watch;
use tokio::time::Instant;

use super::session::Session;
use crate::wire::CHUNK_BYTES;

/// What a client is to be told next.
#[derive(Debug)]
pub(super) enum ClientEvent {
    /// Stream, place of the first byte, bytes.
    Output(usize, u64, Vec<u8>),
    Exit {
        exit_code: i32,
        timed_out: bool,
    },
    Nothing,
}

/// A connection that listens to a command. Dropped, it detaches.
#[derive(Debug)]
pub(super) struct Client {
    session: Arc<Session>,
    id: u64,
    version: watch::Receiver<u64>,
}

impl Client {
    /// A client that has received everything before these offsets. An offset beyond the end means the end.
    pub(super) fn attach(session: &Arc<Session>, offsets: [u64; 2]) -> Self {
        let mut state = session.state.lock();
        let id = state.next_client;
        state.next_client += 1;
        state.clients += 1;
        // Output that the client claims to have or does not want is not kept for it: otherwise the command could block
        // on a full buffer for ever.
        let mut sent = [0; 2];
        for (stream, offset) in offsets.into_iter().enumerate() {
            sent[stream] = offset.min(state.output[stream].end());
            state.max_sent[stream] = state.max_sent[stream].max(sent[stream]);
        }
        state.sent.insert(id, sent);
        drop(state);
        // Output may continue: less must be kept.
        session.notify_change();
        session.lifecycle_change.notify_one();
        Self {
            session: session.clone(),
            id,
            version: session.version.subscribe(),
        }
    }

    /// What comes next.
    pub(super) async fn next(&mut self) -> ClientEvent {
        loop {
            self.version.borrow_and_update();
            match self.poll() {
                ClientEvent::Nothing => {
                    let _ = self.version.changed().await;
                }
                news => return news,
            }
        }
    }

    fn poll(&self) -> ClientEvent {
        let state = self.session.state.lock();
        let sent = state.sent.get(&self.id).copied().unwrap_or_default();
        for (stream, (ring, from)) in state.output.iter().zip(sent).enumerate() {
            let (place, bytes) = ring.read(from, CHUNK_BYTES);
            if !bytes.is_empty() {
                return ClientEvent::Output(stream, place, bytes);
            }
        }
        match state.exit_code {
            Some(exit_code) if state.open_streams == 0 => ClientEvent::Exit {
                exit_code,
                timed_out: state.timed_out,
            },
            _ => ClientEvent::Nothing,
        }
    }

    /// Everything of a stream before this place was sent.
    pub(super) fn mark_sent(&self, stream: usize, place: u64) {
        let mut state = self.session.state.lock();
        if let Some(sent) = state.sent.get_mut(&self.id) {
            sent[stream] = place;
        }
        state.max_sent[stream] = state.max_sent[stream].max(place);
        drop(state);
        self.session.notify_change();
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let mut state = self.session.state.lock();
        state.sent.remove(&self.id);
        state.clients -= 1;
        let is_last = state.clients == 0;
        if is_last {
            state.detached_at = Instant::now();
        }
        drop(state);
        if is_last && self.session.request.kill_on_disconnect {
            self.session.send_signal(Signal::SIGKILL);
        }
        self.session.notify_change();
        self.session.lifecycle_change.notify_one();
    }
}
