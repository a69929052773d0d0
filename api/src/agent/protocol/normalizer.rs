//! From what runs stream to events of the protocol. The outcome depends on the frames of a run alone, so that whoever reads
//! them later, or elsewhere, gets the same events.

mod blocks;
mod frames;
mod messages;
mod namespaces;

use std::collections::{HashSet, VecDeque};

use serde_json::{Value, json};
use towpath_domain::RunId;
use towpath_domain::agent::frame::End;
use towpath_domain::agent::{EventId, Frame, RunStatus};

use self::messages::Messages;
use self::namespaces::{Namespaces, Status};
use super::event::{Channel, Draft, Event, Failure};
use super::sequence::Sequence;
use crate::agent::live::Item;

/// Runs that are remembered: frames of one may come when the next one has begun.
const RUNS: usize = 8;
/// Interrupts and checkpoints of one run that are known again.
const MOST_KNOWN: usize = 10_000;

/// Derives the events of one thread.
#[derive(Debug, Default)]
pub(super) struct Normalizer {
    sequence: Sequence,
    /// The latest runs; the last one is the current one.
    runs: VecDeque<Run>,
    /// Milliseconds of the last frame.
    last_ms: i64,
}

/// A run that streams.
#[derive(Debug)]
struct Run {
    id: RunId,
    /// The fence of the attempt whose frames come.
    attempt: i64,
    namespaces: Namespaces,
    messages: Messages,
    /// Interrupts that were shown.
    requested: HashSet<String>,
    /// Whether this attempt stopped at one.
    interrupted: bool,
    checkpoints: HashSet<String>,
    error: Option<String>,
    ended: bool,
}

impl Run {
    fn new(id: RunId, graph: &str) -> Self {
        Self {
            id,
            attempt: 0,
            namespaces: Namespaces::new(graph),
            messages: Messages::default(),
            requested: HashSet::new(),
            interrupted: false,
            checkpoints: HashSet::new(),
            error: None,
            ended: false,
        }
    }
}

impl Normalizer {
    /// The run of an item, where it has to be begun first.
    pub fn new_run(&self, item: &Item) -> Option<RunId> {
        let (run, numbered) = match item {
            Item::Frame(text) => {
                let frame = Frame::decode(text)?;
                (frame.run?, frame.number > 0)
            }
            Item::End(run, ..) => (*run, false),
            Item::Cut => return None,
        };
        let known = self.runs.iter().any(|known| known.id == run);
        // A run that was ended from outside before it began says nothing about one that is at work.
        let busy = self.runs.back().is_some_and(|current| !current.ended);
        (!known && (numbered || !busy)).then_some(run)
    }

    pub fn begin(&mut self, run: RunId, graph: &str) {
        if self.runs.len() == RUNS {
            self.runs.pop_front();
        }
        self.runs.push_back(Run::new(run, graph));
    }

    /// What the graphs of the current run are at, as a tree; `None` where no run was seen.
    pub fn tree(&self) -> Option<Value> {
        Some(self.runs.back()?.namespaces.tree())
    }

    pub fn take(&mut self, item: &Item) -> Vec<Event> {
        match item {
            Item::Frame(text) => Frame::decode(text).map(|frame| self.frame(&frame)).unwrap_or_default(),
            Item::End(run, end, id) => self.end(*run, end, *id),
            Item::Cut => vec![self.lost()],
        }
    }

    fn frame(&mut self, frame: &Frame<'_>) -> Vec<Event> {
        let Some(run) = frame.run.and_then(|id| self.runs.iter_mut().find(|run| run.id == id)) else {
            return Vec::new();
        };
        if run.ended && frame.attempt <= run.attempt {
            // Published or logged late: what has ended does not begin again.
            return Vec::new();
        }
        let mut drafts = run.opening(frame);
        drafts.extend(run.drafts(frame));
        self.numbered(frame.id, drafts)
    }

    fn end(&mut self, run: RunId, end: &End, id: Option<EventId>) -> Vec<Event> {
        let Some(run) = self.runs.iter_mut().find(|known| known.id == run) else {
            return Vec::new();
        };
        if std::mem::replace(&mut run.ended, true) {
            return Vec::new();
        }
        let drafts = run.closing(end);
        // Where no frame says it, it comes behind what was there.
        self.numbered(id.unwrap_or_default(), drafts)
    }

    fn numbered(&mut self, id: EventId, drafts: Vec<Draft>) -> Vec<Event> {
        let mut of_frame = 0;
        self.last_ms = self.last_ms.max(id.ms);
        let timestamp = if id.ms > 0 { id.ms } else { self.last_ms };
        let number = |mut draft: Draft| {
            let name = draft.id.take().unwrap_or_else(|| {
                let name = match of_frame {
                    0 => id.to_string(),
                    nth => format!("{id}.{nth}"),
                };
                of_frame += 1;
                name
            });
            draft.numbered(self.sequence.next(id), &name, timestamp)
        };
        drafts.into_iter().map(number).collect()
    }

    /// Events were lost on their way, and are kept nowhere.
    fn lost(&mut self) -> Event {
        let text = "Events were lost on their way to this reader, and are not kept: read the thread's state";
        Event {
            seq: self.sequence.next(EventId::default()),
            channel: None,
            name: None,
            namespace: Vec::new(),
            text: Failure::new(None, "resume_gap", text).to_bytes(),
        }
    }
}

impl Run {
    /// The id of an event that is derived from more than its frame.
    fn event_id(&self, parts: &[&str]) -> String {
        format!("synth:{}:{}", self.id, parts.join("|"))
    }

    /// What a run says before its first frame.
    fn opening(&mut self, frame: &Frame<'_>) -> Vec<Draft> {
        if frame.number > 0 && frame.attempt != self.attempt {
            // Another attempt begins at the last checkpoint: what the one before had open is told anew.
            self.attempt = frame.attempt;
            self.namespaces.restart();
            self.messages = Messages::default();
            self.ended = false;
            self.interrupted = false;
            self.error = None;
        }
        if self.namespaces.status() == Status::Running {
            return Vec::new();
        }
        self.namespaces.set_status(Status::Running);
        self.root(Status::Running, None).into_iter().collect()
    }

    /// What a run says at its end.
    fn closing(&mut self, end: &End) -> Vec<Draft> {
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
        drafts.extend(self.root(status, error));
        drafts
    }

    /// The lifecycle of the graph itself.
    fn root(&self, status: Status, error: Option<String>) -> Option<Draft> {
        let mut data = json!({"event": status.as_str(), "graph_name": self.namespaces.graph()});
        if let Some(error) = error {
            data["error"] = json!(error);
        }
        let attempt = self.attempt.to_string();
        // A run that is tried again after its end ends again.
        let id = self.event_id(&["lifecycle", "", status.as_str(), &attempt]);
        Some(Draft::of(Channel::Lifecycle, &[], &data)?.with_id(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(run: RunId, attempt: i64, number: i64, ms: i64, event: &str, data: &Value) -> Item {
        let frame = Frame {
            run: Some(run),
            attempt,
            number,
            id: EventId { ms, seq: 0 },
            event,
            data: &data.to_string(),
        };
        Item::Frame(frame.encode().into())
    }

    fn ended(run: RunId, ms: i64, status: RunStatus) -> Item {
        let end = End {
            status: Some(status),
            attempt: 1,
            last: 1,
            values: None,
            error: None,
        };
        Item::End(run, end, Some(EventId { ms, seq: 0 }))
    }

    /// What the lifecycle of the graphs themselves says of an item.
    fn states(normalizer: &mut Normalizer, item: &Item) -> Vec<Value> {
        if let Some(run) = normalizer.new_run(item) {
            normalizer.begin(run, "g");
        }
        let events = normalizer.take(item);
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
        assert!(normalizer.take(&item(run, 1, 2, 7, "values", &value)).is_empty());
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
