//! What a kind of job is.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use towpath_domain::job::{Ended, RetryPolicy};
use towpath_store::{self as store, Store, Tx};

use crate::ctx::Ctx;
use crate::failure::{Cause, Failure, Outcome};
use crate::lane::Lane;

/// A kind of durable job. The type itself is the job's input and is kept as JSON, so fields may be added with
/// `#[serde(default)]`, and must not be renamed while jobs of the kind are open.
pub trait Workflow: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The name of the kind, for ever.
    const KIND: &'static str;
    /// The pool whose workers perform it.
    const POOL: &'static str;
    /// How often and how soon a failed attempt is repeated.
    const RETRY: RetryPolicy;
    /// How long one attempt may take; longer counts as a failure that is retried.
    const ATTEMPT_LIMIT: Option<Duration> = None;
    /// Keeps its place in its lane while it backs off, so that nobody overtakes it.
    const KEEP_PLACE: bool = false;
    /// What `run` needs beside its input: stores, clients, settings.
    type World: Send + Sync + 'static;

    /// [`Self::RETRY`], unless settings of the process say otherwise.
    fn retry_policy(_world: &Self::World) -> RetryPolicy {
        Self::RETRY
    }

    /// Performs the job, or goes on where an earlier attempt was interrupted.
    fn run(&self, ctx: &mut Ctx, world: &Self::World) -> impl Future<Output = Outcome> + Send;

    /// Settles the business rows when the job ends in any way other than through `ctx.settle`: attempts spent, fatal
    /// failure, deadline, cancel, a dead worker. Runs in the transaction that makes the job final, whoever ends it:
    /// SQL only, and the same when done twice.
    fn end(tx: &mut Tx<'_>, input: &Self, ended: Ended) -> impl Future<Output = store::Result<()>> + Send;

    /// As [`Self::end`] for jobs that end together in the same way. Where many of a kind may, it should take as many statements
    /// for all of them as for one.
    fn end_all(tx: &mut Tx<'_>, inputs: &[Self], ended: &Ended) -> impl Future<Output = store::Result<()>> + Send {
        async move {
            for input in inputs {
                Self::end(tx, input, ended.clone()).await?;
            }
            Ok(())
        }
    }

    /// Notes a failed attempt in the business rows, in the transaction that records it. `n` is that of `retry_n`.
    fn failed(
        _tx: &mut Tx<'_>,
        _input: &Self,
        _n: u32,
        _error: &str,
    ) -> impl Future<Output = store::Result<()>> + Send {
        std::future::ready(Ok(()))
    }

    /// Whether an operator may have this job performed again after it ended badly. Refused unless a kind says
    /// otherwise: `end` has told its business rows how it went, and whoever asked may have acted on that.
    fn again(&self) -> Again {
        Again::Refused("what the job was for has ended with it; ask for it anew")
    }

    /// Takes back in the business rows what `end` wrote there, in the transaction that makes the job ready again.
    /// May refuse with a [`Rejection`](towpath_domain::Rejection). Only asked where `again` allows it.
    fn revive(_tx: &mut Tx<'_>, _input: &Self) -> impl Future<Output = store::Result<()>> + Send {
        std::future::ready(Ok(()))
    }
}

/// Whether a job that ended badly may be performed again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Again {
    /// It may not; the reason, as a sentence for the operator.
    Refused(&'static str),
    /// It may, at the end of this lane: the one it was in, where it was in one.
    Allowed(Option<Lane>),
}

type EndFn = Arc<dyn for<'a> Fn(&'a mut Tx<'_>, &'a str, Ended) -> BoxFuture<'a, store::Result<()>> + Send + Sync>;
type EndAllFn =
    Arc<dyn for<'a> Fn(&'a mut Tx<'_>, &[&str], &'a Ended) -> BoxFuture<'a, store::Result<()>> + Send + Sync>;
type FailedFn =
    Arc<dyn for<'a> Fn(&'a mut Tx<'_>, &'a str, u32, &'a str) -> BoxFuture<'a, store::Result<()>> + Send + Sync>;

type AgainFn = Arc<dyn Fn(&str) -> store::Result<Again> + Send + Sync>;
type ReviveFn = Arc<dyn for<'a> Fn(&'a mut Tx<'_>, &'a str) -> BoxFuture<'a, store::Result<()>> + Send + Sync>;

/// What is known of a kind wherever a job of it may end.
struct KindEnds {
    end: EndFn,
    end_all: EndAllFn,
    failed: FailedFn,
    again: AgainFn,
    revive: ReviveFn,
    pool: &'static str,
}

/// How jobs of each kind end. Attached to the store, so that every transaction that ends a job finds it, whether it
/// is a worker's, the scheduler's or a request's.
#[derive(Default)]
pub struct Ends(HashMap<&'static str, KindEnds>);

impl Ends {
    pub(crate) async fn end(&self, tx: &mut Tx<'_>, job: &store::jobs::Job, ended: Ended) -> store::Result<()> {
        (self.of(job)?.end)(tx, &job.input, ended).await
    }

    /// Ends jobs that end together, kind by kind.
    pub(crate) async fn end_all(&self, tx: &mut Tx<'_>, jobs: &[store::jobs::Job], ended: &Ended) -> store::Result<()> {
        let mut kinds: Vec<(&KindEnds, &str, Vec<&str>)> = Vec::new();
        for job in jobs {
            match kinds.iter_mut().find(|(_, kind, _)| *kind == job.kind) {
                Some((_, _, inputs)) => inputs.push(&job.input),
                None => kinds.push((self.of(job)?, &job.kind, vec![&job.input])),
            }
        }
        for (ends, _, inputs) in kinds {
            (ends.end_all)(tx, &inputs, ended).await?;
        }
        Ok(())
    }

    pub(crate) async fn failed(
        &self,
        tx: &mut Tx<'_>,
        job: &store::jobs::Job,
        n: u32,
        error: &str,
    ) -> store::Result<()> {
        (self.of(job)?.failed)(tx, &job.input, n, error).await
    }

    pub(crate) fn again(&self, job: &store::jobs::Job) -> store::Result<Again> {
        (self.of(job)?.again)(&job.input)
    }

    pub(crate) async fn revive(&self, tx: &mut Tx<'_>, job: &store::jobs::Job) -> store::Result<()> {
        (self.of(job)?.revive)(tx, &job.input).await
    }

    pub(crate) fn has_pool(&self, pool: &str) -> bool {
        self.0.values().any(|kind| kind.pool == pool)
    }

    pub(crate) fn knows(&self, kind: &str) -> bool {
        self.0.contains_key(kind)
    }

    /// A job whose kind this process does not know is left alone: a newer version knows how to end it.
    fn of(&self, job: &store::jobs::Job) -> store::Result<&KindEnds> {
        self.0
            .get(job.kind.as_str())
            .ok_or_else(|| store::Error::corrupt("job", "kind", job.id))
    }
}

pub(crate) trait Runner<World>: Send + Sync {
    fn run<'a>(&'a self, ctx: &'a mut Ctx, input: &'a str, world: &'a World) -> BoxFuture<'a, Outcome>;
    fn retry_policy(&self, world: &World) -> RetryPolicy;
    fn attempt_limit(&self) -> Option<Duration>;
    fn pool(&self) -> &'static str;
}

struct RunnerOf<W>(std::marker::PhantomData<fn() -> W>);

impl<W: Workflow> Runner<W::World> for RunnerOf<W> {
    fn run<'a>(&'a self, ctx: &'a mut Ctx, input: &'a str, world: &'a W::World) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let workflow: W = serde_json::from_str(input)
                .map_err(|error| Failure::Fatal(Cause::new(format!("the job's input cannot be read: {error}"))))?;
            workflow.run(ctx, world).await
        })
    }

    fn retry_policy(&self, world: &W::World) -> RetryPolicy {
        W::retry_policy(world)
    }

    fn attempt_limit(&self) -> Option<Duration> {
        W::ATTEMPT_LIMIT
    }

    fn pool(&self) -> &'static str {
        W::POOL
    }
}

/// The kinds of job this process knows, by name.
pub struct Registry<World> {
    runners: HashMap<&'static str, Arc<dyn Runner<World>>>,
    ends: Ends,
}

impl<World: Send + Sync + 'static> Default for Registry<World> {
    fn default() -> Self {
        Self {
            runners: HashMap::new(),
            ends: Ends::default(),
        }
    }
}

impl<World: Send + Sync + 'static> Registry<World> {
    /// Adds a kind.
    #[must_use]
    pub fn with<W: Workflow<World = World>>(mut self) -> Self {
        self.runners
            .insert(W::KIND, Arc::new(RunnerOf::<W>(std::marker::PhantomData)));
        let end: EndFn = Arc::new(|tx, input, ended| {
            // Parsed before the future: it borrows nothing but the transaction then.
            let input: Result<W, _> = serde_json::from_str(input);
            let tx = reborrow(tx);
            Box::pin(async move {
                let input = input.map_err(|_| store::Error::corrupt("job", "input", W::KIND))?;
                W::end(tx, &input, ended).await
            })
        });
        let end_all: EndAllFn = Arc::new(|tx, inputs, ended| {
            let inputs: Result<Vec<W>, _> = inputs.iter().map(|input| serde_json::from_str(input)).collect();
            let tx = reborrow(tx);
            Box::pin(async move {
                let inputs = inputs.map_err(|_| store::Error::corrupt("job", "input", W::KIND))?;
                W::end_all(tx, &inputs, ended).await
            })
        });
        let failed: FailedFn = Arc::new(|tx, input, n, error| {
            let input: Result<W, _> = serde_json::from_str(input);
            let tx = reborrow(tx);
            Box::pin(async move {
                let input = input.map_err(|_| store::Error::corrupt("job", "input", W::KIND))?;
                W::failed(tx, &input, n, error).await
            })
        });
        let again: AgainFn = Arc::new(|input| {
            let input: W = serde_json::from_str(input).map_err(|_| store::Error::corrupt("job", "input", W::KIND))?;
            Ok(input.again())
        });
        let revive: ReviveFn = Arc::new(|tx, input| {
            let input: Result<W, _> = serde_json::from_str(input);
            let tx = reborrow(tx);
            Box::pin(async move {
                let input = input.map_err(|_| store::Error::corrupt("job", "input", W::KIND))?;
                W::revive(tx, &input).await
            })
        });
        let ends = KindEnds {
            end,
            end_all,
            failed,
            again,
            revive,
            pool: W::POOL,
        };
        self.ends.0.insert(W::KIND, ends);
        self
    }

    /// Attaches the ends to the store. Once per store, before anything is started.
    pub fn attach(&mut self, store: &Store) {
        store.attach(Arc::new(std::mem::take(&mut self.ends)));
    }

    /// The pools of the known kinds, each once, sorted.
    #[must_use]
    pub fn pools(&self) -> Vec<&'static str> {
        let mut pools: Vec<_> = self.runners.values().map(|runner| runner.pool()).collect();
        pools.sort_unstable();
        pools.dedup();
        pools
    }

    pub(crate) fn runner(&self, kind: &str) -> Option<Arc<dyn Runner<World>>> {
        self.runners.get(kind).cloned()
    }
}

fn reborrow<'a, 'c>(tx: &'a mut Tx<'c>) -> &'a mut Tx<'c> {
    tx
}
