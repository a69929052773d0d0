//! The latest events of a thread, for all who read it in this process: its log is read and its events are derived once,
//! however many readers there are.
//!
//! A tape is bounded. A reader that is slower, or begins further back, reads the log by itself until the tape has what comes
//! next: see [`Cursor`](super::cursor::Cursor).

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use http::StatusCode;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use towpath_domain::ThreadId;

use super::event::Event;
use super::replay::{Position, Replay};
use crate::agent::app::AgentApp;
use crate::agent::errors::AgentError;

/// The most that one tape keeps.
const TAPE_BYTES: usize = 4 << 20;
/// The most that all of them keep together, unless there are so many that the fewest events of each are more.
const ALL_BYTES: usize = 128 << 20;
/// So much below that bound tapes are cut, so that not every event has them looked through.
const CUT_BYTES: usize = ALL_BYTES / 8;
/// Events that a tape keeps when others need the room.
const FEWEST_EVENTS: usize = 8;
/// A tape that got nothing for so long is cut before others.
const IDLE: Duration = Duration::from_secs(10);
/// What an event takes beside its text.
const OVERHEAD: usize = 256;
/// Events that a reader takes at once.
const TAKEN: usize = 32;

/// The tapes of threads that somebody in this process reads.
#[derive(Default)]
pub(crate) struct Tapes(Arc<Shared>);

#[derive(Default)]
struct Shared {
    tapes: Mutex<HashMap<ThreadId, Weak<Tape>>>,
    /// Bytes that all tapes keep.
    bytes: AtomicUsize,
    /// What all tapes kept when the last cut had to leave more than the bound.
    left: AtomicUsize,
}

impl Tapes {
    /// The tape of a thread. It runs as long as somebody holds it.
    pub(super) fn of(&self, app: &AgentApp, thread: ThreadId) -> Arc<Tape> {
        let mut tapes = self.0.tapes();
        if let Some(tape) = tapes.get(&thread).and_then(Weak::upgrade)
            && !tape.is_over()
        {
            return tape;
        }
        // Before it grows: nobody needs those that nobody reads any more.
        if tapes.len() == tapes.capacity() {
            tapes.retain(|_, tape| tape.strong_count() > 0);
        }
        let tape = Tape::start(app, thread, &self.0);
        tapes.insert(thread, Arc::downgrade(&tape));
        tape
    }
}

impl Shared {
    fn tapes(&self) -> MutexGuard<'_, HashMap<ThreadId, Weak<Tape>>> {
        // An insertion does not panic half way.
        self.tapes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cuts tapes where all of them keep too much: those that got nothing lately before others, and the largest first.
    fn cut(&self) {
        let bound = ALL_BYTES.max(self.left.load(Ordering::Relaxed) + CUT_BYTES);
        if self.bytes.load(Ordering::Relaxed) <= bound {
            return;
        }
        let tapes: Vec<Arc<Tape>> = self.tapes().values().filter_map(Weak::upgrade).collect();
        let now = Instant::now();
        let mut tapes: Vec<_> = tapes
            .iter()
            .map(|tape| {
                let state = tape.state();
                (
                    now.duration_since(state.grew) < IDLE,
                    std::cmp::Reverse(state.bytes),
                    tape,
                )
            })
            .collect();
        tapes.sort_by_key(|&(busy, bytes, _)| (busy, bytes));
        for (.., tape) in tapes {
            if self.bytes.load(Ordering::Relaxed) <= ALL_BYTES - CUT_BYTES {
                break;
            }
            tape.drop_oldest(|state| state.events.len() > FEWEST_EVENTS);
        }
        let left = self.bytes.load(Ordering::Relaxed);
        // The tapes are looked through again once they have grown by some more.
        self.left
            .store(if left > ALL_BYTES { left } else { 0 }, Ordering::Relaxed);
    }
}

/// The latest events of one thread.
pub(super) struct Tape {
    state: Mutex<State>,
    /// Told whenever the state changes.
    changed: watch::Sender<()>,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

struct State {
    events: VecDeque<Arc<Event>>,
    bytes: usize,
    /// Everything up to this number was dropped again.
    dropped: i64,
    /// Everything that was kept when the tape began is on it, or was dropped again.
    caught_up: bool,
    /// When the last event came.
    grew: Instant,
    over: Option<Over>,
}

impl State {
    fn new() -> Self {
        Self {
            events: VecDeque::new(),
            bytes: 0,
            dropped: 0,
            caught_up: false,
            grew: Instant::now(),
            over: None,
        }
    }
}

/// Why a tape ended.
#[derive(Clone, Debug)]
pub(super) enum Over {
    /// The thread is gone.
    Gone,
    /// It cannot be read.
    Failed(AgentError),
}

/// The next events that a tape has for a reader.
#[derive(Debug)]
pub(super) enum Batch {
    Events(Vec<Arc<Event>>),
    /// Nothing yet.
    Nothing,
    /// What comes next was dropped again.
    Dropped,
    Over(Over),
}

impl Tape {
    fn start(app: &AgentApp, thread: ThreadId, shared: &Arc<Shared>) -> Arc<Self> {
        Self::recorded(shared, |tape| {
            let app = app.clone();
            async move {
                let recording = Recording(tape);
                let over = match record(&app, thread, &recording.0).await {
                    Ok(()) => Over::Gone,
                    Err(error) => Over::Failed(error),
                };
                recording.end(over);
            }
        })
    }

    /// A tape that a task writes, which ends with it.
    fn recorded<F: Future<Output = ()> + Send + 'static>(
        shared: &Arc<Shared>,
        task: impl FnOnce(Weak<Self>) -> F,
    ) -> Arc<Self> {
        Arc::new_cyclic(|tape| Self {
            state: Mutex::new(State::new()),
            changed: watch::Sender::new(()),
            shared: shared.clone(),
            task: tokio::spawn(task(tape.clone())),
        })
    }

    /// Told whenever there may be something new.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    pub fn after(&self, seq: i64) -> Batch {
        let state = self.state();
        if seq < state.dropped {
            return Batch::Dropped;
        }
        let from = state.events.partition_point(|event| event.seq <= seq);
        let next: Vec<_> = state.events.iter().skip(from).take(TAKEN).cloned().collect();
        match &state.over {
            _ if !next.is_empty() => Batch::Events(next),
            Some(over) => Batch::Over(over.clone()),
            None => Batch::Nothing,
        }
    }

    /// Whether what comes behind a number is here, or is to come.
    pub fn has_after(&self, seq: i64) -> bool {
        let state = self.state();
        // Before it has come so far it may still be behind the reader.
        let reached = state.events.back().is_some_and(|last| last.seq >= seq);
        reached && seq >= state.dropped
    }

    /// Whether everything that was kept when the tape began has been on it.
    pub fn has_caught_up(&self) -> bool {
        self.state().caught_up
    }

    /// The number up to which everything was dropped again.
    pub fn dropped(&self) -> i64 {
        self.state().dropped
    }

    fn is_over(&self) -> bool {
        self.state().over.is_some()
    }

    fn push(&self, event: Arc<Event>) {
        let size = size_of(&event);
        self.shared.bytes.fetch_add(size, Ordering::Relaxed);
        self.change(|state| {
            state.bytes += size;
            state.grew = Instant::now();
            state.events.push_back(event);
        });
        self.drop_oldest(|state| state.bytes > TAPE_BYTES && state.events.len() > 1);
        self.shared.cut();
    }

    /// Drops the oldest events as long as there are too many.
    fn drop_oldest(&self, too_many: impl Fn(&State) -> bool) {
        let mut state = self.state();
        while too_many(&state) {
            let Some(first) = state.events.pop_front() else { break };
            let size = size_of(&first);
            state.bytes -= size;
            state.dropped = first.seq;
            self.shared.bytes.fetch_sub(size, Ordering::Relaxed);
        }
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

fn size_of(event: &Event) -> usize {
    event.text.len() + OVERHEAD
}

impl Drop for Tape {
    fn drop(&mut self) {
        self.task.abort();
        let bytes = self.state().bytes;
        self.shared.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// A tape that is written. However the writing ends, readers are told.
struct Recording(Weak<Tape>);

impl Recording {
    fn end(&self, over: Over) {
        if let Some(tape) = self.0.upgrade() {
            tape.change(|state| {
                if state.over.is_none() {
                    state.over = Some(over);
                }
            });
        }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        // Only a panic leaves it to this.
        let error = AgentError::new(StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error");
        self.end(Over::Failed(error));
    }
}

/// Writes the events of a thread on its tape, until the thread is gone or nobody holds the tape.
async fn record(app: &AgentApp, thread: ThreadId, tape: &Weak<Tape>) -> Result<(), AgentError> {
    let mut replay = Replay::begin(app, thread).await?;
    loop {
        let event = match replay.next_kept().await? {
            Position::At(event) => Some(event),
            Position::Gone => return Ok(()),
            Position::End => {
                let Some(tape) = tape.upgrade() else { return Ok(()) };
                if !tape.has_caught_up() {
                    tape.change(|state| state.caught_up = true);
                }
                drop(tape);
                replay.next().await?
            }
        };
        let (Some(event), Some(tape)) = (event, tape.upgrade()) else {
            return Ok(());
        };
        tape.push(event);
    }
}

#[cfg(test)]
mod tests {
    use super::super::event::{Channel, Draft};
    use super::*;

    fn tape(shared: &Arc<Shared>) -> Arc<Tape> {
        let tape = Tape::recorded(shared, |_| std::future::pending::<()>());
        shared.tapes().insert(ThreadId::new(), Arc::downgrade(&tape));
        tape
    }

    fn event(seq: i64, bytes: usize) -> Arc<Event> {
        let draft = Draft::of(Channel::Values, &[], &"x".repeat(bytes)).unwrap();
        Arc::new(draft.numbered(seq, "1-0", 1))
    }

    fn kept(tape: &Tape) -> usize {
        tape.state().events.len()
    }

    #[tokio::test(start_paused = true)]
    async fn idle_tapes_make_room_for_others_and_keep_some_events() {
        let shared = Arc::<Shared>::default();
        // 32 of them are all that may be kept.
        let many: Vec<_> = (0..31).map(|_| tape(&shared)).collect();
        let events: Vec<_> = (1..=40).map(|seq| event(seq, 100 << 10)).collect();
        for tape in &many {
            events.iter().for_each(|event| tape.push(event.clone()));
        }
        assert!(many.iter().all(|tape| kept(tape) == 40));
        tokio::time::advance(IDLE).await;
        let busy = [tape(&shared), tape(&shared)];
        for event in &events {
            busy.iter().for_each(|tape| tape.push(event.clone()));
        }
        assert!(busy.iter().all(|tape| kept(tape) == 40), "who is at work keeps all");
        let cut = many.iter().filter(|tape| kept(tape) == FEWEST_EVENTS).count();
        assert!((1..31).contains(&cut), "{cut} tapes were cut");
        assert!(many.iter().all(|tape| kept(tape) >= FEWEST_EVENTS));
        assert!(shared.bytes.load(Ordering::Relaxed) <= ALL_BYTES);
    }

    #[tokio::test]
    async fn a_recording_that_panics_ends_its_readers() {
        let tape = Tape::recorded(&Arc::default(), |tape| async move {
            let _recording = Recording(tape);
            panic!("a defect");
        });
        let mut changes = tape.changes();
        while !tape.is_over() {
            changes.changed().await.unwrap();
        }
        assert!(matches!(tape.after(0), Batch::Over(Over::Failed(_))));
    }
}
