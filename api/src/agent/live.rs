//! Reading what a run, or all runs of a thread, stream: live, from the log, and from the rows when all else is lost.
//!
//! A reader subscribes first and looks at the log and at the run's row afterwards, so nothing falls between them. What the
//! log has comes first, a page at a time and only when the page before was handed out. Then come the frames that are
//! published: those that the log had are passed over by their numbers, and where a number shows that some are missing, the
//! log is read on. Once a second the run's row is read, so an end arrives without any hint.

mod gaps;
mod heard;
mod log;
mod looks;
mod rows;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;
use towpath_domain::agent::frame::End;
use towpath_domain::agent::{EventId, Frame, Since};
use towpath_domain::{RunId, ThreadId};
use towpath_queue::{Event, Events, State};
use towpath_store::{Dialect, run_events};

use self::heard::{Fit, Heard, Numbered, Source};
use self::log::{Log, Resumption};
use self::looks::Look;
pub(crate) use self::looks::Looks;
use self::rows::{Closing, THREAD_LOOK, end_of};
use super::app::AgentApp;
use super::errors::AgentError;

/// Between two looks at the row of a run.
const LOOK: Duration = Duration::from_secs(1);
/// The same where hints do not cross processes: the log is read instead.
const TAIL: Duration = Duration::from_millis(200);
/// How long frames are waited for that may be in no log, and an end that was published.
const GAP: Duration = Duration::from_secs(1);
/// Between two looks into the log for frames that are missing: it is a little behind what is published.
const GAP_LOOK: Duration = Duration::from_millis(20);
/// Looks into the log that follow the first one, for who reads from there. What was published just before a reader came
/// may be written just after it looked, and no later frame need show the gap.
const LOOKS_AFTER: u8 = 3;

/// An event of a stream.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    /// A frame that is no end.
    Frame(Arc<str>),
    /// The run is over. With the id of the frame that says so, where one came.
    End(RunId, End, Option<EventId>),
    /// Frames were lost, and the log does not have them.
    Cut,
}

/// What a reader finds where it reads what is kept.
#[derive(Clone, Debug)]
pub(crate) enum Next {
    Item(Item),
    /// The end of what is kept: what comes next is still to happen.
    End,
    /// The run is over, or the thread is gone.
    Over,
}

/// The error that tells a reader that something was lost, as JSON.
pub(crate) fn cut(message: &str) -> String {
    json!({"error": "StreamCut", "message": message}).to_string()
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
    log: Log,
    heard: Heard,
    /// What a reader that came back had before.
    seen: Option<Resumption>,
    ready: VecDeque<Item>,
    /// A published frame that is being dealt with.
    held: Option<Held>,
    /// The row says that the run is over.
    closing: Option<Closing>,
    /// How often the log is still to be looked into.
    looks: u8,
    next_look: Instant,
    next_thread_look: Instant,
    /// The thread may still be made: that it is not there is no end.
    to_come: bool,
    over: bool,
}

/// A frame that was published.
#[derive(Clone)]
struct Held {
    text: Arc<str>,
    /// Since when the log is asked for what comes before it.
    asked: Option<Instant>,
    /// The run is over: the log is asked once more.
    last_time: bool,
}

impl Reader {
    /// Subscribes to a run that is about to be recorded: call it before that. Misses nothing.
    pub async fn before(app: &AgentApp, thread: ThreadId, run: RunId, logged: bool) -> Self {
        Self {
            heard: Heard::of_run(run, Numbered::At(0, 0)),
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
        // It may be over already.
        reader.look_at_row(std::time::Instant::now(), Duration::ZERO).await?;
        if let Some(closing) = &mut reader.closing {
            closing.live = false;
        }
        Ok(reader)
    }

    /// Subscribes to whatever happens on a thread.
    pub async fn of_thread(app: &AgentApp, thread: ThreadId, since: Since) -> Result<Self, AgentError> {
        let mut reader = Self::subscribe(app, thread, None, true).await;
        reader.begin(since).await?;
        Ok(reader)
    }

    /// As [`Reader::of_thread`], from the beginning of what is kept, of a thread that need not exist yet.
    pub async fn of_thread_to_come(app: &AgentApp, thread: ThreadId) -> Result<Self, AgentError> {
        let mut reader = Self::of_thread(app, thread, Since::Beginning).await?;
        // After it has subscribed: a thread that is deleted from here on is told of, or missed at a look.
        reader.to_come = !reader.thread_exists().await?;
        Ok(reader)
    }

    async fn subscribe(app: &AgentApp, thread: ThreadId, run: Option<RunId>, logged: bool) -> Self {
        let events = app.queue.subscribe(thread).await;
        let now = Instant::now();
        Self {
            app: app.clone(),
            thread,
            run,
            row: run.map(|run| app.looks.of(run)),
            events,
            logged,
            log: Log::after(0),
            heard: Heard::default(),
            seen: None,
            ready: VecDeque::new(),
            held: None,
            closing: None,
            looks: 0,
            next_look: now + LOOK,
            next_thread_look: now + THREAD_LOOK,
            to_come: false,
            over: false,
        }
    }

    async fn begin(&mut self, since: Since) -> Result<(), AgentError> {
        match since {
            Since::Now => {
                self.log = Log::after(self.log_end().await?);
                self.hear_from(Numbered::Any, Numbered::Any);
                return Ok(());
            }
            // Frames that were published before, and are not in the log yet, must show as a gap.
            Since::Beginning => self.hear_from(Numbered::At(0, 0), Numbered::Unknown),
            Since::After(id) => {
                let (tenant, thread, run) = (self.app.tenant, self.thread, self.run);
                let end = self.log_end().await?;
                let resume = self
                    .app
                    .store
                    .read(async |tx| run_events::resume(tx, tenant, thread, run, id).await)
                    .await?;
                self.log = Log::after(resume.after);
                self.hear_from(Numbered::Unknown, Numbered::Unknown);
                if let Some(found) = resume.found {
                    self.heard.had(found.run, (found.attempt, found.number), id);
                }
                self.seen = Some(Resumption::new(id, resume.found, end, run.is_some()));
            }
        }
        self.looks = LOOKS_AFTER;
        self.log.look();
        Ok(())
    }

    /// How far the log of the thread goes.
    async fn log_end(&mut self) -> Result<i64, AgentError> {
        let (tenant, thread) = (self.app.tenant, self.thread);
        let end = self
            .app
            .store
            .read(async |tx| run_events::last_position(tx, tenant, thread, None).await);
        Ok(end.await?)
    }

    /// How the run begins for this reader; for the reader of a thread, how each run does.
    fn hear_from(&mut self, of_run: Numbered, of_each: Numbered) {
        self.heard = match self.run {
            // What is in no log is heard from where the reader came in.
            Some(run) if !self.logged => Heard::of_run(run, Numbered::Any),
            Some(run) => Heard::of_run(run, of_run),
            None => Heard::of_thread(of_each),
        };
    }

    /// The next event; `None` after the end of a run, and when the thread is gone. May be dropped while waiting without
    /// losing one.
    pub async fn next(&mut self) -> Result<Option<Item>, AgentError> {
        loop {
            match self.next_kept().await? {
                Next::Item(item) => return Ok(Some(item)),
                Next::Over => return Ok(None),
                Next::End => self.listen().await?,
            }
        }
    }

    /// The next event of those that are kept. May be dropped while waiting without losing one.
    pub async fn next_kept(&mut self) -> Result<Next, AgentError> {
        loop {
            if let Some(item) = self.ready.pop_front() {
                return Ok(Next::Item(item));
            }
            if self.over {
                return Ok(Next::Over);
            }
            if let Some((position, text)) = self.log.next() {
                self.take_logged(position, &text);
            } else if self.log.has_more() {
                self.read_log().await?;
            } else if let Some(held) = self.held.clone() {
                self.deal_with(held).await?;
            } else {
                return Ok(Next::End);
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

    async fn read_log(&mut self) -> Result<(), AgentError> {
        match self.log.read(&self.app, self.thread, self.run).await {
            Ok(()) => Ok(()),
            // The database is away: this look was for nothing.
            Err(error) if error.is_transient() => {
                tokio::time::sleep(TAIL).await;
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    fn take_logged(&mut self, position: i64, text: &Arc<str>) {
        let Some(frame) = Frame::decode(text) else { return };
        if self.seen.as_mut().is_some_and(|seen| seen.covers(position, &frame)) {
            self.heard.take(&frame, Source::Log);
            return;
        }
        match self.heard.fit(&frame, Source::Log) {
            Fit::Old => self.heard.note_logged(&frame),
            Fit::Next => self.hand_out(text, Source::Log),
            Fit::Gap => {
                // It was deleted before this reader came so far.
                self.ready.push_back(Item::Cut);
                self.hand_out(text, Source::Log);
            }
        }
    }

    /// Waits for what is published, or for the next look.
    async fn listen(&mut self) -> Result<(), AgentError> {
        let now = Instant::now();
        if now >= self.next_look {
            self.next_look = now + if self.tails() { TAIL } else { LOOK };
            return self.look().await;
        }
        let mut until = self.next_look;
        if let Some(closing) = self.closing {
            until = until.min(closing.until);
        }
        let event = match self.events.try_next() {
            Some(event) => event,
            None if self.closing.is_some_and(|closing| now >= closing.until) => {
                self.end_by_row();
                return Ok(());
            }
            None => {
                tokio::select! {
                    biased;
                    event = self.events.next() => event,
                    () = tokio::time::sleep_until(until) => return Ok(()),
                }
            }
        };
        match event {
            Event::Frame(text) if self.concerns(&text) => {
                self.held = Some(Held {
                    text,
                    asked: None,
                    last_time: false,
                });
            }
            Event::Frame(_) => {}
            // Whether anything is missing shows in the numbers of what comes next, or in the log.
            Event::Missed => {
                self.heard.doubt();
                self.log.look();
            }
        }
        Ok(())
    }

    fn concerns(&self, text: &str) -> bool {
        self.run.is_none() || Frame::decode(text).is_some_and(|frame| frame.run == self.run)
    }

    fn hand_out(&mut self, text: &Arc<str>, source: Source) {
        let Some(frame) = Frame::decode(text) else { return };
        let doubtful = frame.run.is_some_and(|run| self.heard.is_doubtful(run));
        self.heard.take(&frame, source);
        if self.to_come {
            // It was made: the next look finds it, or finds that it is gone again.
            self.next_thread_look = Instant::now();
        }
        if !frame.is_end() {
            self.ready.push_back(Item::Frame(text.clone()));
            return;
        }
        let Some(run) = frame.run else {
            // The thread is gone.
            self.over = true;
            return;
        };
        let end = serde_json::from_str(frame.data).unwrap_or_else(|_| end_of(None));
        if doubtful && end.attempt == 0 && !self.logged_run(run) {
            // Who ended it knows nothing of its frames.
            self.ready.push_back(Item::Cut);
        }
        self.over = self.run.is_some();
        self.ready.push_back(Item::End(run, end, Some(frame.id)));
    }
}
