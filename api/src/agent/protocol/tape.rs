//! The latest events of a thread, for all who read it in this process: its log is read and its events are derived once,
//! however many readers there are.
//!
//! A tape is bounded. A reader that is slower, or begins further back, reads the log by itself until the tape has what comes
//! next: see [`Cursor`](super::cursor::Cursor).

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::watch;
use tokio::task::JoinHandle;
use towpath_domain::ThreadId;

use super::event::Event;
use super::replay::Replay;
use crate::agent::app::AgentApp;
use crate::agent::errors::AgentError;

/// The most that one tape keeps.
const TAPE_BYTES: usize = 4 << 20;
/// The same, once all of them together keep a lot.
const SMALL_TAPE_BYTES: usize = 64 << 10;
/// That lot.
const ALL_BYTES: usize = 128 << 20;
/// What an event takes beside its text.
const OVERHEAD: usize = 256;
/// Events that a reader takes at once.
const TAKEN: usize = 32;

/// The tapes of threads that somebody in this process reads.
#[derive(Default)]
pub(crate) struct Tapes {
    tapes: Mutex<HashMap<ThreadId, Weak<Tape>>>,
    /// Bytes that all of them keep.
    bytes: Arc<AtomicUsize>,
}

impl Tapes {
    /// The tape of a thread. It runs as long as somebody holds it.
    pub(super) fn of(&self, app: &AgentApp, thread: ThreadId) -> Arc<Tape> {
        // An insertion does not panic half way.
        let mut tapes = self.tapes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tape) = tapes.get(&thread).and_then(Weak::upgrade)
            && !tape.is_over()
        {
            return tape;
        }
        // Before it grows: nobody needs those that nobody reads any more.
        if tapes.len() == tapes.capacity() {
            tapes.retain(|_, tape| tape.strong_count() > 0);
        }
        let tape = Tape::start(app, thread, self.bytes.clone());
        tapes.insert(thread, Arc::downgrade(&tape));
        tape
    }
}

/// The latest events of one thread.
pub(super) struct Tape {
    state: Mutex<State>,
    /// Told whenever the state changes.
    changed: watch::Sender<()>,
    all_bytes: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct State {
    events: VecDeque<Arc<Event>>,
    bytes: usize,
    /// Everything up to this number was dropped again.
    dropped: i64,
    over: Option<Over>,
}

/// Why a tape ended.
#[derive(Clone, Debug)]
pub(super) enum Over {
    /// The thread is gone.
    Gone,
    /// It cannot be read.
    Failed(AgentError),
}

/// What a tape has for a reader.
pub(super) enum Taken {
    Events(Vec<Arc<Event>>),
    /// Nothing yet.
    Nothing,
    /// What comes next was dropped again.
    Dropped,
    Over(Over),
}

impl Tape {
    fn start(app: &AgentApp, thread: ThreadId, all_bytes: Arc<AtomicUsize>) -> Arc<Self> {
        Arc::new_cyclic(|tape: &Weak<Self>| {
            let (tape, app) = (tape.clone(), app.clone());
            let recording = async move {
                let over = match record(&app, thread, &tape).await {
                    Ok(()) => Over::Gone,
                    Err(error) => Over::Failed(error),
                };
                if let Some(tape) = tape.upgrade() {
                    tape.change(|state| state.over = Some(over));
                }
            };
            Self {
                state: Mutex::default(),
                changed: watch::Sender::new(()),
                all_bytes,
                // Ended with the tape.
                task: tokio::spawn(recording),
            }
        })
    }

    /// Told whenever there may be something new.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// The next events behind a number.
    pub fn after(&self, seq: i64) -> Taken {
        let state = self.state();
        if seq < state.dropped {
            return Taken::Dropped;
        }
        let from = state.events.partition_point(|event| event.seq <= seq);
        let next: Vec<_> = state.events.iter().skip(from).take(TAKEN).cloned().collect();
        match &state.over {
            _ if !next.is_empty() => Taken::Events(next),
            Some(over) => Taken::Over(over.clone()),
            None => Taken::Nothing,
        }
    }

    /// Whether what comes behind a number is here, or is to come.
    pub fn has_after(&self, seq: i64) -> bool {
        let state = self.state();
        // Before it has come so far it may still be behind the reader.
        let reached = state.events.back().is_some_and(|last| last.seq >= seq);
        reached && seq >= state.dropped
    }

    fn is_over(&self) -> bool {
        self.state().over.is_some()
    }

    fn push(&self, event: Arc<Event>) {
        let size = event.text.len() + OVERHEAD;
        let all = self.all_bytes.fetch_add(size, Ordering::Relaxed) + size;
        let limit = if all > ALL_BYTES { SMALL_TAPE_BYTES } else { TAPE_BYTES };
        self.change(|state| {
            state.bytes += size;
            state.events.push_back(event);
            while state.bytes > limit && state.events.len() > 1 {
                let Some(first) = state.events.pop_front() else { break };
                let size = first.text.len() + OVERHEAD;
                state.bytes -= size;
                self.all_bytes.fetch_sub(size, Ordering::Relaxed);
                state.dropped = first.seq;
            }
        });
    }

    fn change(&self, how: impl FnOnce(&mut State)) {
        how(&mut self.state());
        self.changed.send_replace(());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing between two fields can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Tape {
    fn drop(&mut self) {
        self.task.abort();
        let bytes = self.state().bytes;
        self.all_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Writes the events of a thread on its tape, until the thread is gone or nobody holds the tape.
async fn record(app: &AgentApp, thread: ThreadId, tape: &Weak<Tape>) -> Result<(), AgentError> {
    let mut replay = Replay::begin(app, thread).await?;
    while let Some(event) = replay.next().await? {
        let Some(tape) = tape.upgrade() else { break };
        tape.push(event);
    }
    Ok(())
}
