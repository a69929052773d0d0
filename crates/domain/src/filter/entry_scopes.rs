//! Which conditions of an `and` apply to one and the same entry.

use super::{Comparison, Condition, Family, Field, Filter};

#[derive(Debug, Default)]
pub struct ScopedConditions<'a> {
    /// Conditions that must hold for one entry together.
    pub entries: Vec<(Family, Vec<&'a Condition>)>,
    /// Conditions that apply separately.
    pub others: Vec<&'a Filter>,
}

/// Sorts the parts of an `and`. The tests of one family make one scope. A scope in which everything is negative asks
/// for no entry at all: there, each test stands by itself, and `neq(metadata_key, "k")` says that there is no such key.
/// Beside a positive one a negative test speaks of the entry: `and(eq(metadata_key, "k"), neq(metadata_value, "v"))` is
/// true if there is a `k` that is not `v`. What is deeper (in an `or`, a `not`, another `and`) is another scope.
#[must_use]
pub fn group_by_entry(parts: &[Filter]) -> ScopedConditions<'_> {
    let mut scoped = ScopedConditions::default();
    let family = |part: &Filter| match part {
        Filter::Condition(Condition {
            field: Field::Entry(family, _),
            ..
        }) => Some(*family),
        _ => None,
    };
    let positive =
        |part: &Filter| matches!(part, Filter::Condition(test) if !matches!(test.comparison, Comparison::NotEqual(_)));
    for part in parts {
        let own = family(part).filter(|own| parts.iter().any(|part| family(part) == Some(*own) && positive(part)));
        match (own, part) {
            (Some(own), Filter::Condition(test)) => match scoped.entries.iter_mut().find(|(known, _)| *known == own) {
                Some((_, tests)) => tests.push(test),
                None => scoped.entries.push((own, vec![test])),
            },
            _ => scoped.others.push(part),
        }
    }
    scoped
}
