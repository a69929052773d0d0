//! What each reader has to have got.

use std::collections::BTreeSet;

use serde_json::Value;
use towpath_domain::agent::RunStatus;

use super::{FollowPlan, ReadFrom, ReaderEvent, Round, RunModel, Task, follow};

impl Round<'_> {
    pub(super) async fn check(&mut self) {
        for reading in std::mem::take(&mut self.readers) {
            let name = reading.name;
            let got = match reading.task {
                Task::Answer(task) => {
                    let answer = task.await.unwrap_or_else(|error| panic!("{name}: {error}"));
                    let at = reading.run.expect("who waits waits for a run");
                    check_answer(&name, &answer, &self.runs[at]);
                    continue;
                }
                Task::Events(task) => task.await.unwrap_or_else(|error| panic!("{name}: {error}")),
                Task::Slow(open) => {
                    let until = reading.run.is_none().then(|| self.last.subscribe());
                    let how = FollowPlan {
                        until,
                        ..FollowPlan::default()
                    };
                    follow(open, how).await
                }
            };
            match reading.run {
                Some(at) if self.runs[at].logged => check_logged(&name, &got, &self.runs[at], reading.since, false),
                Some(at) => check_published(&name, &got, &self.runs[at], reading.since),
                None => self.check_thread(&name, &got, reading.since),
            }
        }
    }

    /// Of a run that is not logged a reader of the thread may miss something, and is told then.
    fn check_thread(&self, name: &str, got: &[ReaderEvent], since: ReadFrom) {
        for run in &self.runs {
            if run.logged {
                check_logged(name, got, run, since, true);
            } else {
                frames_of(name, got, run);
            }
            let ends = got.iter().filter(|one| **one == ReaderEvent::Done(run.id)).count();
            assert!(ends <= 1, "{name}: run {} was over {ends} times", run.id);
        }
    }
}

/// What was got of a run: frames of it, once and in order.
fn frames_of(name: &str, got: &[ReaderEvent], run: &RunModel) -> Vec<i64> {
    let all: BTreeSet<i64> = run.frames.iter().map(|sent| sent.n).collect();
    let frames: Vec<i64> = got
        .iter()
        .filter_map(|one| match one {
            ReaderEvent::Frame(n) if all.contains(n) => Some(*n),
            _ => None,
        })
        .collect();
    assert!(
        frames.windows(2).all(|pair| pair[0] < pair[1]),
        "{name}: frames out of order or twice: {got:?}"
    );
    frames
}

/// Everything that was logged, and nothing else but what a worker published before it died with it.
fn check_logged(name: &str, got: &[ReaderEvent], run: &RunModel, since: ReadFrom, may_be_cut: bool) {
    let frames = frames_of(name, got, run);
    let is_cut = got.contains(&ReaderEvent::Cut);
    assert!(may_be_cut || !is_cut, "{name}: the log has all of it: {got:?}");
    let from = match since {
        ReadFrom::Start => 0,
        ReadFrom::After(n) => {
            let had_before = frames.first().is_some_and(|first| *first <= n);
            assert!(!had_before, "{name}: it had {n} before: {got:?}");
            n + 1
        }
        ReadFrom::Now => match frames.first() {
            Some(first) => *first,
            None => return,
        },
    };
    if is_cut {
        return;
    }
    let missing: Vec<i64> = run
        .frames
        .iter()
        .filter(|sent| sent.logged && sent.n >= from && !frames.contains(&sent.n))
        .map(|sent| sent.n)
        .collect();
    assert!(
        missing.is_empty(),
        "{name}: the log has {missing:?}, and it got {got:?}"
    );
}

/// What was published, with no hole that it is not told of. The last frames of a worker that died may be missing: nothing shows
/// that there were more.
fn check_published(name: &str, got: &[ReaderEvent], run: &RunModel, since: ReadFrom) {
    let frames = frames_of(name, got, run);
    let of_all = got.iter().filter(|one| matches!(one, ReaderEvent::Frame(_))).count();
    assert_eq!(of_all, frames.len(), "{name}: frames of other runs: {got:?}");
    for attempt in 1..=run.attempt {
        let all: Vec<i64> = of_attempt(run, attempt).collect();
        let had: Vec<i64> = all.iter().copied().filter(|n| frames.contains(n)).collect();
        if let Some(first) = had.first() {
            let skipped = all.iter().take_while(|n| *n != first).count();
            let may_begin_here = since == ReadFrom::Now && frames.first() == Some(first);
            assert!(skipped == 0 || may_begin_here, "{name}: {had:?} of {all:?}");
            assert_eq!(had, all[skipped..skipped + had.len()], "{name}: a hole in {all:?}");
        }
        let is_whole = all.last() == had.last();
        // Whoever ends the run of another's worker does not know what that one published last.
        let is_known = attempt == run.attempt && run.over == Some(RunStatus::Success);
        let must_be_told = is_known && (since == ReadFrom::Start || !frames.is_empty());
        assert!(
            is_whole || !must_be_told || got.contains(&ReaderEvent::Cut),
            "{name}: {had:?} of {all:?}, and it is not told"
        );
    }
}

fn of_attempt(run: &RunModel, attempt: i64) -> impl Iterator<Item = i64> {
    let of_it = run.frames.iter().filter(move |sent| sent.attempt == attempt);
    of_it.map(|sent| sent.n)
}

/// The state that the run left, or one that a later run left until somebody looked.
fn check_answer(name: &str, answer: &Value, run: &RunModel) {
    if run.over != Some(RunStatus::Success) || of_attempt(run, run.attempt).next().is_none() {
        return;
    }
    let last = run.frames.last().expect("it has one").n;
    let shown = answer["n"].as_i64();
    assert!(shown >= Some(last), "{name}: {answer}, and the last state is {last}");
}
