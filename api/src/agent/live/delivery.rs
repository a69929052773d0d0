//! What a reader was handed, run by run: so that a frame that is published and logged comes once, and one that is missing
//! shows.

use std::collections::{BTreeSet, VecDeque};

use serde::Deserialize;
use towpath_domain::RunId;
use towpath_domain::agent::{EventId, Frame};

/// Runs whose frames may still come a second time: runs of a thread follow each other, and each is in the log a moment
/// after it was published.
const RUNS: usize = 32;

/// Where a frame comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// It was published.
    Live,
    /// It was read from the log, which is in order.
    Log,
}

/// How a frame goes with what was handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameOrder {
    /// It was handed out before.
    Duplicate,
    Next,
    /// Others come before it.
    Gap,
}

/// The last numbered frame of a run that was handed out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum DeliveredPosition {
    /// None: whatever comes first is the first.
    #[default]
    Any,
    /// One that only the log knows: the reader came back, or began before what is published now.
    Unknown,
    /// Attempt and number; (0, 0) before the first one.
    At(i64, i64),
}

/// How far each of the latest runs of a thread was heard.
#[derive(Debug, Default)]
pub(super) struct DeliveryTracker {
    /// What holds for a run that is heard of for the first time.
    initial: DeliveredPosition,
    /// The latest runs, oldest first.
    runs: VecDeque<(RunId, RunDelivery)>,
    /// Id of the last event of the thread itself.
    last_thread_event: EventId,
    /// Runs whose rows said at the last look that they are over, while nobody had told their end.
    ended_by_row: BTreeSet<RunId>,
}

#[derive(Clone, Copy, Debug, Default)]
struct RunDelivery {
    position: DeliveredPosition,
    /// Id of the last frame outside of that order.
    last_unnumbered: EventId,
    /// Something of it was handed out.
    has_frames: bool,
    /// Its end was told.
    ended: bool,
    /// Some of it came from the log, so all of it is there.
    logged: bool,
    /// Frames may have been missed since the last one.
    may_have_gap: bool,
}

/// What the end of a run says about its frames.
#[derive(Default, Deserialize)]
struct EndPosition {
    #[serde(default)]
    attempt: i64,
    #[serde(default)]
    last: i64,
}

impl DeliveryTracker {
    /// Nothing was heard; this holds for runs that are heard of for the first time.
    pub(super) fn of_thread(fresh: DeliveredPosition) -> Self {
        Self {
            initial: fresh,
            ..Self::default()
        }
    }

    /// Of one run, so far.
    pub(super) fn of_run(run: RunId, numbered: DeliveredPosition) -> Self {
        let mut heard = Self::default();
        heard.run_delivery_mut(run).position = numbered;
        heard
    }

    /// The reader had this frame before it came back.
    pub(super) fn record_seen(&mut self, run: Option<RunId>, (attempt, number): (i64, i64), id: EventId) {
        let Some(run) = run else {
            self.last_thread_event = self.last_thread_event.max(id);
            return;
        };
        let place = self.run_delivery_mut(run);
        if number > 0 {
            place.position = DeliveredPosition::At(attempt, number);
        } else {
            place.position = DeliveredPosition::Any;
            place.last_unnumbered = id;
        }
    }

    /// How a frame goes with what was handed out.
    pub(super) fn classify(&self, frame: &Frame<'_>, source: Source) -> FrameOrder {
        let Some(run) = frame.run else {
            let new = frame.is_end() || frame.id > self.last_thread_event;
            return if new { FrameOrder::Next } else { FrameOrder::Duplicate };
        };
        let place = self.run_delivery(run);
        if frame.is_end() {
            if place.ended {
                return FrameOrder::Duplicate;
            }
            let last: EndPosition = serde_json::from_str(frame.data).unwrap_or_default();
            let missing = match place.position {
                DeliveredPosition::Any => false,
                DeliveredPosition::Unknown => source == Source::Live,
                DeliveredPosition::At(attempt, number) => (attempt, number) < (last.attempt, last.last),
            };
            // One that was ended by others says nothing of its frames.
            let says = last.attempt > 0 && last.last > 0;
            return if says && missing {
                FrameOrder::Gap
            } else {
                FrameOrder::Next
            };
        }
        if frame.number == 0 {
            return if frame.id > place.last_unnumbered {
                FrameOrder::Next
            } else {
                FrameOrder::Duplicate
            };
        }
        match place.position {
            DeliveredPosition::Any => FrameOrder::Next,
            // The first frame of a run is never one from before, whatever its worker's clock says.
            DeliveredPosition::Unknown if source == Source::Live && frame.number > 1 => FrameOrder::Gap,
            DeliveredPosition::Unknown => FrameOrder::Next,
            DeliveredPosition::At(attempt, number) => {
                if (frame.attempt, frame.number) <= (attempt, number) {
                    return FrameOrder::Duplicate;
                }
                let follows = if frame.attempt == attempt {
                    frame.number == number + 1
                } else {
                    frame.number == 1
                };
                if follows { FrameOrder::Next } else { FrameOrder::Gap }
            }
        }
    }

    /// A frame is handed out, or was before the reader came back.
    pub(super) fn record_delivered(&mut self, frame: &Frame<'_>, source: Source) {
        let Some(run) = frame.run else {
            self.last_thread_event = self.last_thread_event.max(frame.id);
            return;
        };
        if frame.is_end() {
            self.ended_by_row.remove(&run);
        }
        let place = self.run_delivery_mut(run);
        place.has_frames = true;
        place.logged |= source == Source::Log;
        if frame.number == 0 {
            place.ended |= frame.is_end();
            place.last_unnumbered = place.last_unnumbered.max(frame.id);
            return;
        }
        if let DeliveredPosition::At(attempt, _) = place.position {
            // A run that is tried again ends again.
            place.ended &= frame.attempt <= attempt;
        }
        place.position = DeliveredPosition::At(frame.attempt, frame.number);
        place.may_have_gap = false;
    }

    /// A frame of the log that was handed out before: its run is logged.
    pub(super) fn mark_logged(&mut self, frame: &Frame<'_>) {
        if let Some(run) = frame.run {
            self.run_delivery_mut(run).logged = true;
        }
    }

    /// Frames may have been missed, of every run that goes on.
    pub(super) fn mark_possible_gaps(&mut self) {
        for (_, place) in &mut self.runs {
            place.may_have_gap = !place.ended;
        }
    }

    /// Whether frames of a run may have been missed, and no log can tell.
    pub(super) fn may_have_gap(&self, run: RunId) -> bool {
        let place = self.run_delivery(run);
        place.may_have_gap && !place.logged
    }

    /// Whether a run was heard of.
    pub(super) fn has_run(&self, run: RunId) -> bool {
        self.runs.iter().any(|(known, _)| *known == run)
    }

    /// Whether a frame begins another attempt at a run. What the attempt before logged last may not have been handed out.
    pub(super) fn starts_new_attempt(&self, frame: &Frame<'_>) -> bool {
        let last = frame.run.map(|run| self.run_delivery(run).position);
        matches!(last, Some(DeliveredPosition::At(attempt, number)) if number > 0 && frame.attempt > attempt)
    }

    /// Whether some of a run came from the log.
    pub(super) fn is_logged(&self, run: RunId) -> bool {
        self.run_delivery(run).logged
    }

    /// Whether the last frame of a run is known, so that a later one shows what is missing.
    pub(super) fn has_position(&self, run: RunId) -> bool {
        matches!(self.run_delivery(run).position, DeliveredPosition::At(..))
    }

    /// Whether the reader had frames of a run, so that its end must be where they are.
    pub(super) fn expects_end(&self, run: RunId) -> bool {
        match self.run_delivery(run).position {
            DeliveredPosition::Any => false,
            DeliveredPosition::Unknown => true,
            DeliveredPosition::At(_, number) => number > 0,
        }
    }

    /// Runs that were heard, and whose end was not.
    pub(super) fn open_runs(&self) -> Vec<RunId> {
        let open = self.runs.iter().filter(|(_, place)| place.has_frames && !place.ended);
        open.map(|(run, _)| *run).collect()
    }

    /// The row of a run says that it is over. Answers whether its end is to be handed out now: it was to be at the last look
    /// already, so nobody will tell it. What was told just before may be on its way.
    pub(super) fn confirm_ended(&mut self, run: RunId) -> bool {
        if self.ended_by_row.insert(run) {
            return false;
        }
        self.ended_by_row.remove(&run);
        self.run_delivery_mut(run).ended = true;
        true
    }

    fn run_delivery(&self, run: RunId) -> RunDelivery {
        let known = self.runs.iter().rev().find(|(known, _)| *known == run);
        known.map_or_else(|| self.initial_delivery(), |(_, place)| *place)
    }

    fn run_delivery_mut(&mut self, run: RunId) -> &mut RunDelivery {
        let at = match self.runs.iter().rposition(|(known, _)| *known == run) {
            Some(at) => at,
            None => {
                if self.runs.len() == RUNS {
                    self.runs.pop_front();
                }
                self.runs.push_back((run, self.initial_delivery()));
                self.runs.len() - 1
            }
        };
        &mut self.runs[at].1
    }

    fn initial_delivery(&self) -> RunDelivery {
        RunDelivery {
            position: self.initial,
            ..RunDelivery::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(run: Option<RunId>, number: i64, ms: i64) -> Frame<'static> {
        Frame {
            run,
            attempt: 1,
            number,
            id: EventId { ms, seq: 0 },
            event: "values",
            data: "{}",
        }
    }

    /// Whether a frame is new; it is handed out then.
    fn hand_out(heard: &mut DeliveryTracker, frame: &Frame<'_>, source: Source) -> bool {
        let fit = heard.classify(frame, source);
        assert_ne!(fit, FrameOrder::Gap, "{frame:?}");
        if fit == FrameOrder::Next {
            heard.record_delivered(frame, source);
        }
        fit == FrameOrder::Next
    }

    #[test]
    fn a_run_whose_worker_has_a_slow_clock_is_heard_whole() {
        let (one, two) = (Some(RunId::new()), Some(RunId::new()));
        let mut heard = DeliveryTracker::default();
        let frames = [
            frame(one, 1, 100),
            frame(one, 0, 101),
            frame(two, 1, 50),
            frame(two, 2, 51),
            frame(two, 0, 52),
        ];
        assert!(frames.iter().all(|frame| hand_out(&mut heard, frame, Source::Live)));
        assert!(
            !frames.iter().any(|frame| hand_out(&mut heard, frame, Source::Log)),
            "the log holds the same frames"
        );
    }

    #[test]
    fn who_comes_back_hears_nothing_twice_and_every_new_run() {
        let (going, new) = (RunId::new(), Some(RunId::new()));
        let mut heard = DeliveryTracker::of_thread(DeliveredPosition::Unknown);
        heard.record_seen(Some(going), (1, 7), EventId { ms: 100, seq: 0 });
        let going = Some(going);
        assert!(!hand_out(&mut heard, &frame(going, 7, 100), Source::Live));
        assert!(hand_out(&mut heard, &frame(going, 8, 101), Source::Live));
        for at in [frame(new, 1, 60), frame(new, 2, 61), frame(None, 0, 102)] {
            assert!(hand_out(&mut heard, &at, Source::Live), "{at:?}");
        }
        assert!(!hand_out(&mut heard, &frame(None, 0, 102), Source::Log));
    }

    #[test]
    fn a_missing_frame_shows_and_the_log_brings_it() {
        let run = RunId::new();
        let mut heard = DeliveryTracker::of_run(run, DeliveredPosition::At(0, 0));
        let at = |number| frame(Some(run), number, 100 + number);
        assert_eq!(heard.classify(&at(2), Source::Live), FrameOrder::Gap);
        assert!(hand_out(&mut heard, &at(1), Source::Log) && hand_out(&mut heard, &at(2), Source::Log));
        assert_eq!(heard.classify(&at(2), Source::Live), FrameOrder::Duplicate);
        assert_eq!(heard.classify(&at(4), Source::Live), FrameOrder::Gap);
        assert_eq!(
            heard.classify(&at(4), Source::Log),
            FrameOrder::Gap,
            "the log lacks one itself"
        );
        let again = Frame { attempt: 2, ..at(1) };
        assert_eq!(
            heard.classify(&again, Source::Live),
            FrameOrder::Next,
            "another attempt begins anew"
        );
        assert_eq!(
            heard.classify(&Frame { attempt: 2, ..at(2) }, Source::Live),
            FrameOrder::Gap
        );
    }

    #[test]
    fn where_a_reader_is_that_came_back_only_the_log_may_know() {
        let run = RunId::new();
        let mut heard = DeliveryTracker::of_run(run, DeliveredPosition::Unknown);
        let at = |number| frame(Some(run), number, 100 + number);
        assert_eq!(heard.classify(&at(9), Source::Live), FrameOrder::Gap);
        assert_eq!(heard.classify(&at(1), Source::Live), FrameOrder::Next);
        let end = Frame {
            event: "",
            data: r#"{"status": "success", "attempt": 1, "last": 9}"#,
            ..frame(Some(run), 0, 200)
        };
        assert_eq!(heard.classify(&end, Source::Live), FrameOrder::Gap);
        assert!(hand_out(&mut heard, &at(8), Source::Log) && hand_out(&mut heard, &at(9), Source::Live));
        assert_eq!(heard.classify(&end, Source::Live), FrameOrder::Next);
    }

    /// An error that another process wrote, whose clock is behind the worker's.
    #[test]
    fn a_frame_outside_of_the_order_is_heard_whatever_its_id() {
        let run = RunId::new();
        let mut heard = DeliveryTracker::of_run(run, DeliveredPosition::At(0, 0));
        assert!(hand_out(&mut heard, &frame(Some(run), 1, 9000), Source::Live));
        let error = frame(Some(run), 0, 100);
        assert!(hand_out(&mut heard, &error, Source::Live));
        assert!(!hand_out(&mut heard, &error, Source::Log));
    }

    #[test]
    fn an_end_that_comes_after_the_next_run_began_is_heard() {
        let (one, two) = (Some(RunId::new()), Some(RunId::new()));
        let mut heard = DeliveryTracker::default();
        for at in [frame(one, 1, 1), frame(two, 1, 9), frame(one, 0, 2)] {
            assert!(hand_out(&mut heard, &at, Source::Live));
        }
    }

    #[test]
    fn an_end_that_nobody_tells_is_seen_at_the_second_look_and_told_once() {
        let run = RunId::new();
        let mut heard = DeliveryTracker::default();
        assert!(hand_out(&mut heard, &frame(Some(run), 1, 1), Source::Live));
        assert_eq!(heard.open_runs(), [run]);
        assert!(!heard.confirm_ended(run), "it may be on its way");
        assert!(heard.confirm_ended(run));
        assert_eq!(heard.open_runs(), []);
        let end = Frame {
            event: "",
            ..frame(Some(run), 0, 2)
        };
        assert!(!hand_out(&mut heard, &end, Source::Live), "it came late");
    }

    #[test]
    fn doubt_lasts_until_the_next_frame_or_the_log() {
        let (one, two) = (RunId::new(), RunId::new());
        let mut heard = DeliveryTracker::default();
        for run in [one, two] {
            assert!(hand_out(&mut heard, &frame(Some(run), 1, 1), Source::Live));
        }
        heard.mark_possible_gaps();
        assert!(heard.may_have_gap(one) && heard.may_have_gap(two));
        assert!(hand_out(&mut heard, &frame(Some(one), 2, 2), Source::Live));
        heard.mark_logged(&frame(Some(two), 1, 1));
        assert!(!heard.may_have_gap(one) && !heard.may_have_gap(two));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut heard = DeliveryTracker::default();
        for ms in 0..1000 {
            assert!(hand_out(&mut heard, &frame(Some(RunId::new()), 1, ms), Source::Live));
        }
        assert_eq!(heard.runs.len(), RUNS);
    }
}
