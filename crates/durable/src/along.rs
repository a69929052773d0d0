//! What is written in a transaction of the engine, together with what others leave for it: with the ends of jobs
//! ([`Ctx::done_along`](crate::Ctx::done_along)), or with the turn of a claimer
//! ([`Engine::record_with_turn`](crate::Engine::record_with_turn)).

use std::any::{Any, TypeId};
use std::fmt::Debug;
use std::sync::Arc;

use futures::future::BoxFuture;
use towpath_store::{self as store, Tx};

/// Business rows that are written in a transaction of the engine: one statement for those of many jobs.
///
/// Those of an end are written only if the job ended well. A job that was asked to stop before that ends by its
/// workflow's [`end`](crate::Workflow::end) instead.
pub trait Along: Any + Debug + Send + Sync {
    /// Writes `all`, which are of this type: see [`each`].
    ///
    /// # Errors
    /// As every statement. All of them are written anew then, each by itself.
    fn write<'a, 'c: 'a>(&'a self, tx: &'a mut Tx<'c>, all: &'a [Arc<dyn Along>]) -> BoxFuture<'a, store::Result<()>>;
}

/// Those of type `T`.
pub fn each<T: Along>(all: &[Arc<dyn Along>]) -> impl Iterator<Item = &T> {
    all.iter().filter_map(|one| {
        let one: &dyn Any = &**one;
        one.downcast_ref()
    })
}

/// Writes them, those of one type together.
///
/// # Errors
/// As every statement.
pub async fn write(tx: &mut Tx<'_>, mut all: Vec<Arc<dyn Along>>) -> store::Result<()> {
    while let Some(first) = all.first().cloned() {
        let (same, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|one| type_of(one) == type_of(&first));
        first.write(tx, &same).await?;
        all = others;
    }
    Ok(())
}

fn type_of(one: &Arc<dyn Along>) -> TypeId {
    let one: &dyn Any = &**one;
    one.type_id()
}
