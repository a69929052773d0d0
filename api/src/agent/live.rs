//! Reading what a run, or all runs of a thread, stream: live, from the log, and from the rows when all else is lost.
//!
//! A reader subscribes first and looks at the log and at the run's row afterwards, so nothing falls between them. Frames
//! are numbered: a gap is filled from the log. Once a second the run's row is read, so an end arrives without any hint.

mod heard;
mod looks;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use towpath_domain::agent::frame::{self, End};
use towpath_domain::agent::{EventId, Frame, RunStatus, Since};
use towpath_domain::{RunId, ThreadId};
use towpath_queue::{Event, Events, State};
use towpath_store::{self as store, Dialect, run_events};

use self::heard::Heard;
pub(crate) use self::looks::Looks;
use self::looks::{Look, Standing};
use super::app::AgentApp;
use super::errors::AgentError;

/// Between two looks at the row of a run.
const LOOK: Duration = Duration::from_secs(1);
/// The same where hints do not cross processes: the log is read instead.
const TAIL: Duration = Duration::from_millis(200);
/// How long a gap is waited for: the log is a little behind what is published.
const GAP: Duration = Duration::from_secs(1);
/// Looks into the log that follow the first one, for who reads from there. What was published just before a reader came
/// may be written just after it looked, and no later frame need show the gap.
const LOOKS_AFTER: u8 = 3;
/// Batches of the log read at once.
const BATCHES: i64 = 200;

/// An event of a stream.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    /// A frame that is no end.
    Frame(Arc<str>),
    /// The run is over.
    End(RunId, End),
    /// Frames were lost that are not in the log either: the reader was too slow.
    Cut,
}

/// Reads one run, or a whole thread.
pub(crate) struct Reader {
    app: AgentApp,
    thread: ThreadId,
    run: Option<RunId>,
    /// Where the row of the run is looked at.
    row: Option<Arc<Look>>,
    events: Events,
    /// Whether the run's frames are in the log.
    logged: bool,
    ready: VecDeque<Item>,
    /// A frame that is being dealt with.
    taken: Option<Arc<str>>,
    /// Id of the last frame handed out; for a thread, of the last one that the log held.
    last: EventId,
    /// What was handed out, for a thread.
    heard: Heard,
    /// Attempt and number of it; absent before the first one of a run that was going on already.
    place: Option<(i64, i64)>,
    /// The id a reader came back with, until the log has said which place that is.
    anchor: Option<EventId>,
    /// How often the log is still to be looked into.
    looks: u8,
    over: bool,
}

impl Reader {
    /// Subscribes to a run that is about to be recorded: call it before that. Misses nothing.
    pub async fn before(app: &AgentApp, thread: ThreadId, run: RunId, logged: bool) -> Self {
        Self {
            place: Some((0, 0)),
            ..Self::subscribe(app, thread, Some(run), logged).await
        }
    }

    /// Subscribes to a run that is recorded.
    pub async fn of_run(
        app: &AgentApp,
        thread: ThreadId,
        run: RunId,
        logged: bool,
        since: Since,
    ) -> Result<Self, AgentError> {
        let mut reader = Self::subscribe(app, thread, Some(run), logged).await;
        reader.begin(since).await?;
        // It may be over already. The log was read just now.
        reader.look_at_row(Instant::now()).await?;
        Ok(reader)
    }

    /// Subscribes to whatever happens on a thread.
    pub async fn of_thread(app: &AgentApp, thread: ThreadId, since: Since) -> Result<Self, AgentError> {
        let mut reader = Self::subscribe(app, thread, None, true).await;
        reader.begin(since).await?;
        Ok(reader)
    }

    async fn subscribe(app: &AgentApp, thread: ThreadId, run: Option<RunId>, logged: bool) -> Self {
        Self {
            app: app.clone(),
            thread,
            run,
            row: run.map(|run| app.looks.of(run)),
            events: app.queue.subscribe(thread).await,
            logged,
            ready: VecDeque::new(),
            taken: None,
            last: EventId::default(),
            heard: Heard::default(),
            place: None,
            anchor: None,
            looks: 0,
            over: false,
        }
    }

    async fn begin(&mut self, since: Since) -> Result<(), AgentError> {
        match since {
            Since::Now => {
                let (tenant, thread) = (self.app.tenant, self.thread);
                let last = self
                    .app
                    .store
                    .read(async |tx| run_events::last_id(tx, tenant, thread).await);
                self.last = last.await?.unwrap_or_default();
            }
            Since::Beginning => {
                // Frames that were published before, and are not in the log yet, must show as a gap.
                self.place = (self.run.is_some() && self.logged).then_some((0, 0));
                self.looks = LOOKS_AFTER;
                self.refill().await?;
            }
            Since::After(id) => {
                self.last = id;
                self.heard = Heard::after(id);
                self.anchor = (self.run.is_some() && self.logged).then_some(id);
                self.looks = LOOKS_AFTER;
                self.refill().await?;
            }
        }
        Ok(())
    }

    /// The next event; `None` after the end of a run. May be dropped while waiting without losing one.
    pub async fn next(&mut self) -> Result<Option<Item>, AgentError> {
        loop {
            if let Some(item) = self.ready.pop_front() {
                return Ok(Some(item));
            }
            if self.over {
                return Ok(None);
            }
            // Kept until it is dealt with, also when whoever waits here is called away in between.
            if let Some(text) = self.taken.clone() {
                self.take(text).await?;
                self.taken = None;
                continue;
            }
            let pause = if self.tails() { TAIL } else { LOOK };
            tokio::select! {
                biased;
                event = self.events.next() => match event {
                    Event::Frame(text) => self.taken = Some(text),
                    // Whether anything is missing shows in the numbers of what comes next, or in the log.
                    Event::Missed => self.catch_up().await?,
                },
                () = tokio::time::sleep(pause) => self.look().await?,
            }
        }
    }

    /// Whether the log is all there is between processes.
    fn tails(&self) -> bool {
        match self.app.queue.health().state {
            State::Up => false,
            State::Down { .. } => true,
            State::Local => self.app.store.dialect() == Dialect::Postgres,
        }
    }

    /// A frame that was published.
    async fn take(&mut self, text: Arc<str>) -> Result<(), AgentError> {
        let Some(frame) = Frame::decode(&text) else {
            return Ok(());
        };
        if self.run.is_some() && frame.run != self.run {
            return Ok(());
        }
        if self.run.is_none() {
            self.hand_out(text.clone());
            return Ok(());
        }
        if frame.is_end() {
            let end = serde_json::from_str::<End>(frame.data).unwrap_or_else(|_| unknown_end());
            let behind = self
                .place
                .is_some_and(|place| end.attempt > 0 && (end.attempt, end.last) > place);
            if behind {
                self.fill_up_to((end.attempt, end.last)).await?;
            }
            // The log may have held it.
            if !self.over {
                self.hand_out(text.clone());
            }
            return Ok(());
        }
        let at = (frame.attempt, frame.number);
        if frame.number > 0 {
            if let Some(place) = self.place {
                if at <= place {
                    return Ok(());
                }
                let follows = if at.0 == place.0 {
                    at.1 == place.1 + 1
                } else {
                    at.1 == 1
                };
                if !follows {
                    self.fill_up_to((at.0, at.1 - 1)).await?;
                }
            } else if self.anchor.is_some() && at.1 > 1 {
                // Which place the reader came back to only the log knows.
                self.fill_up_to((at.0, at.1 - 1)).await?;
            }
            if self.place.is_some_and(|place| at <= place) {
                return Ok(());
            }
        } else if frame.id <= self.last {
            return Ok(());
        }
        self.hand_out(text.clone());
        Ok(())
    }

    /// Waits for the log to have the frames up to this one.
    async fn fill_up_to(&mut self, wanted: (i64, i64)) -> Result<(), AgentError> {
        let began = tokio::time::Instant::now();
        loop {
            self.refill().await?;
            if self.over || self.place.is_some_and(|place| place >= wanted) {
                return Ok(());
            }
            if !self.logged || began.elapsed() > GAP {
                self.ready.push_back(Item::Cut);
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Reads the log from where this reader is.
    async fn refill(&mut self) -> store::Result<()> {
        let (tenant, thread, run) = (self.app.tenant, self.thread, self.run);
        loop {
            // With the frame the reader came back with, while its place is not known.
            let after = match self.anchor {
                Some(id) if self.place.is_none() => before(id),
                _ => self.last,
            };
            let batches = self
                .app
                .store
                .read(async |tx| run_events::read(tx, tenant, thread, run, after, BATCHES).await)
                .await?;
            let full = batches.len() as i64 == BATCHES;
            for batch in batches {
                for text in frame::split(&batch.frames) {
                    let Some(frame) = Frame::decode(text) else { continue };
                    if frame.id > self.last {
                        self.last = frame.id;
                        self.hand_out(text.into());
                    } else if self.anchor == Some(frame.id) && frame.number > 0 {
                        self.place = Some((frame.attempt, frame.number));
                    }
                }
            }
            if !full {
                return Ok(());
            }
        }
    }

    async fn catch_up(&mut self) -> Result<(), AgentError> {
        if self.logged || self.run.is_none() {
            self.refill().await?;
        }
        Ok(())
    }

    /// Looks into the log where that has to be, and whether the run is over, for when nobody says so.
    async fn look(&mut self) -> Result<(), AgentError> {
        if self.tails() || self.looks > 0 {
            match self.refill().await {
                Ok(()) => self.looks = self.looks.saturating_sub(1),
                // The database is away: this look was for nothing.
                Err(error) if error.is_transient() => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        let now = Instant::now();
        // Somebody else may have looked a moment ago.
        let then = now.checked_sub(LOOK / 2).unwrap_or(now);
        if self.run.is_none() {
            return self.look_at_heard(then).await;
        }
        self.look_at_row(then).await
    }

    /// Whether runs of the thread are over that were heard, and whose end was not: what was published may be lost, and what
    /// is in no log is lost for good. A thread on which nothing goes on costs no look.
    async fn look_at_heard(&mut self, then: Instant) -> Result<(), AgentError> {
        for run in self.heard.open() {
            let row = self.app.looks.of(run);
            let Standing::Over(status) = row.since(&self.app, run, then).await? else {
                continue;
            };
            if self.heard.is_over(run) {
                let end = End {
                    status,
                    ..unknown_end()
                };
                self.ready.push_back(Item::End(run, end));
            }
        }
        Ok(())
    }

    /// Whether the run is over, by a look at its row that began then or later.
    async fn look_at_row(&mut self, then: Instant) -> Result<(), AgentError> {
        let Some((run, row)) = self.run.zip(self.row.clone()).filter(|_| !self.over) else {
            return Ok(());
        };
        let status = match row.since(&self.app, run, then).await? {
            // Of nothing that was not known the next look may know.
            Standing::Open | Standing::Unknown => return Ok(()),
            Standing::Over(status) => status,
        };
        // What was published before the end was committed is here by now, or never.
        while let Some(Event::Frame(text)) = self.events.try_next() {
            Box::pin(self.take(text)).await?;
        }
        if !self.over
            && let Err(error) = self.refill().await
        {
            // The database is away: the next look comes to the same.
            return if error.is_transient() {
                Ok(())
            } else {
                Err(error.into())
            };
        }
        if !self.over {
            self.over = true;
            self.ready.push_back(Item::End(
                run,
                End {
                    status,
                    ..unknown_end()
                },
            ));
        }
        Ok(())
    }

    fn hand_out(&mut self, text: Arc<str>) {
        let Some(frame) = Frame::decode(&text) else { return };
        if self.run.is_none() {
            // Ids of runs in no log are those of the clocks of their workers, so they need not rise from run to run.
            if !self.heard.is_new(&frame) {
                return;
            }
        } else {
            self.last = self.last.max(frame.id);
        }
        if frame.number > 0 && !frame.is_end() {
            self.place = Some((frame.attempt, frame.number));
        }
        if let (true, Some(run)) = (frame.is_end(), frame.run) {
            let end = serde_json::from_str(frame.data).unwrap_or_else(|_| unknown_end());
            self.over = self.run.is_some();
            self.ready.push_back(Item::End(run, end));
            return;
        }
        self.ready.push_back(Item::Frame(text));
    }
}

/// The largest id that is smaller.
const fn before(id: EventId) -> EventId {
    if id.seq > 0 {
        EventId {
            ms: id.ms,
            seq: id.seq - 1,
        }
    } else {
        EventId {
            ms: id.ms - 1,
            seq: i64::MAX,
        }
    }
}

const fn unknown_end() -> End {
    End {
        status: None::<RunStatus>,
        attempt: 0,
        last: 0,
        values: None,
        error: None,
    }
}
