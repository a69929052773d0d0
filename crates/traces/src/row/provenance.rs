//! Where the values of a row came from.
//!
//! As stored in a segment, beside the column of the row's highest sequence (`newest`); integers are LEB128:
//!
//! ```text
//! u8        version, 2 (high half), and flags: 1 = has its post, 2 = has a patch
//! int       newest - oldest
//! [int      newest - sequence of the post]                        with flag 1
//! int       fields that come from the post, as bits
//! int       fields that come from patches, as bits; of each:  int newest - sequence of the patch
//! …         where the keys of `extra` come from: see `extra/stored.rs`
//! int       fields whose column holds a derived value instead, as bits; of each:  int length, bytes as sent
//! ```
//!
//! Version 1, which is still read, differs in what it says of `extra`.

use super::extra::{Extra, Sources};
use crate::operation::Verb;
use crate::schema::position;

/// Fields including `extra`.
pub const FIELDS: usize = 16;
/// Position of `extra` as a whole.
pub const EXTRA: usize = 15;
/// The column of a segment in which each field is.
pub const COLUMNS: [usize; FIELDS] = [
    position::TRACE_ID,
    position::PARENT_RUN_ID,
    position::DOTTED_ORDER,
    position::REFERENCE_EXAMPLE_ID,
    position::NAME,
    position::RUN_TYPE,
    position::START_TIME,
    position::END_TIME,
    position::STATUS,
    position::ERROR,
    position::TAGS,
    position::INPUTS,
    position::OUTPUTS,
    position::EVENTS,
    position::SERIALIZED,
    position::EXTRA,
];
/// Source of an unset field. Smaller than every other source: the higher source wins.
pub const UNSET: i64 = -2;
/// Source of a field set by the post. Patches use their sequence, which is never negative.
pub const POST: i64 = -1;

const VERSION: u8 = 2;
/// The first one.
const OLDEST_VERSION: u8 = 1;
const HAS_POST: u8 = 1;
const HAS_PATCH: u8 = 2;

/// Where the values of a row came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provenance {
    /// Sequence of the post that counts.
    pub post: Option<i64>,
    /// Whether a patch is among the operations.
    pub patched: bool,
    /// Lowest sequence.
    pub oldest: i64,
    /// Highest sequence.
    pub newest: i64,
    /// Per field: `UNSET`, `POST`, or the sequence of the patch.
    pub sources: [i64; FIELDS],
}

/// Sent values of columns that hold derived ones: position and bytes.
pub type Overrides = Vec<(usize, Vec<u8>)>;

impl Provenance {
    /// Of one operation that has set nothing yet.
    pub fn of(verb: Verb, seq: i64) -> Self {
        Self {
            post: (verb == Verb::Post).then_some(seq),
            patched: verb == Verb::Patch,
            oldest: seq,
            newest: seq,
            sources: [UNSET; FIELDS],
        }
    }

    /// Whether anyone set this field.
    pub const fn is_set(&self, at: usize) -> bool {
        self.sources[at] != UNSET
    }

    /// As stored. `extra` knows itself where its keys come from.
    pub fn encode(&self, extra: Option<&Extra>, overrides: &Overrides) -> Vec<u8> {
        let mut out = Vec::with_capacity(16);
        let flags = if self.post.is_some() { HAS_POST } else { 0 } | if self.patched { HAS_PATCH } else { 0 };
        out.push(VERSION << 4 | flags);
        put(&mut out, self.back(self.oldest));
        if let Some(post) = self.post {
            put(&mut out, self.back(post));
        }
        let bits = |from: fn(i64) -> bool| {
            (0..FIELDS)
                .filter(|at| from(self.sources[*at]))
                .fold(0_u64, |bits, at| bits | 1 << at)
        };
        put(&mut out, bits(|source| source == POST));
        put(&mut out, bits(|source| source >= 0));
        for source in self.sources.iter().filter(|source| **source >= 0) {
            put(&mut out, self.back(*source));
        }
        match extra {
            Some(extra) => extra.write(&mut out, self.newest),
            None => put(&mut out, 0),
        }
        put(&mut out, overrides.iter().fold(0, |bits, (at, _)| bits | 1 << at));
        for (_, bytes) in overrides {
            put(&mut out, bytes.len() as u64);
            out.extend_from_slice(bytes);
        }
        out
    }

    /// The lowest sequence alone.
    pub fn oldest_of(bytes: &[u8], newest: i64) -> Option<i64> {
        let (_, mut rest) = bytes.split_first().filter(|(head, _)| version(**head).is_some())?;
        newest
            .checked_sub(i64::try_from(get(&mut rest)?).ok()?)
            .filter(|seq| *seq >= 0)
    }

    /// Reads the format of [`Provenance::encode`]. `None` if it is invalid.
    pub fn decode(bytes: &[u8], newest: i64) -> Option<(Self, Sources, Overrides)> {
        let (head, mut rest) = bytes.split_first()?;
        let version = version(*head)?;
        let from = &mut rest;
        let before = |back: u64| newest.checked_sub(i64::try_from(back).ok()?).filter(|seq| *seq >= 0);
        let oldest = before(get(from)?)?;
        let post = if head & HAS_POST == 0 {
            None
        } else {
            Some(before(get(from)?)?)
        };
        let (from_post, from_patch) = (get(from)?, get(from)?);
        let mut sources = [UNSET; FIELDS];
        for (at, source) in sources.iter_mut().enumerate() {
            if from_patch >> at & 1 == 1 {
                *source = before(get(from)?)?;
            } else if from_post >> at & 1 == 1 {
                *source = POST;
            }
        }
        let extra = Sources::read(from, newest, version)?;
        let overridden = get(from)?;
        let mut overrides = Overrides::new();
        for at in (0..FIELDS).filter(|at| overridden >> at & 1 == 1) {
            let length = usize::try_from(get(from)?).ok()?;
            let (value, left) = from.split_at_checked(length)?;
            overrides.push((at, value.to_vec()));
            *from = left;
        }
        let patched = head & HAS_PATCH != 0;
        from.is_empty().then_some((
            Self {
                post,
                patched,
                oldest,
                newest,
                sources,
            },
            extra,
            overrides,
        ))
    }

    /// Distance back from the newest sequence.
    const fn back(&self, seq: i64) -> u64 {
        self.newest.abs_diff(seq)
    }
}

fn version(head: u8) -> Option<u8> {
    Some(head >> 4).filter(|version| (OLDEST_VERSION..=VERSION).contains(version))
}

pub fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub fn get(from: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = from.split_first()?;
        *from = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_of_any_size() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX] {
            let mut bytes = Vec::new();
            put(&mut bytes, value);
            assert_eq!(get(&mut bytes.as_slice()), Some(value));
        }
        assert_eq!(get(&mut [0x80].as_slice()), None);
    }

    #[test]
    fn a_cut_or_long_text_is_refused() {
        let provenance = Provenance {
            patched: true,
            ..Provenance::of(Verb::Post, 1 << 40)
        };
        let bytes = provenance.encode(None, &vec![(8, b"interrupted".to_vec())]);
        assert_eq!(
            Provenance::decode(&bytes, 1 << 40),
            Some((provenance, Sources::One(POST), vec![(8, b"interrupted".to_vec())]))
        );
        for cut in 0..bytes.len() {
            assert_eq!(Provenance::decode(&bytes[..cut], 1 << 40), None);
        }
        assert_eq!(Provenance::decode(&[bytes, vec![0]].concat(), 1 << 40), None);
    }
}
