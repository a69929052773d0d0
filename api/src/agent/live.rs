//! Reading what a run, or all runs of a thread, stream: live, from the log, and from the rows when all else is lost.
//!
//! A reader subscribes first and looks at the log and at the run's row afterwards, so nothing falls between them. What the
//! log has comes first, a page at a time and only when the page before was handed out. Then come the frames that are
//! published: those that the log had are passed over by their numbers, and where a number shows that some are missing, the
//! log is read on. Once a second the run's row is read, so an end arrives without any hint.

mod delivery;
mod gaps;
mod log;
mod rows;
pub(super) mod run_status;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;
use towpath_domain::agent::frame::RunEnd;
use towpath_domain::agent::{EventId, EventStart, Frame};
use towpath_domain::{RunId, ThreadId};
use towpath_queue::{Event, Events, State};
use towpath_store::{Dialect, run_events};

use self::delivery::{DeliveredPosition, DeliveryTracker, FrameOrder, Source};
use self::log::{LogReader, ResumePoint};
use self::rows::{PendingEnd, THREAD_POLL_INTERVAL, end_of};
use self::run_status::SharedRunStatus;
use super::app::AgentApp;
use super::errors::AgentError;

/// Between two looks at the row of a run.
const ROW_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The same where hints do not cross processes: the log is read instead.
const LOG_POLL_INTERVAL: Duration = Duration::from_millis(200);
/// How long frames are waited for that may be in no log, and an end that was published.
const GAP_TIMEOUT: Duration = Duration::from_secs(1);
/// Between two looks into the log for frames that are missing: it is a little behind what is published.
const GAP_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Looks into the log that follow the first one, for who reads from there. What was published just before a reader came
/// may be written just after it looked, and no later frame need show the gap.
const CATCH_UP_POLLS: u8 = 3;

/// An event of a stream.
#[derive(Clone, Debug)]
pub(crate) enum StreamItem {
    /// A frame that is no end.
    Frame(Arc<str>),
    /// The run is over. With the id of the frame that says so, where one came.
    End(RunId, RunEnd, Option<EventId>),
    /// Frames were lost, and the log does not have them.
    Cut,
}

/// What a reader finds where it reads what is kept.
#[derive(Clone, Debug)]
pub(crate) enum LoggedItem {
    Item(StreamItem),
    /// The end of what is kept: what comes next is still to happen.
    CaughtUp,
    /// The run is over, or the thread is gone.
    Finished,
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
    run_status: Option<Arc<SharedRunStatus>>,
    events: Events,
    /// Whether the run's frames are in the log.
    logged: bool,
    log: LogReader,
    delivered: DeliveryTracker,
    /// What a reader that came back had before.
    resume_point: Option<ResumePoint>,
    ready: VecDeque<StreamItem>,
    /// A published frame that is being dealt with.
    pending: Option<PendingFrame>,
    /// The row says that the run is over.
    closing: Option<PendingEnd>,
    /// How often the log is still to be looked into.
    catch_up_polls: u8,
    next_poll: Instant,
    next_thread_poll: Instant,
    /// The thread may still be made: that it is not there is no end.
    may_be_created: bool,
    finished: bool,
}

/// A frame that was published.
#[derive(Clone)]
struct PendingFrame {
    text: Arc<str>,
    /// Since when the log is asked for what comes before it.
    log_requested_at: Option<Instant>,
    /// The run is over: the log is asked once more.
    final_check: bool,
}

impl Reader {
    /// Subscribes to a run that is about to be recorded: call it before that. Misses nothing.
    pub async fn subscribe_new(app: &AgentApp, thread: ThreadId, run: RunId, logged: bool) -> Self {
        Self {
            delivered: DeliveryTracker::of_run(run, DeliveredPosition::At(0, 0)),
            ..Self::subscribe(app, thread, Some(run), logged).await
        }
    }

    /// Subscribes to a recorded run whose frames are in the log.
    pub async fn of_logged_run(
        app: &AgentApp,
        thread: ThreadId,
        run: RunId,
        since: EventStart,
    ) -> Result<Self, AgentError> {
        Self::of_run(app, thread, run, true, since).await
    }

    /// Subscribes to what a recorded run publishes from now on, for readers that need nothing from the log.
    pub async fn of_published_frames(app: &AgentApp, thread: ThreadId, run: RunId) -> Result<Self, AgentError> {
        Self::of_run(app, thread, run, false, EventStart::Now).await
    }

    /// Subscribes to a recorded run.
    pub async fn of_run(
        app: &AgentApp,
        thread: ThreadId,
        run: RunId,
        logged: bool,
        since: EventStart,
    ) -> Result<Self, AgentError> {
        let mut reader = Self::subscribe(app, thread, Some(run), logged).await;
        reader.begin(since).await?;
        // It may be over already.
        reader.poll_run(std::time::Instant::now(), Duration::ZERO).await?;
        if let Some(closing) = &mut reader.closing {
            closing.live = false;
        }
        Ok(reader)
    }

    /// Subscribes to whatever happens on a thread.
    pub async fn of_thread(app: &AgentApp, thread: ThreadId, since: EventStart) -> Result<Self, AgentError> {
        let mut reader = Self::subscribe(app, thread, None, true).await;
        reader.begin(since).await?;
        Ok(reader)
    }

    /// As [`Reader::of_thread`], from the beginning of what is kept, of a thread that need not exist yet.
    pub async fn of_thread_not_created(app: &AgentApp, thread: ThreadId) -> Result<Self, AgentError> {
        let mut reader = Self::of_thread(app, thread, EventStart::Beginning).await?;
        // After it has subscribed: a thread that is deleted from here on is told of, or missed at a look.
        reader.may_be_created = !reader.thread_exists().await?;
        Ok(reader)
    }

    async fn subscribe(app: &AgentApp, thread: ThreadId, run: Option<RunId>, logged: bool) -> Self {
        let events = app.queue.subscribe(thread).await;
        let now = Instant::now();
        Self {
            app: app.clone(),
            thread,
            run,
            run_status: run.map(|run| app.run_status.status_of(run)),
            events,
            logged,
            log: LogReader::after(0),
            delivered: DeliveryTracker::default(),
            resume_point: None,
            ready: VecDeque::new(),
            pending: None,
            closing: None,
            catch_up_polls: 0,
            next_poll: now + ROW_POLL_INTERVAL,
            next_thread_poll: now + THREAD_POLL_INTERVAL,
            may_be_created: false,
            finished: false,
        }
    }

    async fn begin(&mut self, since: EventStart) -> Result<(), AgentError> {
        match since {
            EventStart::Now => {
                self.log = LogReader::after(self.log_end().await?);
                self.set_start(DeliveredPosition::Any, DeliveredPosition::Any);
                return Ok(());
            }
            // Frames that were published before, and are not in the log yet, must show as a gap.
            EventStart::Beginning => self.set_start(DeliveredPosition::At(0, 0), DeliveredPosition::Unknown),
            EventStart::After(id) => {
                let (tenant, thread, run) = (self.app.tenant, self.thread, self.run);
                let end = self.log_end().await?;
                let resume = self
                    .app
                    .store
                    .read(async |tx| run_events::resume(tx, tenant, thread, run, id).await)
                    .await?;
                self.log = LogReader::after(resume.after);
                self.set_start(DeliveredPosition::Unknown, DeliveredPosition::Unknown);
                if let Some(found) = resume.found {
                    self.delivered.record_seen(found.run, (found.attempt, found.number), id);
                }
                self.resume_point = Some(ResumePoint::new(id, resume.found, end, run.is_some()));
            }
        }
        self.catch_up_polls = CATCH_UP_POLLS;
        self.log.mark_unread();
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
    fn set_start(&mut self, of_run: DeliveredPosition, of_each: DeliveredPosition) {
        self.delivered = match self.run {
            // What is in no log is heard from where the reader came in.
            Some(run) if !self.logged => DeliveryTracker::of_run(run, DeliveredPosition::Any),
            Some(run) => DeliveryTracker::of_run(run, of_run),
            None => DeliveryTracker::of_thread(of_each),
        };
    }

    /// The next event; `None` after the end of a run, and when the thread is gone. May be dropped while waiting without
    /// losing one.
    pub async fn next(&mut self) -> Result<Option<StreamItem>, AgentError> {
        loop {
            match self.next_logged().await? {
                LoggedItem::Item(item) => return Ok(Some(item)),
                LoggedItem::Finished => return Ok(None),
                LoggedItem::CaughtUp => self.wait_for_event().await?,
            }
        }
    }

    /// The next event of those that are kept. May be dropped while waiting without losing one.
    pub async fn next_logged(&mut self) -> Result<LoggedItem, AgentError> {
        loop {
            if let Some(item) = self.ready.pop_front() {
                return Ok(LoggedItem::Item(item));
            }
            if self.finished {
                return Ok(LoggedItem::Finished);
            }
            if let Some((position, text)) = self.log.next() {
                self.accept_logged(position, &text);
            } else if self.log.has_more() {
                self.read_log().await?;
            } else if let Some(held) = self.pending.clone() {
                self.accept_live(held).await?;
            } else {
                return Ok(LoggedItem::CaughtUp);
            }
        }
    }

    /// Whether the log is all there is between processes.
    fn polls_log(&self) -> bool {
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
                tokio::time::sleep(LOG_POLL_INTERVAL).await;
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    fn accept_logged(&mut self, position: i64, text: &Arc<str>) {
        let Some(frame) = Frame::decode(text) else { return };
        if self
            .resume_point
            .as_mut()
            .is_some_and(|seen| seen.covers(position, &frame))
        {
            self.delivered.record_delivered(&frame, Source::Log);
            return;
        }
        match self.delivered.classify(&frame, Source::Log) {
            FrameOrder::Duplicate => self.delivered.mark_logged(&frame),
            FrameOrder::Next => self.deliver(text, Source::Log),
            FrameOrder::Gap => {
                // It was deleted before this reader came so far.
                self.ready.push_back(StreamItem::Cut);
                self.deliver(text, Source::Log);
            }
        }
    }

    /// Waits for what is published, or for the next look.
    async fn wait_for_event(&mut self) -> Result<(), AgentError> {
        let now = Instant::now();
        if now >= self.next_poll {
            self.next_poll = now
                + if self.polls_log() {
                    LOG_POLL_INTERVAL
                } else {
                    ROW_POLL_INTERVAL
                };
            return self.poll().await;
        }
        let mut until = self.next_poll;
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
                self.pending = Some(PendingFrame {
                    text,
                    log_requested_at: None,
                    final_check: false,
                });
            }
            Event::Frame(_) => {}
            // Whether anything is missing shows in the numbers of what comes next, or in the log.
            Event::Missed => {
                self.delivered.mark_possible_gaps();
                self.log.mark_unread();
            }
        }
        Ok(())
    }

    fn concerns(&self, text: &str) -> bool {
        self.run.is_none() || Frame::decode(text).is_some_and(|frame| frame.run == self.run)
    }

    fn deliver(&mut self, text: &Arc<str>, source: Source) {
        let Some(frame) = Frame::decode(text) else { return };
        let doubtful = frame.run.is_some_and(|run| self.delivered.may_have_gap(run));
        self.delivered.record_delivered(&frame, source);
        if self.may_be_created {
            // It was made: the next look finds it, or finds that it is gone again.
            self.next_thread_poll = Instant::now();
        }
        if !frame.is_end() {
            self.ready.push_back(StreamItem::Frame(text.clone()));
            return;
        }
        let Some(run) = frame.run else {
            // The thread is gone.
            self.finished = true;
            return;
        };
        let end = serde_json::from_str(frame.data).unwrap_or_else(|_| end_of(None));
        if doubtful && end.attempt == 0 && !self.is_run_logged(run) {
            // Who ended it knows nothing of its frames.
            self.ready.push_back(StreamItem::Cut);
        }
        self.finished = self.run.is_some();
        self.ready.push_back(StreamItem::End(run, end, Some(frame.id)));
    }
}
