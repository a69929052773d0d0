//! `extra` of several operations: a join of maps, and the bound on what it leaves.
//!
//! Whatever the order and the grouping in which operations meet, the same is left. For the bound that takes some care,
//! because a value that takes another's place can be the smaller one, and then there is room again for what was left
//! out before. So for the bound a key weighs as much as the heaviest of its values, of those that are new enough.
//! Values are ranked: newer ones come first, of one operation the lighter ones. The weight of all keys, each by its
//! heaviest value down to some rank, only grows with more operations. The first rank at which it exceeds the limit is
//! the [`cut`]: what is there or behind it is forgotten for good. Of heavier values that were replaced, and stand
//! before the cut, the weight is remembered.
//!
//! [`cut`]: Merged::cut

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::mem;

use super::{Keys, OBJECTS, TRUNCATED, compose_pairs, normalise, parse, says_nothing};
use crate::row::provenance::{POST, UNSET};

/// The keys of the top level, then those inside each of `OBJECTS`.
pub const GROUPS: usize = 1 + OBJECTS.len();

/// The minimum weight of a key, which also bounds their number.
const LEAST_WEIGHT: u64 = 64;

/// What several operations said.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MergedExtra {
    /// By group and key.
    pub(super) values: [BTreeMap<String, Value>; GROUPS],
    /// Replaced values of these keys that weigh more than all newer ones, newest first.
    pub(super) older: [BTreeMap<String, Vec<ReplacedValue>>; GROUPS],
    pub(super) objects: [Object; OBJECTS.len()],
    /// What is here or behind it in the order of ranks was left out.
    pub(super) truncated_at: Option<ValueRank>,
    /// The sum over all keys of the heaviest value of each.
    weight: u64,
}

/// A value and where it came from.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    pub source: i64,
    pub text: String,
    weight: u64,
}

/// A value that another one took the place of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReplacedValue {
    pub source: i64,
    pub weight: u64,
}

/// One of `OBJECTS`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Object {
    /// The newest operation with an object; `UNSET` if there is none, or another value came after it.
    pub source: i64,
    /// The newest operation with another value. Keys of older objects do not count.
    pub floor: i64,
}

impl Default for Object {
    fn default() -> Self {
        Self {
            source: UNSET,
            floor: UNSET,
        }
    }
}

/// A place in the order of values.
#[derive(Clone, Debug, PartialEq)]
pub struct ValueRank {
    pub source: i64,
    pub weight: u64,
    pub group: usize,
    pub key: String,
}

/// As ranks are compared: the greater one is before.
type Order<'a> = (i64, Reverse<u64>, Reverse<(usize, &'a str)>);

impl ValueRank {
    fn order(&self) -> Order<'_> {
        order(self.source, self.weight, self.group, &self.key)
    }
}

const fn order(source: i64, weight: u64, group: usize, key: &str) -> Order<'_> {
    (source, Reverse(weight), Reverse((group, key)))
}

impl Value {
    pub fn new(source: i64, key: &str, text: String) -> Self {
        let text = if text.trim().len() < text.len() {
            text.trim().to_owned()
        } else {
            text
        };
        // With the colon and the comma.
        let weight = (escaped_len(key) + text.len() + 2) as u64;
        Self {
            source,
            text,
            weight: weight.max(LEAST_WEIGHT),
        }
    }
}

/// Bytes of a text as a JSON string.
fn escaped_len(text: &str) -> usize {
    let escaped = text.bytes().map(|byte| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 2,
        0..0x20 => 6,
        _ => 1,
    });
    escaped.sum::<usize>() + 2
}

impl MergedExtra {
    /// What one operation said.
    pub fn of(source: i64, keys: Keys) -> Self {
        let mut merged = Self::default();
        for (key, text) in keys {
            merged.add(source, key, text);
        }
        merged
    }

    /// Adds a new top-level key of an operation.
    pub fn add(&mut self, source: i64, key: String, text: String) {
        // Stored by the first version, which kept it as a value.
        if says_nothing(&key, &text) {
            return;
        }
        if let Some(at) = OBJECTS.iter().position(|object| *object == key) {
            if let Some(mut inner) = text.trim_start().starts_with('{').then(|| parse(&text).ok()).flatten() {
                normalise(&mut inner);
                self.objects[at].source = source;
                for (key, text) in inner {
                    let value = Value::new(source, &key, text);
                    self.put(at + 1, key, value);
                }
                return;
            }
            self.objects[at].floor = source;
        }
        let value = Value::new(source, &key, text);
        self.put(0, key, value);
    }

    /// Joins both. The result may exceed the limit twofold, so that the bound is not computed for every small addition.
    pub fn join(mut self: Box<Self>, mut other: Box<Self>, limit: u64) -> Box<Self> {
        if self.len() < other.len() {
            mem::swap(&mut self, &mut other);
        }
        self.raise_truncation(other.truncated_at.take());
        for at in 0..OBJECTS.len() {
            let object = Object {
                source: self.objects[at].source.max(other.objects[at].source),
                floor: self.floor(at).max(other.floor(at)),
            };
            let rises = object.floor > self.objects[at].floor;
            self.objects[at] = object;
            if rises {
                self.replace_below(at);
            }
        }
        self.settle();
        for group in 0..GROUPS {
            let floor = group.checked_sub(1).map_or(UNSET, |at| self.objects[at].floor);
            for (key, value) in mem::take(&mut other.values[group]) {
                if self.is_truncated(group, &key, value.source, value.weight) {
                    continue;
                }
                if value.source <= floor || group == 0 && self.is_object(&key) {
                    self.put_older(group, &key, &[value.replaced()]);
                } else {
                    self.put(group, key, value);
                }
            }
            for (key, mut older) in mem::take(&mut other.older[group]) {
                older.retain(|value| !self.is_truncated(group, &key, value.source, value.weight));
                self.put_older(group, &key, &older);
            }
        }
        if self.weight > limit.saturating_mul(2) {
            self.bound(limit);
        }
        self
    }

    /// The same within the limit.
    pub fn bounded(&self, limit: u64) -> Cow<'_, Self> {
        if self.weight <= limit {
            return Cow::Borrowed(self);
        }
        let mut bounded = self.clone();
        bounded.bound(limit);
        Cow::Owned(bounded)
    }

    /// Forgets what a post said.
    pub fn drop_post(&mut self) {
        for group in 0..GROUPS {
            self.values[group].retain(|_, value| value.source != POST);
            self.older[group].retain(|_, older| {
                older.retain(|value| value.source != POST);
                !older.is_empty()
            });
        }
        for object in &mut self.objects {
            if object.source == POST {
                object.source = UNSET;
            }
            if object.floor == POST {
                object.floor = UNSET;
            }
        }
        self.truncated_at.take_if(|cut| cut.source == POST);
        self.weigh();
    }

    /// Keys of the top level in order, as they are shown.
    pub fn keys(&self) -> Keys {
        let names = self.names().into_iter();
        let keys = names.filter_map(|name| Some((name.to_owned(), self.get(name)?)));
        let mark = self
            .truncated_at
            .as_ref()
            .map(|_| (TRUNCATED.to_owned(), "true".to_owned()));
        keys.chain(mark).collect()
    }

    /// The names without values, and without the truncation mark.
    pub(super) fn names(&self) -> Vec<&str> {
        let top = self.values[0].keys().map(String::as_str);
        let objects = OBJECTS.iter().zip(&self.objects);
        let objects = objects.filter(|(_, object)| object.source != UNSET);
        let all = top.chain(objects.map(|(name, _)| *name));
        let mut names: Vec<&str> = all
            .filter(|name| self.truncated_at.is_none() || *name != TRUNCATED)
            .collect();
        names.sort_unstable();
        names
    }

    /// The value of a key of the top level, as it is shown.
    pub fn get(&self, key: &str) -> Option<String> {
        if key == TRUNCATED && self.truncated_at.is_some() {
            return Some("true".to_owned());
        }
        match OBJECTS.iter().position(|object| *object == key) {
            Some(at) if self.objects[at].source != UNSET => Some(self.object(at)),
            _ => self.values[0].get(key).map(|value| value.text.clone()),
        }
    }

    /// About how many bytes it holds.
    pub fn bytes(&self) -> usize {
        let values = self.values.iter().flatten();
        values
            .map(|(key, value)| key.len() + value.text.len() + 2 * size_of::<String>())
            .sum()
    }

    /// The single operation that set everything, if nothing else must be remembered.
    pub fn only_source(&self) -> Option<i64> {
        let values = self.values.iter().flatten().map(|(_, value)| value.source);
        let objects = self.objects.iter().map(|object| object.source);
        let mut sources = values.chain(objects.filter(|source| *source != UNSET));
        let first = sources.next().unwrap_or(POST);
        let is_plain = |(object, name): (&Object, &&str)| object.floor == UNSET || self.values[0].contains_key(*name);
        let plain = self.truncated_at.is_none()
            && self.older.iter().all(BTreeMap::is_empty)
            && self.objects.iter().zip(&OBJECTS).all(is_plain);
        (plain && sources.all(|source| source == first)).then_some(first)
    }

    /// Completes a manually built value: removes floors below the cut, and sums weights.
    pub fn restored(mut self) -> Self {
        self.settle();
        self.weigh();
        self
    }

    /// Adds a value that is newer than the floor and before the cut.
    pub fn put(&mut self, group: usize, key: String, value: Value) {
        let Some(held) = self.values[group].get_mut(&key) else {
            if self.older[group].is_empty() {
                self.weight += value.weight;
                self.values[group].insert(key, value);
                return;
            }
            let before = self.heaviest(group, &key);
            self.values[group].insert(key.clone(), value);
            self.keep_heavier(group, &key, &[]);
            self.weight = self.weight - before + self.heaviest(group, &key);
            return;
        };
        let was = held.weight;
        let replaced = if held.source < value.source {
            mem::replace(held, value).replaced()
        } else {
            value.replaced()
        };
        let before = self.heaviest_replaced(group, &key).unwrap_or(was);
        self.keep_heavier(group, &key, &[replaced]);
        self.weight = self.weight - before + self.heaviest(group, &key);
    }

    /// Puts in values that something newer took the place of.
    fn put_older(&mut self, group: usize, key: &str, older: &[ReplacedValue]) {
        let before = self.heaviest(group, key);
        self.keep_heavier(group, key, older);
        self.weight = self.weight - before + self.heaviest(group, key);
    }

    /// Of the replaced values of a key and these ones, keeps those heavier than everything newer.
    fn keep_heavier(&mut self, group: usize, key: &str, more: &[ReplacedValue]) {
        let mut reach = self.values[group].get(key).map_or(0, |value| value.weight);
        let known = self.older[group].get(key).map_or(&[][..], Vec::as_slice);
        if known.is_empty() && more.iter().all(|value| value.weight <= reach) {
            return;
        }
        let mut all = [known, more].concat();
        all.sort_unstable_by_key(|value| (Reverse(value.source), value.weight));
        all.retain(|value| {
            let heavier = value.weight > reach;
            reach = reach.max(value.weight);
            heavier
        });
        if all.is_empty() {
            self.older[group].remove(key);
        } else {
            self.older[group].insert(key.to_owned(), all);
        }
    }

    fn heaviest(&self, group: usize, key: &str) -> u64 {
        let value = self.values[group].get(key).map_or(0, |value| value.weight);
        self.heaviest_replaced(group, key).unwrap_or(value)
    }

    fn heaviest_replaced(&self, group: usize, key: &str) -> Option<u64> {
        Some(self.older[group].get(key)?.last()?.weight)
    }

    /// The newest operation that said no object.
    fn floor(&self, at: usize) -> i64 {
        let whole = self.values[0].get(OBJECTS[at]).map_or(UNSET, |value| value.source);
        whole.max(self.objects[at].floor)
    }

    /// Whether an object is newer than every other value of this top-level key.
    fn is_object(&self, key: &str) -> bool {
        let at = OBJECTS.iter().position(|object| *object == key);
        at.is_some_and(|at| self.objects[at].source != UNSET)
    }

    /// Removes keys of an object that something newer replaced.
    fn replace_below(&mut self, at: usize) {
        let floor = self.objects[at].floor;
        let group = at + 1;
        let gone: Vec<_> = self.values[group]
            .extract_if(.., |_, value| value.source <= floor)
            .collect();
        for (key, value) in gone {
            // It weighs what it weighed.
            self.keep_heavier(group, &key, &[value.replaced()]);
        }
    }

    /// Decides for each of `OBJECTS` whether it is an object, and drops what the cut implies.
    fn settle(&mut self) {
        for (at, name) in OBJECTS.iter().enumerate() {
            let floor = self.floor(at);
            let object = &mut self.objects[at];
            object.floor = floor;
            if object.source < floor {
                object.source = UNSET;
            }
            let is_object = object.source != UNSET;
            if let Some(cut) = &self.truncated_at {
                if object.source < cut.source {
                    object.source = UNSET;
                }
                if object.floor <= cut.source {
                    object.floor = UNSET;
                }
            }
            if is_object && let Some(value) = self.values[0].remove(*name) {
                self.keep_heavier(0, name, &[value.replaced()]);
            }
        }
    }

    fn is_truncated(&self, group: usize, key: &str, source: i64, weight: u64) -> bool {
        let cut = self.truncated_at.as_ref();
        cut.is_some_and(|cut| order(source, weight, group, key) <= cut.order())
    }

    fn raise_truncation(&mut self, cut: Option<ValueRank>) {
        let Some(cut) = cut else { return };
        if self
            .truncated_at
            .as_ref()
            .is_some_and(|known| known.order() >= cut.order())
        {
            return;
        }
        let place = cut.order();
        for group in 0..GROUPS {
            self.values[group].retain(|key, value| order(value.source, value.weight, group, key) > place);
            self.older[group].retain(|key, older| {
                older.retain(|value| order(value.source, value.weight, group, key) > place);
                !older.is_empty()
            });
        }
        self.truncated_at = Some(cut);
        self.settle();
        self.weigh();
    }

    /// Leaves out what exceeds the limit.
    fn bound(&mut self, limit: u64) {
        if self.weight <= limit {
            return;
        }
        let mut steps: Vec<(Order<'_>, u64)> = Vec::new();
        for group in 0..GROUPS {
            for (key, value) in &self.values[group] {
                steps.push((order(value.source, value.weight, group, key), value.weight));
            }
            for (key, older) in &self.older[group] {
                let mut reach = self.values[group].get(key).map_or(0, |value| value.weight);
                for value in older {
                    steps.push((order(value.source, value.weight, group, key), value.weight - reach));
                    reach = value.weight;
                }
            }
        }
        steps.sort_unstable_by_key(|(place, _)| Reverse(*place));
        let mut sum = 0;
        let cut = steps
            .into_iter()
            .find_map(|((source, Reverse(weight), Reverse((group, key))), more)| {
                sum += more;
                (sum > limit).then(|| ValueRank {
                    source,
                    weight,
                    group,
                    key: key.to_owned(),
                })
            });
        self.raise_truncation(cut);
    }

    fn weigh(&mut self) {
        self.weight = 0;
        for group in 0..GROUPS {
            let values = self.values[group].iter();
            let shown: u64 = values
                .filter(|(key, _)| !self.older[group].contains_key(*key))
                .map(|(_, value)| value.weight)
                .sum();
            let older = self.older[group].values().filter_map(|older| older.last());
            self.weight += shown + older.map(|value| value.weight).sum::<u64>();
        }
    }

    /// The text of one of `OBJECTS`.
    fn object(&self, at: usize) -> String {
        let inner = self.values[at + 1].iter();
        compose_pairs(inner.map(|(key, value)| (key.as_str(), value.text.as_str())))
    }

    fn len(&self) -> usize {
        let values: usize = self.values.iter().map(BTreeMap::len).sum();
        values + self.older.iter().map(BTreeMap::len).sum::<usize>()
    }
}

impl Value {
    const fn replaced(&self) -> ReplacedValue {
        ReplacedValue {
            source: self.source,
            weight: self.weight,
        }
    }
}

#[cfg(test)]
mod tests;
