//! The rounds of a drill, which its worlds share, and the table that comes of them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What one world does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Round {
    /// A caller that comes to the point for the n-th time dies.
    Point { name: String, nth: u32 },
    /// Processes die at random moments.
    Random,
    /// A process that performs jobs is stopped past its lease.
    PastTheLease { performer: String },
}

/// What is left to do, and what was seen.
pub struct Rounds {
    points: BTreeSet<String>,
    wanted: u32,
    /// Done whatever happens.
    due: VecDeque<Round>,
    /// Done while kills are missing: later passes of a point are other moments, the second checkpoint, the third
    /// upload.
    more: VecDeque<Round>,
    /// Point, or [`Rounds::RANDOM`], to deaths.
    kills: BTreeMap<String, u32>,
    stops: u32,
    rounds: u32,
    rows: usize,
}

impl Rounds {
    /// Kills at random moments stand under this name.
    pub const RANDOM: &str = "random";

    /// Every performer stopped past its lease, every point once, and more until `wanted` kills were survived.
    pub fn new(performers: &[&str], points: &BTreeSet<String>, wanted: u32) -> Self {
        let at = |nth: u32| {
            points.iter().map(move |name| Round::Point {
                name: name.clone(),
                nth,
            })
        };
        // They take longest, so they come first.
        let stopped = performers.iter().map(|performer| Round::PastTheLease {
            performer: (*performer).to_owned(),
        });
        Self {
            points: points.clone(),
            wanted,
            due: stopped.chain(at(1)).collect(),
            more: at(2).chain(at(3)).collect(),
            kills: BTreeMap::new(),
            stops: 0,
            rounds: 0,
            rows: 0,
        }
    }

    /// The next round of a world that has ended its last one.
    pub fn next(&mut self) -> Option<Round> {
        if let Some(due) = self.due.pop_front() {
            return Some(due);
        }
        let missing = self.total() < self.wanted;
        missing.then(|| self.more.pop_front().unwrap_or(Round::Random))
    }

    pub fn total(&self) -> u32 {
        self.kills.values().sum()
    }

    /// Points that no one died at.
    pub fn missed(&self) -> Vec<&str> {
        let missed = self.points.iter().filter(|point| !self.kills.contains_key(*point));
        missed.map(String::as_str).collect()
    }

    pub fn died(&mut self, at: &str, deaths: u32) {
        if deaths > 0 {
            *self.kills.entry(at.to_owned()).or_default() += deaths;
        }
    }

    pub fn stopped(&mut self, in_time: bool) {
        self.stops += u32::from(in_time);
    }

    /// One round of work is over and its rows are what they should be.
    pub fn compared(&mut self, rows: usize) {
        self.rounds += 1;
        self.rows += rows;
    }

    pub fn table(&self, worlds: u64) -> String {
        let (rounds, rows) = (self.rounds, self.rows);
        let mut table = format!(
            "{rounds} rounds in {worlds} worlds, {rows} rows compared in 29 columns\n| point | kills |\n|---|---|\n"
        );
        for point in self.points.iter().map(String::as_str).chain([Self::RANDOM]) {
            let kills = self.kills.get(point).unwrap_or(&0);
            table += &format!("| {point} | {kills} |\n");
        }
        let (all, stops) = (self.total(), self.stops);
        table + &format!("| all | {all} |\n| stopped past the lease | {stops} |")
    }
}

#[test]
fn every_point_is_due_once_and_kills_are_added_until_there_are_enough() {
    let points = BTreeSet::from(["a".to_owned(), "b".to_owned()]);
    let mut rounds = Rounds::new(&["dev"], &points, 6);
    let at = |name: &str, nth| {
        let name = name.to_owned();
        Some(Round::Point { name, nth })
    };
    let performer = "dev".to_owned();
    assert_eq!(rounds.next(), Some(Round::PastTheLease { performer }));
    // Enough kills already: the points are due all the same.
    rounds.died("a", 3);
    assert_eq!((rounds.next(), rounds.next()), (at("a", 1), at("b", 1)));
    assert_eq!(rounds.missed(), ["b"]);
    assert_eq!((rounds.next(), rounds.next()), (at("a", 2), at("b", 2)));
    assert_eq!((rounds.next(), rounds.next()), (at("a", 3), at("b", 3)));
    assert_eq!(rounds.next(), Some(Round::Random));
    rounds.died(Rounds::RANDOM, 3);
    assert_eq!(rounds.next(), None);
}
