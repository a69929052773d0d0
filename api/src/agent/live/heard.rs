//! What the reader of a thread has been handed, so that a frame that is published and logged comes once.

use std::collections::{BTreeSet, VecDeque};

use towpath_domain::RunId;
use towpath_domain::agent::{EventId, Frame};

/// Runs whose frames may still come a second time: runs of a thread follow each other, and each is in the log a moment
/// after it was published.
const RUNS: usize = 32;

/// How far each of the latest runs of a thread was heard.
#[derive(Debug, Default)]
pub(super) struct Heard {
    /// Where the reader came back.
    since: EventId,
    /// The latest runs, oldest first.
    runs: VecDeque<(RunId, Place)>,
    /// Id of the last event of the thread itself.
    own: EventId,
    /// Runs whose rows said at the last look that they are over, while nobody had told their end.
    untold: BTreeSet<RunId>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Place {
    /// Attempt and number of the last frame that has one.
    numbered: (i64, i64),
    /// Id of the last frame outside of that order.
    loose: EventId,
    /// Something of it was handed out.
    heard: bool,
    /// Its end was told.
    ended: bool,
}

impl Heard {
    /// Everything up to this id has been heard before.
    pub(super) fn after(id: EventId) -> Self {
        Self {
            since: id,
            own: id,
            ..Self::default()
        }
    }

    /// Whether this frame was not handed out yet; it is from now on.
    pub(super) fn is_new(&mut self, frame: &Frame<'_>) -> bool {
        let Some(run) = frame.run else {
            let new = frame.id > self.own;
            self.own = self.own.max(frame.id);
            return new;
        };
        let known = self.runs.iter().rposition(|(other, _)| *other == run);
        let at = known.unwrap_or_else(|| {
            if self.runs.len() == RUNS {
                self.runs.pop_front();
            }
            self.runs.push_back((run, Place::default()));
            self.runs.len() - 1
        });
        let place = &mut self.runs[at].1;
        // The first frame of a run is never one from before the reader came back, whatever its worker's clock says.
        let old = known.is_none() && frame.number != 1 && frame.id <= self.since;
        if frame.number == 0 {
            let new = !old && frame.id > place.loose && !(frame.is_end() && place.ended);
            place.loose = place.loose.max(frame.id);
            place.heard |= new;
            if frame.is_end() {
                place.ended = true;
                self.untold.remove(&run);
            }
            return new;
        }
        let numbered = (frame.attempt, frame.number);
        let new = !old && numbered > place.numbered;
        // A run that is tried again ends again.
        place.ended &= !(new && frame.attempt > place.numbered.0);
        place.numbered = place.numbered.max(numbered);
        place.heard |= new;
        new
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
        if let Some((_, place)) = self.runs.iter_mut().find(|(other, _)| *other == run) {
            place.ended = true;
        }
        true
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
        assert!(frames.iter().all(|frame| heard.is_new(frame)));
        assert!(
            !frames.iter().any(|frame| heard.is_new(frame)),
            "the log holds the same frames"
        );
    }

    #[test]
    fn who_comes_back_hears_nothing_twice_and_every_new_run() {
        let (going, new) = (Some(RunId::new()), Some(RunId::new()));
        let mut heard = Heard::after(EventId { ms: 100, seq: 0 });
        assert!(!heard.is_new(&frame(going, 7, 100)));
        assert!(heard.is_new(&frame(going, 8, 101)));
        assert!(heard.is_new(&frame(new, 1, 60)) && heard.is_new(&frame(new, 2, 61)));
        assert!(!heard.is_new(&frame(None, 0, 100)) && heard.is_new(&frame(None, 0, 102)));
    }

    #[test]
    fn an_end_that_comes_after_the_next_run_began_is_heard() {
        let (one, two) = (Some(RunId::new()), Some(RunId::new()));
        let mut heard = Heard::default();
        for at in [frame(one, 1, 1), frame(two, 1, 9), frame(one, 0, 2)] {
            assert!(heard.is_new(&at));
        }
    }

    #[test]
    fn an_end_that_nobody_tells_is_seen_at_the_second_look_and_told_once() {
        let run = RunId::new();
        let mut heard = Heard::default();
        assert!(heard.is_new(&frame(Some(run), 1, 1)));
        assert_eq!(heard.open(), [run]);
        assert!(!heard.is_over(run), "it may be on its way");
        assert!(heard.is_over(run));
        assert_eq!(heard.open(), []);
        let end = Frame {
            event: "",
            ..frame(Some(run), 0, 2)
        };
        assert!(!heard.is_new(&end), "it came late");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut heard = Heard::default();
        for ms in 0..1000 {
            assert!(heard.is_new(&frame(Some(RunId::new()), 1, ms)));
        }
        assert_eq!(heard.runs.len(), RUNS);
    }
}
