//! Who listens to a command, and how far.

use std::sync::Arc;

use nix::sys::signal::Signal;
use tokio::sync::watch;
use tokio::time::Instant;

use super::session::Session;
use crate::wire::CHUNK;

/// What a client is to be told next.
#[derive(Debug)]
pub(super) enum News {
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
    /// One that was sent everything before these places.
    pub(super) fn attach(session: &Arc<Session>, offsets: [u64; 2]) -> Self {
        let mut state = session.state();
        let id = state.next_client;
        state.next_client += 1;
        state.clients += 1;
        state.sent.insert(id, offsets);
        drop(state);
        session.life.notify_one();
        Self {
            session: session.clone(),
            id,
            version: session.version.subscribe(),
        }
    }

    /// What comes next.
    pub(super) async fn next(&mut self) -> News {
        loop {
            self.version.borrow_and_update();
            match self.look() {
                News::Nothing => {
                    let _ = self.version.changed().await;
                }
                news => return news,
            }
        }
    }

    fn look(&self) -> News {
        let state = self.session.state();
        let sent = state.sent.get(&self.id).copied().unwrap_or_default();
        for (stream, (ring, from)) in state.output.iter().zip(sent).enumerate() {
            let (place, bytes) = ring.read(from, CHUNK);
            if !bytes.is_empty() {
                return News::Output(stream, place, bytes);
            }
        }
        match state.exit_code {
            Some(exit_code) if state.open == 0 => News::Exit {
                exit_code,
                timed_out: state.timed_out,
            },
            _ => News::Nothing,
        }
    }

    /// Everything of a stream before this place was sent.
    pub(super) fn sent(&self, stream: usize, place: u64) {
        let mut state = self.session.state();
        if let Some(sent) = state.sent.get_mut(&self.id) {
            sent[stream] = place;
        }
        state.most_sent[stream] = state.most_sent[stream].max(place);
        drop(state);
        self.session.changed();
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let mut state = self.session.state();
        state.sent.remove(&self.id);
        state.clients -= 1;
        let is_last = state.clients == 0;
        if is_last {
            state.detached_at = Instant::now();
        }
        drop(state);
        if is_last && self.session.request.kill_on_disconnect {
            self.session.signal(Signal::SIGKILL);
        }
        self.session.changed();
        self.session.life.notify_one();
    }
}
