//! Which tests of an `and` speak of one and the same entry.

use super::{Check, Family, Field, Filter, Test};

/// The parts of an `and`, sorted.
#[derive(Debug, Default)]
pub struct Scoped<'a> {
    /// Tests that have to hold for one entry together.
    pub entries: Vec<(Family, Vec<&'a Test>)>,
    /// All that stands by itself.
    pub others: Vec<&'a Filter>,
}

/// Sorts the parts of an `and`. The tests of one family make one scope. A scope in which everything is negative asks
/// for no entry at all: there, each test stands by itself, and `neq(metadata_key, "k")` says that there is no such key.
/// Beside a positive one a negative test speaks of the entry: `and(eq(metadata_key, "k"), neq(metadata_value, "v"))` is
/// true where there is a `k` that is not `v`. What stands deeper (in an `or`, a `not`, another `and`) is another scope.
#[must_use]
pub fn pairs(parts: &[Filter]) -> Scoped<'_> {
    let mut scoped = Scoped::default();
    let family = |part: &Filter| match part {
        Filter::Test(Test {
            field: Field::Entry(family, _),
            ..
        }) => Some(*family),
        _ => None,
    };
    let positive = |part: &Filter| matches!(part, Filter::Test(test) if !matches!(test.check, Check::NotEqual(_)));
    for part in parts {
        let own = family(part).filter(|own| parts.iter().any(|part| family(part) == Some(*own) && positive(part)));
        match (own, part) {
            (Some(own), Filter::Test(test)) => match scoped.entries.iter_mut().find(|(known, _)| *known == own) {
                Some((_, tests)) => tests.push(test),
                None => scoped.entries.push((own, vec![test])),
            },
            _ => scoped.others.push(part),
        }
    }
    scoped
}
