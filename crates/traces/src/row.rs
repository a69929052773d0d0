//! A merged trace run, and the merge rule of operations.
//!
//! A row is a function of the *set* of operations on its id. [`Row::merge`] is commutative, associative and idempotent,
//! so operations may be flushed in any order and grouping, with stored partial rows in between.
//!
//! The rule: the post with the lowest sequence counts; other posts are ignored. A patch overrides the post field by
//! field; among patches that set a field, the last accepted one wins. `extra` follows the same rule key by key, and so
//! do `metadata` and `runtime` in it ([`extra`]). To that end a row stores the source of each field's value
//! ([`Provenance`]).
//!
//! A client that repeats a body (it lost the answer) changes nothing: its posts come second, and its patches set the
//! same values. Only if *another* patch of the same field was accepted in between does the repetition win, since it
//! cannot be told from a client that changes its mind.

/// Calls a macro with `(position in the provenance, field)` for every field but `extra`. Positions are stored in
/// segments: append, never reorder.
macro_rules! for_each_field {
    ($do:ident) => {
        $do!(0, trace_id);
        $do!(1, parent_run_id);
        $do!(2, dotted_order);
        $do!(3, reference_example_id);
        $do!(4, name);
        $do!(5, run_type);
        $do!(6, start_time);
        $do!(7, end_time);
        $do!(8, status);
        $do!(9, error);
        $do!(10, tags);
        $do!(11, inputs);
        $do!(12, outputs);
        $do!(13, events);
        $do!(14, serialized);
    };
}

mod decode;
mod encode;
mod extra;
mod provenance;

use std::borrow::Cow;

use chrono::NaiveDate;
use serde::{Deserialize, Serialize};
use towpath_domain::{Timestamp, TraceRunId};

pub use decode::RowReader;
pub(crate) use decode::{keys, patched, seqs, starts};
pub use encode::RowsBuilder;
pub(crate) use encode::repriced;
use extra::Extra;
use provenance::{EXTRA, POST, Provenance, UNSET};

use crate::operation::{Fields, Operation, Verb};

/// The sort key of a row: start, then the bytes of its id, which is also the order of the id's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key {
    /// See [`Operation::sort_time`].
    pub sort_time: Timestamp,
    pub id: TraceRunId,
}

/// A trace run from all of its operations, or some of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    id: TraceRunId,
    sort_time: Option<Timestamp>,
    /// But for `extra`.
    fields: Fields,
    extra: Option<Extra>,
    provenance: Provenance,
}

impl Row {
    /// What one operation says, accepted as number `seq`.
    #[must_use]
    pub fn from_operation(operation: Operation, seq: i64) -> Self {
        let sort_time = operation.sort_time();
        let Operation {
            verb, id, mut fields, ..
        } = operation;
        let source = match verb {
            Verb::Post => POST,
            Verb::Patch => seq,
        };
        let mut provenance = Provenance::of(verb, seq);
        macro_rules! set {
            ($at:literal, $field:ident) => {
                if fields.$field.is_some() {
                    provenance.sources[$at] = source;
                }
            };
        }
        for_each_field!(set);
        let extra = fields.extra.take().map(|keys| Extra::sent(source, keys));
        if extra.is_some() {
            provenance.sources[EXTRA] = source;
        }
        Self {
            id,
            sort_time,
            fields,
            extra,
            provenance,
        }
    }

    /// Merges both rows, which must have the same id.
    #[must_use]
    pub fn merge(mut self, mut other: Self) -> Self {
        debug_assert_eq!(self.id, other.id, "rows of two trace runs");
        match (self.provenance.post, other.provenance.post) {
            (Some(mine), Some(theirs)) if mine < theirs => other.drop_post(),
            (Some(mine), Some(theirs)) if theirs < mine => self.drop_post(),
            _ => {}
        }
        let (mine, theirs) = (&mut self.provenance, &other.provenance);
        macro_rules! take_newer {
            ($at:literal, $field:ident) => {
                if theirs.sources[$at] > mine.sources[$at] {
                    mine.sources[$at] = theirs.sources[$at];
                    self.fields.$field = other.fields.$field;
                }
            };
        }
        for_each_field!(take_newer);
        mine.sources[EXTRA] = mine.sources[EXTRA].max(theirs.sources[EXTRA]);
        self.extra = Extra::merge(self.extra, other.extra);
        mine.post = mine.post.or(theirs.post);
        mine.patched |= theirs.patched;
        mine.oldest = mine.oldest.min(theirs.oldest);
        mine.newest = mine.newest.max(theirs.newest);
        self.sort_time = match (self.sort_time, other.sort_time) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        self
    }

    /// Forgets what a post said that turned out not to be the first.
    fn drop_post(&mut self) {
        let provenance = &mut self.provenance;
        macro_rules! forget {
            ($at:literal, $field:ident) => {
                if provenance.sources[$at] == POST {
                    provenance.sources[$at] = UNSET;
                    self.fields.$field = None;
                }
            };
        }
        for_each_field!(forget);
        if provenance.sources[EXTRA] == POST {
            provenance.sources[EXTRA] = UNSET;
            self.extra = None;
        } else if let Some(extra) = &mut self.extra {
            extra.drop_post();
        }
        // The caller uses the other row's post, which is the earlier one.
        provenance.post = None;
    }

    /// Sets the location of its trace run, regardless of the operation's own values.
    pub const fn location(&mut self, sort_time: Timestamp) {
        self.sort_time = Some(sort_time);
    }

    /// The trace run.
    #[must_use]
    pub const fn id(&self) -> TraceRunId {
        self.id
    }

    /// The merged fields as sent, without derived ones and `extra`: see [`Row::extra`].
    #[must_use]
    pub const fn fields(&self) -> &Fields {
        &self.fields
    }

    /// `extra` by top-level key in order, each with its JSON text.
    #[must_use]
    pub fn extra(&self) -> Option<Cow<'_, [(String, String)]>> {
        self.extra.as_ref().map(Extra::keys)
    }

    /// The JSON text under a key of `extra`.
    #[must_use]
    pub fn extra_value(&self, key: &str) -> Option<Cow<'_, str>> {
        self.extra.as_ref()?.get(key)
    }

    /// Where the row is, `None` while no one knows.
    #[must_use]
    pub fn key(&self) -> Option<Key> {
        self.sort_time.map(|sort_time| Key { sort_time, id: self.id })
    }

    /// The UTC day it belongs to, `None` while no one knows.
    #[must_use]
    pub fn day(&self) -> Option<NaiveDate> {
        self.sort_time.map(Timestamp::day)
    }

    /// Whether the post is among its operations.
    #[must_use]
    pub const fn has_post(&self) -> bool {
        self.provenance.post.is_some()
    }

    /// Whether a patch is among its operations.
    #[must_use]
    pub const fn has_patch(&self) -> bool {
        self.provenance.patched
    }

    /// Whether the row came without its post, which is in another segment or still to come.
    #[must_use]
    pub const fn is_late(&self) -> bool {
        self.provenance.post.is_none()
    }

    /// Lowest and highest sequence of its operations.
    #[must_use]
    pub const fn seqs(&self) -> (i64, i64) {
        (self.provenance.oldest, self.provenance.newest)
    }

    /// About how many bytes it holds; to bound what is in memory.
    #[must_use]
    pub fn weight(&self) -> usize {
        let extra = self.extra.as_ref().map_or(0, Extra::bytes);
        self.fields.weight() + extra + size_of::<Self>()
    }
}
