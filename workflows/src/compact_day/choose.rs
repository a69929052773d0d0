//! Selects what to merge of a day.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use towpath_domain::{SegmentId, Timestamp};
use towpath_store::segments::LocatedPart;

/// Maximum number of overlapping row groups, which are in memory together, compressed.
pub const MAX_DEPTH: usize = 24;
/// An open day with fewer segments is not merged yet.
const OPEN_SEGMENTS: usize = 8;
/// A closed day is merged completely when the new part has at least this share of it,
const SHARE: i64 = 8;
/// or when nothing was added for this long.
const IDLE_TIME: Duration = Duration::from_secs(10 * 60);

#[derive(Debug)]
pub struct Choice {
    pub parts: Vec<LocatedPart>,
    /// Whether they are all row groups of the day.
    pub compacted: bool,
}

#[derive(Default)]
struct Segment {
    parts: Vec<LocatedPart>,
    rows: i64,
    compacted: bool,
    since: Option<Timestamp>,
}

/// Selects among the live row groups of a day. `None` if nothing is worthwhile. `closed` means that the day has ended.
pub fn choose(live: Vec<LocatedPart>, whole: bool, closed: bool, now: Timestamp) -> Option<Choice> {
    let mut segments: BTreeMap<SegmentId, Segment> = BTreeMap::new();
    for placed in live {
        let segment = segments.entry(placed.part.segment_id).or_default();
        segment.rows += placed.part.rows;
        segment.compacted = placed.compacted;
        segment.since = Some(placed.changed_at);
        segment.parts.push(placed);
    }
    let sum = |compacted| -> i64 {
        let of = segments.values().filter(|segment| segment.compacted == compacted);
        of.map(|segment| segment.rows).sum()
    };
    let (base, added) = (sum(true), sum(false));
    if segments.values().all(|segment| segment.compacted) {
        return None;
    }
    let latest = segments.values().filter_map(|segment| segment.since).max();
    let quiet = latest.is_none_or(|latest| now.since(latest) >= IDLE_TIME);
    let everything = whole || (closed && (added.saturating_mul(SHARE) >= base || quiet));
    if everything && depth(segments.values().flat_map(|segment| &segment.parts)) <= MAX_DEPTH {
        return Some(Choice {
            parts: segments.into_values().flat_map(|segment| segment.parts).collect(),
            compacted: true,
        });
    }
    // The smallest segments, as long as none is much larger than the previous ones: a row is only rewritten when its
    // segment has doubled, not with every addition.
    let mut scattered: Vec<Segment> = segments.into_values().filter(|segment| !segment.compacted).collect();
    scattered.sort_by_key(|segment| segment.rows);
    let mut rows = 0;
    let take = scattered
        .iter()
        .take(MAX_DEPTH)
        .enumerate()
        .take_while(|(at, segment)| {
            let near = *at < 2 || everything || segment.rows <= 2 * rows;
            rows += segment.rows;
            near
        })
        .count();
    let enough = if everything { 2 } else { OPEN_SEGMENTS };
    (take >= enough).then(|| {
        scattered.truncate(take);
        Choice {
            parts: scattered.into_iter().flat_map(|segment| segment.parts).collect(),
            compacted: false,
        }
    })
}

/// Selects the row groups of a day for computing their costs again: all of them, or, if too many overlap, some whose
/// costs are of earlier prices. `None` if there are none of those.
pub fn choose_outdated(live: Vec<LocatedPart>, version: i64) -> Option<Choice> {
    let is_outdated = |placed: &&LocatedPart| placed.price_version < version;
    let outdated: BTreeSet<SegmentId> = live
        .iter()
        .filter(is_outdated)
        .map(|placed| placed.part.segment_id)
        .take(MAX_DEPTH)
        .collect();
    if outdated.is_empty() {
        return None;
    }
    if depth(live.iter()) <= MAX_DEPTH {
        return Some(Choice {
            parts: live,
            compacted: true,
        });
    }
    let parts = live.into_iter();
    Some(Choice {
        parts: parts
            .filter(|placed| outdated.contains(&placed.part.segment_id))
            .collect(),
        compacted: false,
    })
}

/// Maximum number of row groups that cover one moment.
fn depth<'a>(parts: impl Iterator<Item = &'a LocatedPart>) -> usize {
    let mut edges: Vec<(Timestamp, bool)> = parts
        .flat_map(|placed| [(placed.part.min_sort_time, false), (placed.part.max_sort_time, true)])
        .collect();
    // At the same moment, starts sort before ends.
    edges.sort_unstable();
    let mut open = 0_usize;
    let mut most = 0;
    for (_, ends) in edges {
        if ends {
            open -= 1;
        } else {
            open += 1;
            most = most.max(open);
        }
    }
    most
}

#[cfg(test)]
mod tests {
    use towpath_domain::{ProjectId, TenantId};
    use towpath_store::segments::Part;

    use super::*;

    const HOUR: i64 = 3_600_000_000;

    fn at(hours: i64) -> Timestamp {
        Timestamp::from_micros(hours * HOUR)
    }

    /// A segment of one row group that covers some hours.
    fn part(rows: i64, from: i64, to: i64, compacted: bool) -> LocatedPart {
        LocatedPart {
            part: Part {
                segment_id: SegmentId::new(),
                tenant_id: TenantId::nil(),
                project_id: ProjectId::nil(),
                day: at(from).day(),
                row_group: 0,
                rows,
                min_sort_time: at(from),
                max_sort_time: at(to),
                min_seq: 0,
                max_seq: 0,
            },
            path: String::new(),
            bytes: 1,
            compacted,
            indexed: true,
            changed_at: at(0),
            price_version: 0,
        }
    }

    fn chosen(live: Vec<LocatedPart>, whole: bool, closed: bool, now: Timestamp) -> Option<(usize, bool)> {
        choose(live, whole, closed, now).map(|choice| (choice.parts.len(), choice.compacted))
    }

    #[test]
    fn outdated_costs_are_chosen_whatever_is_compacted() {
        let priced = |price_version: i64| LocatedPart {
            price_version,
            ..part(9, 0, 5, true)
        };
        let chosen = |live| choose_outdated(live, 2).map(|choice| (choice.parts.len(), choice.compacted));
        assert_eq!(chosen(vec![]), None);
        assert_eq!(chosen(vec![priced(2), priced(3)]), None);
        assert_eq!(chosen(vec![priced(2), priced(1)]), Some((2, true)));
        let many = (0..MAX_DEPTH)
            .map(|_| priced(2))
            .chain([priced(1), priced(0)])
            .collect();
        assert_eq!(chosen(many), Some((2, false)));
        let many = (0..2 * MAX_DEPTH).map(|_| priced(1)).collect();
        assert_eq!(chosen(many), Some((MAX_DEPTH, false)));
    }

    #[test]
    fn what_is_compacted_stays_as_it_is() {
        assert_eq!(chosen(vec![], true, true, at(30)), None);
        let done = || vec![part(9, 0, 5, true), part(9, 6, 9, true)];
        assert_eq!(chosen(done(), true, true, at(30)), None);
    }

    #[test]
    fn a_closed_day_is_merged_whole_when_much_was_added_or_nothing_more_comes() {
        let day = |added| vec![part(8000, 0, 20, true), part(added, 3, 4, false)];
        assert_eq!(chosen(day(1000), false, true, at(0)), Some((2, true)));
        assert_eq!(chosen(day(10), false, true, at(0)), None, "more may come");
        assert_eq!(chosen(day(10), false, true, at(1)), Some((2, true)), "nothing came");
        assert_eq!(chosen(day(10), true, true, at(0)), Some((2, true)), "somebody waits");
        assert_eq!(chosen(day(10), false, false, at(1)), None, "the day goes on");
    }

    #[test]
    fn of_an_open_day_small_segments_come_together() {
        let small = |count: usize| (0..count).map(|_| part(100, 1, 2, false));
        assert_eq!(chosen(small(7).collect(), false, false, at(1)), None);
        assert_eq!(chosen(small(9).collect(), false, false, at(1)), Some((9, false)));
        let large = small(9).chain([part(1_000_000, 0, 3, false)]).collect();
        assert_eq!(
            chosen(large, false, false, at(1)),
            Some((9, false)),
            "the large one stays"
        );
    }

    #[test]
    fn what_would_not_fit_into_memory_comes_together_step_by_step() {
        let deep = |count: usize| (0..count).map(|_| part(100, 1, 2, false)).collect::<Vec<_>>();
        assert_eq!(chosen(deep(MAX_DEPTH), true, true, at(1)), Some((MAX_DEPTH, true)));
        assert_eq!(chosen(deep(3 * MAX_DEPTH), true, true, at(1)), Some((MAX_DEPTH, false)));
        let flat = (0..100).map(|hour| part(100, 2 * hour, 2 * hour + 1, false)).collect();
        assert_eq!(chosen(flat, true, true, at(1)), Some((100, true)));
    }
}
