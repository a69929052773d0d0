//! Business rows that join a transaction of the engine: with the ends of jobs
//! ([`Ctx::complete_with`](crate::Ctx::complete_with)), or with a claim batch
//! ([`Engine::record_with_next_claim`](crate::Engine::record_with_next_claim)).

use std::any::{Any, TypeId};
use std::fmt::Debug;
use std::sync::Arc;

use futures::future::BoxFuture;
use towpath_store::{self as store, Tx};

/// Business rows written in a transaction of the engine, with one statement for those of many jobs.
///
/// Rows of an end are written only if the job succeeded. A job that was asked to stop before that ends by its
/// workflow's [`end`](crate::Workflow::end) instead.
pub trait BatchedWrite: Any + Debug + Send + Sync {
    /// Writes `all`, which are of this type; [`of_type`] selects them. After an error, each is repeated alone.
    fn write<'a, 'c: 'a>(
        &'a self,
        tx: &'a mut Tx<'c>,
        all: &'a [Arc<dyn BatchedWrite>],
    ) -> BoxFuture<'a, store::Result<()>>;
}

/// Selects those of type `T`.
pub fn of_type<T: BatchedWrite>(all: &[Arc<dyn BatchedWrite>]) -> impl Iterator<Item = &T> {
    all.iter().filter_map(|one| {
        let one: &dyn Any = &**one;
        one.downcast_ref()
    })
}

/// Writes them, grouped by type.
pub async fn write_batched(tx: &mut Tx<'_>, mut all: Vec<Arc<dyn BatchedWrite>>) -> store::Result<()> {
    while let Some(first) = all.first().cloned() {
        let (same, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|one| type_of(one) == type_of(&first));
        first.write(tx, &same).await?;
        all = others;
    }
    Ok(())
}

fn type_of(one: &Arc<dyn BatchedWrite>) -> TypeId {
    let one: &dyn Any = &**one;
    one.type_id()
}
