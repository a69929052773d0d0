//! Where the values of `extra` came from, as a segment keeps it in the provenance of a row, beside the text itself.
//!
//! Sources are 0 for the post, else how far they are before the highest sequence of the row, plus 1; integers are
//! LEB128:
//!
//! ```text
//! int       0 = all of it comes from the post, 1 = all of it comes from one patch, 2 = from several operations
//! [source   of the patch]                                         with 1
//! with 2:
//! int       keys of the top level; of each:
//!             int 0 = a value as a whole, 1 = an object that is merged by its keys;  source of it
//!             with 1:  int 0, or 1 and the source below which its keys do not count
//!                      int 0 = all of its keys are of the object's source, else their count and the source of each
//! int       keys of which heavier values were replaced; of each:
//!             int group;  int length, bytes of the key;  int count of values; of each:  source, int weight
//! int       0, or 1 and what was left out:  source, int weight, int group, int length, bytes of the key
//! ```
//!
//! In version 1 there were no objects that merge by their keys: `int 0 = every key comes from the post, else their
//! count; of each: source`. Keys inside an object take the source of it then.

use super::merged::{GROUPS, MergedExtra, Object, ReplacedValue, Value, ValueRank};
use super::{Extra, Keys, LIMIT, OBJECTS, TRUNCATED, normalise, parse};
use crate::row::provenance::{POST, UNSET, get, put};

/// Where the values came from.
#[derive(Debug, PartialEq)]
pub enum Sources {
    /// All of them from one operation.
    One(i64),
    /// From several, by key of the top level: version 1.
    Keys(Vec<i64>),
    /// From several.
    Multiple(MultipleSources),
}

#[derive(Debug, Default, PartialEq)]
pub struct MultipleSources {
    keys: Vec<Key>,
    older: Vec<(usize, String, Vec<ReplacedValue>)>,
    cut: Option<ValueRank>,
}

#[derive(Debug, PartialEq)]
enum Key {
    Whole(i64),
    Object(Object, Option<Vec<i64>>),
}

impl Extra {
    /// The format read by [`Sources::read`]. `newest` is the highest sequence of the row.
    pub fn write(&self, out: &mut Vec<u8>, newest: i64) {
        let merged = match self {
            Self::Sent(_) => return write_one(out, newest, POST),
            Self::Merged(merged) => merged.bounded(LIMIT),
        };
        match merged.only_source() {
            Some(source) => write_one(out, newest, source),
            None => merged.write(out, newest),
        }
    }

    /// Restores it from the keys of the stored text. `newest` is the newest operation that set something. `None` if
    /// keys and sources do not match.
    pub fn restore(keys: Keys, sources: Sources, newest: i64) -> Option<Self> {
        if newest == POST {
            return Some(Self::Sent(keys));
        }
        let merged = match sources {
            Sources::One(source) => MergedExtra::of(source, keys),
            Sources::Keys(sources) if sources.len() != keys.len() => return None,
            Sources::Keys(sources) => {
                let mut merged = MergedExtra::default();
                for ((key, text), source) in keys.into_iter().zip(sources) {
                    merged.add(source, key, text);
                }
                merged
            }
            Sources::Multiple(sources) => sources.restore(keys)?,
        };
        Some(Self::Merged(Box::new(merged)))
    }
}

impl MergedExtra {
    pub(super) fn write(&self, out: &mut Vec<u8>, newest: i64) {
        put(out, 2);
        let source = |out: &mut Vec<u8>, source: i64| put(out, code(newest, source));
        let keys = self.names();
        put(out, keys.len() as u64);
        for key in keys {
            let at = OBJECTS.iter().position(|object| *object == key);
            let at = at.filter(|at| self.objects[*at].source != UNSET);
            let Some(at) = at else {
                put(out, 0);
                source(out, self.values[0].get(key).map_or(POST, |value| value.source));
                continue;
            };
            let object = self.objects[at];
            put(out, 1);
            source(out, object.source);
            if object.floor == UNSET {
                put(out, 0);
            } else {
                put(out, 1);
                source(out, object.floor);
            }
            let inner = &self.values[at + 1];
            if inner.values().all(|value| value.source == object.source) {
                put(out, 0);
            } else {
                put(out, inner.len() as u64);
                inner.values().for_each(|value| source(out, value.source));
            }
        }
        put(out, self.older.iter().map(|older| older.len() as u64).sum());
        for (group, older) in self.older.iter().enumerate() {
            for (key, values) in older {
                put(out, group as u64);
                put_text(out, key);
                put(out, values.len() as u64);
                for value in values {
                    source(out, value.source);
                    put(out, value.weight);
                }
            }
        }
        let Some(cut) = &self.truncated_at else {
            return put(out, 0);
        };
        put(out, 1);
        source(out, cut.source);
        put(out, cut.weight);
        put(out, cut.group as u64);
        put_text(out, &cut.key);
    }
}

impl Sources {
    /// Reads the format of [`Extra::write`] or of version 1. `None` if it is invalid.
    pub fn read(from: &mut &[u8], newest: i64, version: u8) -> Option<Self> {
        let source = |from: &mut &[u8]| match get(from)? {
            0 => Some(POST),
            back => newest
                .checked_sub(i64::try_from(back - 1).ok()?)
                .filter(|seq| *seq >= 0),
        };
        let kind = get(from)?;
        if kind == 0 {
            return Some(Self::One(POST));
        }
        if version == 1 {
            return Some(Self::Keys(
                (0..count(from, kind)?).map(|_| source(from)).collect::<Option<_>>()?,
            ));
        }
        if kind == 1 {
            return source(from).map(Self::One);
        }
        if kind != 2 {
            return None;
        }
        let mut several = MultipleSources::default();
        let keys = get(from)?;
        for _ in 0..count(from, keys)? {
            several.keys.push(match get(from)? {
                0 => Key::Whole(source(from)?),
                1 => {
                    let own = source(from)?;
                    let floor = match get(from)? {
                        0 => UNSET,
                        1 => source(from)?,
                        _ => return None,
                    };
                    let inner = match get(from)? {
                        0 => None,
                        keys => Some((0..count(from, keys)?).map(|_| source(from)).collect::<Option<_>>()?),
                    };
                    Key::Object(Object { source: own, floor }, inner)
                }
                _ => return None,
            });
        }
        let older = get(from)?;
        for _ in 0..count(from, older)? {
            let (group, key) = (get_group(from)?, get_text(from)?);
            let values = get(from)?;
            let values = (0..count(from, values)?).map(|_| {
                Some(ReplacedValue {
                    source: source(from)?,
                    weight: get(from)?,
                })
            });
            several.older.push((group, key, values.collect::<Option<_>>()?));
        }
        several.cut = match get(from)? {
            0 => None,
            1 => Some(ValueRank {
                source: source(from)?,
                weight: get(from)?,
                group: get_group(from)?,
                key: get_text(from)?,
            }),
            _ => return None,
        };
        Some(Self::Multiple(several))
    }
}

#[cfg(test)]
impl Sources {
    /// Of keys of several operations.
    pub fn restore_several(self, keys: Keys) -> Option<MergedExtra> {
        match self {
            Self::Multiple(several) => several.restore(keys),
            Self::One(_) | Self::Keys(_) => None,
        }
    }
}

impl MultipleSources {
    fn restore(self, mut keys: Keys) -> Option<MergedExtra> {
        if self.cut.is_some() {
            keys.retain(|(key, _)| key != TRUNCATED);
        }
        if keys.len() != self.keys.len() {
            return None;
        }
        let mut merged = MergedExtra::default();
        for ((name, text), key) in keys.into_iter().zip(self.keys) {
            match key {
                Key::Whole(source) => {
                    let value = Value::new(source, &name, text);
                    merged.put(0, name, value);
                }
                Key::Object(object, sources) => {
                    let at = OBJECTS.iter().position(|object| *object == name)?;
                    let mut inner = parse(&text).ok()?;
                    normalise(&mut inner);
                    let sources = sources.unwrap_or_else(|| vec![object.source; inner.len()]);
                    if sources.len() != inner.len() {
                        return None;
                    }
                    merged.objects[at] = object;
                    for ((name, text), source) in inner.into_iter().zip(sources) {
                        let value = Value::new(source, &name, text);
                        merged.put(at + 1, name, value);
                    }
                }
            }
        }
        for (group, key, values) in self.older {
            merged.older[group].insert(key, values);
        }
        merged.truncated_at = self.cut;
        Some(merged.restored())
    }
}

fn write_one(out: &mut Vec<u8>, newest: i64, source: i64) {
    if source == POST {
        put(out, 0);
    } else {
        put(out, 1);
        put(out, code(newest, source));
    }
}

const fn code(newest: i64, source: i64) -> u64 {
    if source == POST { 0 } else { newest.abs_diff(source) + 1 }
}

/// A count of items of at least one byte each, checked so that nothing is reserved for missing data.
fn count(from: &[u8], stored: u64) -> Option<usize> {
    usize::try_from(stored).ok().filter(|count| *count <= from.len())
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

fn get_text(from: &mut &[u8]) -> Option<String> {
    let length = usize::try_from(get(from)?).ok()?;
    let (text, rest) = from.split_at_checked(length)?;
    *from = rest;
    String::from_utf8(text.to_vec()).ok()
}

fn get_group(from: &mut &[u8]) -> Option<usize> {
    usize::try_from(get(from)?).ok().filter(|group| *group < GROUPS)
}
