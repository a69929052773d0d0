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
pub(super) enum Fit {
    /// It was handed out before.
    Old,
    /// It is the next one.
    Next,
    /// Others come before it.
    Gap,
}

/// The last numbered frame of a run that was handed out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Numbered {
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
pub(super) struct Heard {
    /// What holds for a run that is heard of for the first time.
    fresh: Numbered,
    /// The latest runs, oldest first.
    runs: VecDeque<(RunId, Place)>,
    /// Id of the last event of the thread itself.
    own: EventId,
    /// Runs whose rows said at the last look that they are over, while nobody had told their end.
    untold: BTreeSet<RunId>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Place {
    numbered: Numbered,
    /// Id of the last frame outside of that order.
    loose: EventId,
    /// Something of it was handed out.
    heard: bool,
    /// Its end was told.
    ended: bool,
    /// Some of it came from the log, so all of it is there.
    logged: bool,
    /// Frames may have been missed since the last one.
    doubtful: bool,
}

/// What the end of a run says about its frames.
#[derive(Default, Deserialize)]
struct Last {
    #[serde(default)]
    attempt: i64,
    #[serde(default)]
    last: i64,
}

impl Heard {
    /// Nothing was heard; this holds for runs that are heard of for the first time.
    pub(super) fn of_thread(fresh: Numbered) -> Self {
        Self {
            fresh,
            ..Self::default()
        }
    }

    /// Of one run, so far.
    pub(super) fn of_run(run: RunId, numbered: Numbered) -> Self {
        let mut heard = Self::default();
        heard.enter(run).numbered = numbered;
        heard
    }

    /// The reader had this frame before it came back.
    pub(super) fn had(&mut self, run: Option<RunId>, (attempt, number): (i64, i64), id: EventId) {
        let Some(run) = run else {
            self.own = self.own.max(id);
            return;
        };
        let place = self.enter(run);
        if number > 0 {
            place.numbered = Numbered::At(attempt, number);
        } else {
            place.numbered = Numbered::Any;
            place.loose = id;
        }
    }

    /// How a frame goes with what was handed out.
    pub(super) fn fit(&self, frame: &Frame<'_>, source: Source) -> Fit {
        let Some(run) = frame.run else {
            let new = frame.is_end() || frame.id > self.own;
            return if new { Fit::Next } else { Fit::Old };
        };
        let place = self.place(run);
        if frame.is_end() {
            if place.ended {
                return Fit::Old;
            }
            let last: Last = serde_json::from_str(frame.data).unwrap_or_default();
            let missing = match place.numbered {
                Numbered::Any => false,
                Numbered::Unknown => source == Source::Live,
                Numbered::At(attempt, number) => (attempt, number) < (last.attempt, last.last),
            };
            // One that was ended by others says nothing of its frames.
            let says = last.attempt > 0 && last.last > 0;
            return if says && missing { Fit::Gap } else { Fit::Next };
        }
        if frame.number == 0 {
            return if frame.id > place.loose { Fit::Next } else { Fit::Old };
        }
        match place.numbered {
            Numbered::Any => Fit::Next,
            // The first frame of a run is never one from before, whatever its worker's clock says.
            Numbered::Unknown if source == Source::Live && frame.number > 1 => Fit::Gap,
            Numbered::Unknown => Fit::Next,
            Numbered::At(attempt, number) => {
                if (frame.attempt, frame.number) <= (attempt, number) {
                    return Fit::Old;
                }
                let follows = if frame.attempt == attempt {
                    frame.number == number + 1
                } else {
                    frame.number == 1
                };
                if follows { Fit::Next } else { Fit::Gap }
            }
        }
    }

    /// A frame is handed out, or was before the reader came back.
    pub(super) fn take(&mut self, frame: &Frame<'_>, source: Source) {
        let Some(run) = frame.run else {
            self.own = self.own.max(frame.id);
            return;
        };
        if frame.is_end() {
            self.untold.remove(&run);
        }
        let place = self.enter(run);
        place.heard = true;
        place.logged |= source == Source::Log;
        if frame.number == 0 {
            place.ended |= frame.is_end();
            place.loose = place.loose.max(frame.id);
            return;
        }
        if let Numbered::At(attempt, _) = place.numbered {
            // A run that is tried again ends again.
            place.ended &= frame.attempt <= attempt;
        }
        place.numbered = Numbered::At(frame.attempt, frame.number);
        place.doubtful = false;
    }

    /// A frame of the log that was handed out before: its run is logged.
    pub(super) fn note_logged(&mut self, frame: &Frame<'_>) {
        if let Some(run) = frame.run {
            self.enter(run).logged = true;
        }
    }

    /// Frames may have been missed, of every run that goes on.
    pub(super) fn doubt(&mut self) {
        for (_, place) in &mut self.runs {
            place.doubtful = !place.ended;
        }
    }

    /// Whether frames of a run may have been missed, and no log can tell.
    pub(super) fn is_doubtful(&self, run: RunId) -> bool {
        let place = self.place(run);
        place.doubtful && !place.logged
    }

    /// Whether a run was heard of.
    pub(super) fn knows(&self, run: RunId) -> bool {
        self.runs.iter().any(|(known, _)| *known == run)
    }

    /// Whether a frame begins another attempt at a run. What the attempt before logged last may not have been handed out.
    pub(super) fn begins_again(&self, frame: &Frame<'_>) -> bool {
        let last = frame.run.map(|run| self.place(run).numbered);
        matches!(last, Some(Numbered::At(attempt, number)) if number > 0 && frame.attempt > attempt)
    }

    /// Whether some of a run came from the log.
    pub(super) fn is_logged(&self, run: RunId) -> bool {
        self.place(run).logged
    }

    /// Whether the last frame of a run is known, so that a later one shows what is missing.
    pub(super) fn is_placed(&self, run: RunId) -> bool {
        matches!(self.place(run).numbered, Numbered::At(..))
    }

    /// Whether the reader had frames of a run, so that its end must be where they are.
    pub(super) fn expects_end(&self, run: RunId) -> bool {
        match self.place(run).numbered {
            Numbered::Any => false,
            Numbered::Unknown => true,
            Numbered::At(_, number) => number > 0,
        }
    }

    /// Runs that were heard, and whose end was not.
    pub(super) fn open(&self) -> Vec<RunId> {
        let open = self.runs.iter().filter(|(_, place)| place.heard && !place.ended);
        open.map(|(run, _)| *run).collect()
    }

    /// The row of a run says that it is over. Answers whether its end is to be handed out now: it was to be at the last look
    /// already, so nobody will tell it. What was told just before may be on its way.
    pub(super) fn is_over(&mut self, run: RunId) -> bool {
        if self.untold.insert(run) {
            return false;
        }
        self.untold.remove(&run);
        self.enter(run).ended = true;
        true
    }

    fn place(&self, run: RunId) -> Place {
        let known = self.runs.iter().rev().find(|(known, _)| *known == run);
        known.map_or_else(|| self.fresh(), |(_, place)| *place)
    }

    fn enter(&mut self, run: RunId) -> &mut Place {
        let at = match self.runs.iter().rposition(|(known, _)| *known == run) {
            Some(at) => at,
            None => {
                if self.runs.len() == RUNS {
                    self.runs.pop_front();
                }
                self.runs.push_back((run, self.fresh()));
                self.runs.len() - 1
            }
        };
        &mut self.runs[at].1
    }

    fn fresh(&self) -> Place {
        Place {
            numbered: self.fresh,
            ..Place::default()
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
    fn hand_out(heard: &mut Heard, frame: &Frame<'_>, source: Source) -> bool {
        let fit = heard.fit(frame, source);
        assert_ne!(fit, Fit::Gap, "{frame:?}");
        if fit == Fit::Next {
            heard.take(frame, source);
        }
        fit == Fit::Next
    }

    #[test]
    fn a_run_whose_worker_has_a_slow_clock_is_heard_whole() {
        let (one, two) = (Some(RunId::new()), Some(RunId::new()));
        let mut heard = Heard::default();
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
        let mut heard = Heard::of_thread(Numbered::Unknown);
        heard.had(Some(going), (1, 7), EventId { ms: 100, seq: 0 });
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
        let mut heard = Heard::of_run(run, Numbered::At(0, 0));
        let at = |number| frame(Some(run), number, 100 + number);
        assert_eq!(heard.fit(&at(2), Source::Live), Fit::Gap);
        assert!(hand_out(&mut heard, &at(1), Source::Log) && hand_out(&mut heard, &at(2), Source::Log));
        assert_eq!(heard.fit(&at(2), Source::Live), Fit::Old);
        assert_eq!(heard.fit(&at(4), Source::Live), Fit::Gap);
        assert_eq!(heard.fit(&at(4), Source::Log), Fit::Gap, "the log lacks one itself");
        let again = Frame { attempt: 2, ..at(1) };
        assert_eq!(
            heard.fit(&again, Source::Live),
            Fit::Next,
            "another attempt begins anew"
        );
        assert_eq!(heard.fit(&Frame { attempt: 2, ..at(2) }, Source::Live), Fit::Gap);
    }

    #[test]
    fn where_a_reader_is_that_came_back_only_the_log_may_know() {
        let run = RunId::new();
        let mut heard = Heard::of_run(run, Numbered::Unknown);
        let at = |number| frame(Some(run), number, 100 + number);
        assert_eq!(heard.fit(&at(9), Source::Live), Fit::Gap);
        assert_eq!(heard.fit(&at(1), Source::Live), Fit::Next);
        let end = Frame {
            event: "",
            data: r#"{"status": "success", "attempt": 1, "last": 9}"#,
            ..frame(Some(run), 0, 200)
        };
        assert_eq!(heard.fit(&end, Source::Live), Fit::Gap);
        assert!(hand_out(&mut heard, &at(8), Source::Log) && hand_out(&mut heard, &at(9), Source::Live));
        assert_eq!(heard.fit(&end, Source::Live), Fit::Next);
    }

    /// An error that another process wrote, whose clock is behind the worker's.
    #[test]
    fn a_frame_outside_of_the_order_is_heard_whatever_its_id() {
        let run = RunId::new();
        let mut heard = Heard::of_run(run, Numbered::At(0, 0));
        assert!(hand_out(&mut heard, &frame(Some(run), 1, 9000), Source::Live));
        let error = frame(Some(run), 0, 100);
        assert!(hand_out(&mut heard, &error, Source::Live));
        assert!(!hand_out(&mut heard, &error, Source::Log));
    }

    #[test]
    fn an_end_that_comes_after_the_next_run_began_is_heard() {
        let (one, two) = (Some(RunId::new()), Some(RunId::new()));
        let mut heard = Heard::default();
        for at in [frame(one, 1, 1), frame(two, 1, 9), frame(one, 0, 2)] {
            assert!(hand_out(&mut heard, &at, Source::Live));
        }
    }

    #[test]
    fn an_end_that_nobody_tells_is_seen_at_the_second_look_and_told_once() {
        let run = RunId::new();
        let mut heard = Heard::default();
        assert!(hand_out(&mut heard, &frame(Some(run), 1, 1), Source::Live));
        assert_eq!(heard.open(), [run]);
        assert!(!heard.is_over(run), "it may be on its way");
        assert!(heard.is_over(run));
        assert_eq!(heard.open(), []);
        let end = Frame {
            event: "",
            ..frame(Some(run), 0, 2)
        };
        assert!(!hand_out(&mut heard, &end, Source::Live), "it came late");
    }

    #[test]
    fn doubt_lasts_until_the_next_frame_or_the_log() {
        let (one, two) = (RunId::new(), RunId::new());
        let mut heard = Heard::default();
        for run in [one, two] {
            assert!(hand_out(&mut heard, &frame(Some(run), 1, 1), Source::Live));
        }
        heard.doubt();
        assert!(heard.is_doubtful(one) && heard.is_doubtful(two));
        assert!(hand_out(&mut heard, &frame(Some(one), 2, 2), Source::Live));
        heard.note_logged(&frame(Some(two), 1, 1));
        assert!(!heard.is_doubtful(one) && !heard.is_doubtful(two));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut heard = Heard::default();
        for ms in 0..1000 {
            assert!(hand_out(&mut heard, &frame(Some(RunId::new()), 1, ms), Source::Live));
        }
        assert_eq!(heard.runs.len(), RUNS);
    }
}
