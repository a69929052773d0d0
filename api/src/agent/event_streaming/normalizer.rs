//! Derives events of the protocol from the frames of runs. The result depends on the frames alone, so that every reader in
//! every process gets the same events.

mod blocks;
mod frames;
mod messages;
mod namespaces;

use std::collections::{HashSet, VecDeque};

use serde_json::{Value, json};
use towpath_domain::RunId;
use towpath_domain::agent::frame::RunEnd;
use towpath_domain::agent::{EventId, Frame, RunStatus};

use self::messages::Messages;
use self::namespaces::{Namespaces, Status};
use super::event::{Channel, DraftEvent, Event, Failure};
use super::sequence::Sequence;
use crate::agent::live::StreamItem;

/// Number of tracked runs: frames of a run may arrive after the next run has started.
const MAX_RUNS: usize = 8;
/// Maximum number of tracked interrupts and checkpoints of a run.
const MAX_KNOWN_IDS: usize = 10_000;

/// Derives the events of one thread.
#[derive(Debug, Default)]
pub(super) struct Normalizer {
    sequence: Sequence,
    /// The latest runs; the last one is current.
    runs: VecDeque<RunState>,
    /// Milliseconds of the last frame.
    last_ms: i64,
}

#[derive(Debug)]
struct RunState {
    id: RunId,
    /// Fence of the current attempt.
    attempt: i64,
    namespaces: Namespaces,
    messages: Messages,
    /// Interrupts that were already sent.
    shown_interrupts: HashSet<String>,
    /// Whether this attempt stopped at an interrupt.
    interrupted: bool,
    checkpoints: HashSet<String>,
    error: Option<String>,
    is_ended: bool,
}

impl RunState {
    fn new(id: RunId, graph: &str) -> Self {
        Self {
            id,
            attempt: 0,
            namespaces: Namespaces::new(graph),
            messages: Messages::default(),
            shown_interrupts: HashSet::new(),
            interrupted: false,
            checkpoints: HashSet::new(),
            error: None,
            is_ended: false,
        }
    }
}

impl Normalizer {
    /// The run of an item, if its graph must be looked up.
    pub fn new_run(&self, item: &StreamItem) -> Option<RunId> {
        let (run, numbered) = match item {
            StreamItem::Frame(text) => {
                let frame = Frame::decode(text)?;
                (frame.run?, frame.number > 0)
            }
            StreamItem::End(run, ..) => (*run, false),
            StreamItem::Cut => return None,
        };
        let known = self.runs.iter().any(|known| known.id == run);
        // The end of a run that never started does not affect an active run.
        let busy = self.runs.back().is_some_and(|current| !current.is_ended);
        (!known && (numbered || !busy)).then_some(run)
    }

    pub fn begin(&mut self, run: RunId, graph: &str) {
        if self.runs.len() == MAX_RUNS {
            self.runs.pop_front();
        }
        self.runs.push_back(RunState::new(run, graph));
    }

    /// Graphs of the current run as a tree; `None` if no run was seen.
    pub fn tree(&self) -> Option<Value> {
        Some(self.runs.back()?.namespaces.tree())
    }

    pub fn accept(&mut self, item: &StreamItem) -> Vec<Event> {
        match item {
            StreamItem::Frame(text) => Frame::decode(text)
                .map(|frame| self.accept_frame(&frame))
                .unwrap_or_default(),
            StreamItem::End(run, end, id) => self.accept_end(*run, end, *id),
            StreamItem::Cut => vec![self.gap_event()],
        }
    }

    fn accept_frame(&mut self, frame: &Frame<'_>) -> Vec<Event> {
        let Some(run) = frame.run.and_then(|id| self.runs.iter_mut().find(|run| run.id == id)) else {
            return Vec::new();
        };
        if run.is_ended && frame.attempt <= run.attempt {
            // A late frame does not restart a run that has ended.
            return Vec::new();
        }
        let mut drafts = run.start_events(frame);
        drafts.extend(run.drafts(frame));
        self.number_events(frame.id, drafts)
    }

    fn accept_end(&mut self, run: RunId, end: &RunEnd, id: Option<EventId>) -> Vec<Event> {
        let Some(run) = self.runs.iter_mut().find(|known| known.id == run) else {
            return Vec::new();
        };
        if std::mem::replace(&mut run.is_ended, true) {
            return Vec::new();
        }
        let drafts = run.end_events(end);
        // Without a frame id, the event follows the previous one.
        self.number_events(id.unwrap_or_default(), drafts)
    }

    fn number_events(&mut self, id: EventId, drafts: Vec<DraftEvent>) -> Vec<Event> {
        let mut of_frame = 0;
        self.last_ms = self.last_ms.max(id.ms);
        let timestamp = if id.ms > 0 { id.ms } else { self.last_ms };
        let number = |mut draft: DraftEvent| {
            let name = draft.id.take().unwrap_or_else(|| {
                let name = match of_frame {
                    0 => id.to_string(),
                    nth => format!("{id}.{nth}"),
                };
                of_frame += 1;
                name
            });
            draft.into_event(self.sequence.next(id), &name, timestamp)
        };
        drafts.into_iter().map(number).collect()
    }

    /// An event that reports lost events.
    fn gap_event(&mut self) -> Event {
        let text = "Events were lost and are not stored: read the thread's state";
        Event {
            seq: self.sequence.next(EventId::default()),
            channel: None,
            name: None,
            namespace: Vec::new(),
            text: Failure::new(None, "resume_gap", text).to_bytes(),
        }
    }
}

impl RunState {
    /// Id of an event that is derived from more than its frame.
    fn event_id(&self, parts: &[&str]) -> String {
        format!("synth:{}:{}", self.id, parts.join("|"))
    }

    /// Events before the first frame of a run.
    fn start_events(&mut self, frame: &Frame<'_>) -> Vec<DraftEvent> {
        if frame.number > 0 && frame.attempt != self.attempt {
            // A new attempt starts at the last checkpoint: everything that was open is sent again.
            self.attempt = frame.attempt;
            self.namespaces.restart();
            self.messages = Messages::default();
            self.is_ended = false;
            self.interrupted = false;
            self.error = None;
        }
        if self.namespaces.status() == Status::Running {
            return Vec::new();
        }
        self.namespaces.set_status(Status::Running);
        self.root_lifecycle(Status::Running, None).into_iter().collect()
    }

    /// Events at the end of a run.
    fn end_events(&mut self, end: &RunEnd) -> Vec<DraftEvent> {
        let error = end
            .error
            .as_ref()
            .and_then(|error| error.get("message"))
            .and_then(Value::as_str);
        let error = self.error.take().or_else(|| error.map(str::to_owned));
        let status = match end.status {
            Some(RunStatus::Error | RunStatus::Timeout) => Status::Failed,
            Some(RunStatus::Success) if !self.interrupted => Status::Completed,
            _ => Status::Interrupted,
        };
        let attempt = self.attempt.to_string();
        let mut drafts = Vec::new();
        for (nth, draft) in self.messages.finish_all().into_iter().enumerate() {
            let id = self.event_id(&["message", &attempt, &nth.to_string()]);
            drafts.push(draft.with_id(id));
        }
        for namespace in self.namespaces.close_all(status) {
            let id = self.event_id(&["lifecycle", &namespace.path.join("|"), status.as_str(), &attempt]);
            drafts.extend(namespace.draft().map(|draft| draft.with_id(id)));
        }
        self.namespaces.set_status(status);
        let error = match status {
            Status::Failed => Some(error.unwrap_or_else(|| "the run failed".to_owned())),
            _ => None,
        };
        drafts.extend(self.root_lifecycle(status, error));
        drafts
    }

    /// Lifecycle event of the root graph.
    fn root_lifecycle(&self, status: Status, error: Option<String>) -> Option<DraftEvent> {
        let mut data = json!({"event": status.as_str(), "graph_name": self.namespaces.graph()});
        if let Some(error) = error {
            data["error"] = json!(error);
        }
        let attempt = self.attempt.to_string();
        // A retried run ends again.
        let id = self.event_id(&["lifecycle", "", status.as_str(), &attempt]);
        Some(DraftEvent::serialize(Channel::Lifecycle, &[], &data)?.with_id(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(run: RunId, attempt: i64, number: i64, ms: i64, event: &str, data: &Value) -> StreamItem {
        let frame = Frame {
            run: Some(run),
            attempt,
            number,
            id: EventId { ms, seq: 0 },
            event,
            data: &data.to_string(),
        };
        StreamItem::Frame(frame.encode().into())
    }

    fn ended(run: RunId, ms: i64, status: RunStatus) -> StreamItem {
        let end = RunEnd {
            status: Some(status),
            attempt: 1,
            last: 1,
            values: None,
            error: None,
        };
        StreamItem::End(run, end, Some(EventId { ms, seq: 0 }))
    }

    /// What the lifecycle of the graphs themselves says of an item.
    fn states(normalizer: &mut Normalizer, item: &StreamItem) -> Vec<Value> {
        if let Some(run) = normalizer.new_run(item) {
            normalizer.begin(run, "g");
        }
        let events = normalizer.accept(item);
        let lifecycle = events
            .iter()
            .filter(|event| event.channel == Some(Channel::Lifecycle) && event.namespace.is_empty());
        lifecycle
            .map(|event| {
                let event: Value = serde_json::from_slice(&event.text).unwrap();
                event["params"]["data"]["event"].clone()
            })
            .collect()
    }

    #[test]
    fn the_end_of_a_run_is_shown_after_the_next_one_began() {
        let (one, two) = (RunId::new(), RunId::new());
        let mut normalizer = Normalizer::default();
        let value = json!({"log": []});
        for run in [one, two] {
            assert_eq!(
                states(&mut normalizer, &item(run, 1, 1, 5, "values", &value)),
                ["running"]
            );
        }
        assert_eq!(
            states(&mut normalizer, &ended(one, 6, RunStatus::Success)),
            ["completed"]
        );
        assert_eq!(states(&mut normalizer, &ended(two, 7, RunStatus::Error)), ["failed"]);
    }

    #[test]
    fn a_late_frame_does_not_revive_a_run_and_another_attempt_does() {
        let run = RunId::new();
        let mut normalizer = Normalizer::default();
        let value = json!({"log": []});
        assert_eq!(
            states(&mut normalizer, &item(run, 1, 1, 5, "values", &value)),
            ["running"]
        );
        assert_eq!(
            states(&mut normalizer, &ended(run, 6, RunStatus::Success)),
            ["completed"]
        );
        assert!(normalizer.accept(&item(run, 1, 2, 7, "values", &value)).is_empty());
        assert_eq!(
            states(&mut normalizer, &item(run, 2, 1, 8, "values", &value)),
            ["running"]
        );
    }

    #[test]
    fn an_interrupt_of_an_earlier_attempt_says_nothing_of_a_later_one() {
        let interrupted = json!({"__interrupt__": [{"id": "i", "value": 1}]});
        for (again, state) in [(json!({"log": []}), "completed"), (interrupted.clone(), "interrupted")] {
            let run = RunId::new();
            let mut normalizer = Normalizer::default();
            states(&mut normalizer, &item(run, 1, 1, 5, "values", &interrupted));
            states(&mut normalizer, &item(run, 2, 1, 6, "values", &again));
            assert_eq!(states(&mut normalizer, &ended(run, 7, RunStatus::Success)), [state]);
        }
    }
}
