//! How a job settles.

use crate::lane::Lane;

/// What happens if the job was asked to stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OnCancel {
    /// Nothing is written.
    #[default]
    Refuse,
    Ignore,
}

/// The terms on which [`Ctx::settle_as`](crate::Ctx::settle_as) ends a job.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settlement<'a> {
    pub(crate) lanes: &'a [Lane],
    pub(crate) on_cancel: OnCancel,
}

impl<'a> Settlement<'a> {
    /// The closure starts jobs in these lanes: they are locked before the job row.
    #[must_use]
    pub const fn starting_in(lanes: &'a [Lane]) -> Self {
        Self {
            lanes,
            on_cancel: OnCancel::Refuse,
        }
    }

    /// The effect has happened and cannot be undone, so a job that was asked to stop settles too.
    #[must_use]
    pub const fn irrevocable() -> Self {
        Self {
            lanes: &[],
            on_cancel: OnCancel::Ignore,
        }
    }
}
