use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use super::super::{Sources, compose, parse};
use super::*;

/// An operation: who says it, and what.
type StatedOperation = (i64, Keys);

fn text() -> impl Strategy<Value = String> {
    (0_usize..160).prop_map(|length| format!("\"{}\"", "x".repeat(length)))
}

fn object() -> impl Strategy<Value = String> {
    let key = prop_oneof![Just("a"), Just("b"), Just("c \\\" \\n")];
    vec((key, text()), 0..4).prop_map(|keys| {
        let pairs: Vec<_> = keys.iter().map(|(key, text)| format!("\"{key}\": {text}")).collect();
        format!("{{{}}}", pairs.join(", "))
    })
}

fn keys() -> impl Strategy<Value = Keys> {
    let key = prop_oneof![
        3 => Just("metadata"),
        2 => Just("runtime"),
        1 => Just("a"),
        1 => Just("\u{1}b\""),
    ];
    let value = prop_oneof![4 => object(), 1 => text(), 1 => Just("[{}]".to_owned())];
    vec((key, value), 0..4).prop_map(|keys| {
        let mut keys: Keys = keys.into_iter().map(|(key, text)| (key.to_owned(), text)).collect();
        normalise(&mut keys);
        keys
    })
}

/// A post, perhaps, and patches.
fn said() -> impl Strategy<Value = Vec<StatedOperation>> {
    (any::<bool>(), vec(keys(), 1..8)).prop_map(|(post, all)| {
        let first = if post { POST } else { 10 };
        let sources = std::iter::once(first).chain(11..);
        sources.zip(all).collect()
    })
}

fn of((source, keys): &StatedOperation) -> Box<MergedExtra> {
    Box::new(MergedExtra::of(*source, keys.clone()))
}

fn all(said: &[StatedOperation], limit: u64) -> MergedExtra {
    let joined = said.iter().map(of).reduce(|one, other| one.join(other, limit));
    joined.unwrap().bounded(limit).into_owned()
}

/// Through the provenance and the text of a segment.
fn stored(merged: &MergedExtra, limit: u64) -> MergedExtra {
    let bounded = merged.bounded(limit);
    let mut bytes = Vec::new();
    bounded.write(&mut bytes, 1000);
    let mut rest = bytes.as_slice();
    let sources = Sources::read(&mut rest, 1000, 2).unwrap();
    assert!(rest.is_empty());
    let restored = sources
        .restore_several(parse(&compose(&bounded.keys())).unwrap())
        .unwrap();
    assert_eq!(restored, *bounded);
    restored
}

/// The rule, from all values at once.
fn plainly(said: &[StatedOperation], limit: u64) -> Keys {
    let mut values = Vec::new();
    let mut objects = Vec::new();
    for (source, keys) in said {
        for (key, text) in keys {
            let at = OBJECTS.iter().position(|object| object == key);
            match at.filter(|_| text.starts_with('{')) {
                None => values.push((0, key.clone(), Value::new(*source, key, text.clone()))),
                Some(at) => {
                    objects.push((at, *source));
                    let mut inner = parse(text).unwrap();
                    normalise(&mut inner);
                    for (key, text) in inner {
                        let value = Value::new(*source, &key, text);
                        values.push((at + 1, key, value));
                    }
                }
            }
        }
    }
    let place = |(group, key, value): &(usize, String, Value)| {
        let rank = ValueRank {
            source: value.source,
            weight: value.weight,
            group: *group,
            key: key.clone(),
        };
        (rank.source, Reverse(rank.weight), Reverse((rank.group, rank.key)))
    };
    let weight_down_to = |least: &(i64, Reverse<u64>, Reverse<(usize, String)>)| {
        let mut heaviest: BTreeMap<(usize, &String), u64> = BTreeMap::new();
        for value in values.iter().filter(|value| place(value) >= *least) {
            let known = heaviest.entry((value.0, &value.1)).or_default();
            *known = (*known).max(value.2.weight);
        }
        heaviest.values().sum::<u64>()
    };
    let places: BTreeSet<_> = values.iter().map(place).collect();
    let cut = places.into_iter().filter(|place| weight_down_to(place) > limit).max();
    let left: Vec<_> = values
        .iter()
        .filter(|value| cut.as_ref().is_none_or(|cut| place(value) > *cut))
        .collect();
    let newest = |group: usize, floor: i64| {
        let mut newest: BTreeMap<&String, &Value> = BTreeMap::new();
        for (_, key, value) in left
            .iter()
            .filter(|(of, _, value)| *of == group && value.source > floor)
        {
            let known = newest.entry(key).or_insert(value);
            if known.source < value.source {
                *known = value;
            }
        }
        newest
    };
    let mut shown: BTreeMap<String, String> = newest(0, i64::MIN)
        .into_iter()
        .map(|(key, value)| (key.clone(), value.text.clone()))
        .collect();
    for (at, name) in OBJECTS.iter().enumerate() {
        let whole = left.iter().filter(|(group, key, _)| *group == 0 && key == name);
        let floor = whole.map(|(.., value)| value.source).max().unwrap_or(UNSET);
        let said = objects
            .iter()
            .filter(|(of, source)| *of == at && *source > floor && cut.as_ref().is_none_or(|cut| *source >= cut.0));
        if said.count() > 0 {
            let inner = newest(at + 1, floor);
            let pairs = inner.iter().map(|(key, value)| (key.as_str(), value.text.as_str()));
            shown.insert((*name).to_owned(), compose_pairs(pairs));
        }
    }
    let mark = cut.map(|_| (TRUNCATED.to_owned(), "true".to_owned()));
    shown.into_iter().chain(mark).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// In any order and grouping, with duplicates, bounds and storage in between.
    #[test]
    fn every_way_to_join_gives_the_same(
        said in said(),
        again in vec(any::<Index>(), 0..3),
        picks in vec((any::<Index>(), any::<Index>(), 0_u8..4), 12),
        limit in 200_u64..1500,
    ) {
        let expected = all(&said, limit);
        let mut left: Vec<Box<MergedExtra>> = said.iter().map(of).collect();
        left.extend(again.iter().map(|index| of(index.get(&said))));
        let mut picks = picks.into_iter();
        while left.len() > 1 {
            let (one, other, how) = picks.next().unwrap();
            let one = left.swap_remove(one.index(left.len()));
            let other = left.swap_remove(other.index(left.len()));
            let mut joined = one.join(other, limit);
            match how {
                0 => joined.bound(limit),
                1 => *joined = stored(&joined, limit),
                _ => {}
            }
            left.push(joined);
        }
        let joined = left.pop().unwrap();
        prop_assert_eq!(&*joined.bounded(limit), &expected);
        prop_assert_eq!(&joined.clone().join(joined.clone(), limit).bounded(limit).into_owned(), &expected);
        stored(&joined, limit);
        let mut weighed = joined.clone();
        weighed.weigh();
        prop_assert_eq!(weighed, joined, "the weight that is kept is the weight");
    }

    #[test]
    fn what_is_left_is_what_the_rule_says(said in said(), limit in 200_u64..1500) {
        let merged = all(&said, limit);
        prop_assert_eq!(merged.keys(), plainly(&said, limit));
        // Beside keys and values: the names of the two objects, braces, and the mark.
        let around = 2 + r#""metadata":{},"runtime":{},"__truncated__":true"#.len() as u64;
        prop_assert!(compose(&merged.keys()).len() as u64 <= limit + around);
        if plainly(&said, u64::MAX) == merged.keys() {
            prop_assert_eq!(merged.get(TRUNCATED), None);
        }
    }

    #[test]
    fn a_dropped_post_leaves_what_the_patches_say(said in said(), limit in 200_u64..1500) {
        prop_assume!(said.len() > 1 && said[0].0 == POST);
        let mut merged = all(&said, limit);
        merged.drop_post();
        prop_assert_eq!(merged, all(&said[1..], limit));
    }
}

#[test]
fn the_newest_keys_stay() {
    let said = |source: i64, key: &str, length: usize| (source, vec![(key.to_owned(), "1".repeat(length))]);
    let limit = 1000;
    let three = [said(POST, "a", 400), said(5, "b", 400), said(7, "c", 400)];
    let mark = (TRUNCATED.to_owned(), "true".to_owned());
    let names = |said: &[StatedOperation]| {
        all(said, limit)
            .keys()
            .into_iter()
            .map(|(key, _)| key)
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&three), ["b", "c", TRUNCATED]);
    assert_eq!(all(&three, limit).keys().last(), Some(&mark));
    assert_eq!(names(&three[1..]), ["b", "c"]);
    // A smaller value makes no room for values that were dropped before, in either order.
    let four = [&three[..], &[said(9, "b", 10)]].concat();
    assert_eq!(names(&four), ["b", "c", TRUNCATED]);
    // Of one operation the lighter ones stay.
    let keys = |lengths: [usize; 3]| {
        let pairs = ["x", "y", "z"].into_iter().zip(lengths);
        pairs
            .map(|(key, length)| (key.to_owned(), "1".repeat(length)))
            .collect::<Keys>()
    };
    let post = (POST, keys([900, 10, 300]));
    assert_eq!(names(&[post, said(5, "b", 400)]), ["b", "y", "z", TRUNCATED]);
}
