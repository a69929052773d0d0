//! Kinds of jobs.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use towpath_domain::job::{EndReason, RetryPolicy};
use towpath_store::{self as store, Store, Tx};

use crate::ctx::Ctx;
use crate::failure::{Cause, Failure, Outcome};
use crate::lane::Lane;

/// A kind of durable job. The type is the job's input, stored as JSON: fields may be added with `#[serde(default)]` and
/// must not be renamed while jobs of the kind are open.
pub trait Workflow: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// Name of the kind; it never changes.
    const KIND: &'static str;
    const POOL: &'static str;
    /// How often and how soon a failed attempt is retried.
    const RETRY: RetryPolicy;
    /// Time limit of one attempt; exceeding it is a failure that is retried.
    const ATTEMPT_LIMIT: Option<Duration> = None;
    /// Whether the job keeps its lane slot while it backs off, so that no other job overtakes it.
    const KEEP_PLACE: bool = false;
    /// Dependencies of `run`: stores, clients and settings.
    type World: Send + Sync + 'static;

    /// [`Self::RETRY`], unless settings of the process override it.
    fn retry_policy(_world: &Self::World) -> RetryPolicy {
        Self::RETRY
    }

    /// Performs the job, or continues where an earlier attempt was interrupted.
    fn run(&self, ctx: &mut Ctx, world: &Self::World) -> impl Future<Output = Outcome> + Send;

    /// Settles the business rows if the job ends in any way other than `ctx.settle`: attempts spent, fatal failure,
    /// deadline, cancel or dead worker. Runs in the transaction that makes the job final, in any process: SQL only, and
    /// idempotent.
    fn end(tx: &mut Tx<'_>, input: &Self, ended: EndReason) -> impl Future<Output = store::Result<()>> + Send;

    /// Like [`Self::end`] for jobs that end together in the same way. Kinds with many such jobs should use a constant
    /// number of statements.
    fn end_all(tx: &mut Tx<'_>, inputs: &[Self], ended: &EndReason) -> impl Future<Output = store::Result<()>> + Send {
        async move {
            for input in inputs {
                Self::end(tx, input, ended.clone()).await?;
            }
            Ok(())
        }
    }

    /// Records a failed attempt in the business rows, in the same transaction. `n` is that of `retry_n`.
    fn attempt_failed(
        _tx: &mut Tx<'_>,
        _input: &Self,
        _n: u32,
        _error: &str,
    ) -> impl Future<Output = store::Result<()>> + Send {
        std::future::ready(Ok(()))
    }

    /// Whether an operator may retry a failed job. Refused by default: `end` has settled its business rows, and clients
    /// may have acted on that.
    fn retry_decision(&self) -> RetryDecision {
        RetryDecision::Refused("its result is final; start it again with a new request")
    }

    /// Reverts what `end` wrote to the business rows, in the transaction that makes the job ready again. May refuse
    /// with a [`Rejection`](towpath_domain::Rejection). Only called if `retry_decision` allows it.
    fn revive(_tx: &mut Tx<'_>, _input: &Self) -> impl Future<Output = store::Result<()>> + Send {
        std::future::ready(Ok(()))
    }
}

/// Whether a failed job may be retried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RetryDecision {
    /// Refused; the reason is a sentence for the operator.
    Refused(&'static str),
    /// Allowed, at the end of this lane: the job's own one, if it has one.
    Allowed(Option<Lane>),
}

type EndFn = Arc<dyn for<'a> Fn(&'a mut Tx<'_>, &'a str, EndReason) -> BoxFuture<'a, store::Result<()>> + Send + Sync>;
type EndAllFn =
    Arc<dyn for<'a> Fn(&'a mut Tx<'_>, &[&str], &'a EndReason) -> BoxFuture<'a, store::Result<()>> + Send + Sync>;
type AttemptFailedFn =
    Arc<dyn for<'a> Fn(&'a mut Tx<'_>, &'a str, u32, &'a str) -> BoxFuture<'a, store::Result<()>> + Send + Sync>;

type RetryDecisionFn = Arc<dyn Fn(&str) -> store::Result<RetryDecision> + Send + Sync>;
type ReviveFn = Arc<dyn for<'a> Fn(&'a mut Tx<'_>, &'a str) -> BoxFuture<'a, store::Result<()>> + Send + Sync>;

/// Handlers of a kind, wherever a job of it may end.
struct KindHandlers {
    end: EndFn,
    end_all: EndAllFn,
    attempt_failed: AttemptFailedFn,
    retry_decision: RetryDecisionFn,
    revive: ReviveFn,
    pool: &'static str,
}

/// End handlers of each kind. Attached to the store, so that every transaction that ends a job finds them, in a worker,
/// the scheduler or a request.
#[derive(Default)]
pub struct EndHandlers(HashMap<&'static str, KindHandlers>);

impl EndHandlers {
    pub(crate) async fn end(&self, tx: &mut Tx<'_>, job: &store::jobs::Job, ended: EndReason) -> store::Result<()> {
        (self.handlers(job)?.end)(tx, &job.input, ended).await
    }

    /// Ends jobs that end together, kind by kind.
    pub(crate) async fn end_all(
        &self,
        tx: &mut Tx<'_>,
        jobs: &[store::jobs::Job],
        ended: &EndReason,
    ) -> store::Result<()> {
        let mut kinds: Vec<(&KindHandlers, &str, Vec<&str>)> = Vec::new();
        for job in jobs {
            match kinds.iter_mut().find(|(_, kind, _)| *kind == job.kind) {
                Some((_, _, inputs)) => inputs.push(&job.input),
                None => kinds.push((self.handlers(job)?, &job.kind, vec![&job.input])),
            }
        }
        for (ends, _, inputs) in kinds {
            (ends.end_all)(tx, &inputs, ended).await?;
        }
        Ok(())
    }

    pub(crate) async fn attempt_failed(
        &self,
        tx: &mut Tx<'_>,
        job: &store::jobs::Job,
        n: u32,
        error: &str,
    ) -> store::Result<()> {
        (self.handlers(job)?.attempt_failed)(tx, &job.input, n, error).await
    }

    pub(crate) fn retry_decision(&self, job: &store::jobs::Job) -> store::Result<RetryDecision> {
        (self.handlers(job)?.retry_decision)(&job.input)
    }

    pub(crate) async fn revive(&self, tx: &mut Tx<'_>, job: &store::jobs::Job) -> store::Result<()> {
        (self.handlers(job)?.revive)(tx, &job.input).await
    }

    pub(crate) fn has_pool(&self, pool: &str) -> bool {
        self.0.values().any(|kind| kind.pool == pool)
    }

    pub(crate) fn knows(&self, kind: &str) -> bool {
        self.0.contains_key(kind)
    }

    /// A job of an unknown kind is left alone: a newer version knows how to end it.
    fn handlers(&self, job: &store::jobs::Job) -> store::Result<&KindHandlers> {
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

struct WorkflowRunner<W>(std::marker::PhantomData<fn() -> W>);

impl<W: Workflow> Runner<W::World> for WorkflowRunner<W> {
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

/// The kinds of jobs this process knows, by name.
pub struct Registry<World> {
    runners: HashMap<&'static str, Arc<dyn Runner<World>>>,
    ends: EndHandlers,
}

impl<World: Send + Sync + 'static> Default for Registry<World> {
    fn default() -> Self {
        Self {
            runners: HashMap::new(),
            ends: EndHandlers::default(),
        }
    }
}

impl<World: Send + Sync + 'static> Registry<World> {
    #[must_use]
    pub fn with<W: Workflow<World = World>>(mut self) -> Self {
        self.runners
            .insert(W::KIND, Arc::new(WorkflowRunner::<W>(std::marker::PhantomData)));
        let end: EndFn = Arc::new(|tx, input, ended| {
            // Parsed before the future, which then borrows only the transaction.
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
        let failed: AttemptFailedFn = Arc::new(|tx, input, n, error| {
            let input: Result<W, _> = serde_json::from_str(input);
            let tx = reborrow(tx);
            Box::pin(async move {
                let input = input.map_err(|_| store::Error::corrupt("job", "input", W::KIND))?;
                W::attempt_failed(tx, &input, n, error).await
            })
        });
        let again: RetryDecisionFn = Arc::new(|input| {
            let input: W = serde_json::from_str(input).map_err(|_| store::Error::corrupt("job", "input", W::KIND))?;
            Ok(input.retry_decision())
        });
        let revive: ReviveFn = Arc::new(|tx, input| {
            let input: Result<W, _> = serde_json::from_str(input);
            let tx = reborrow(tx);
            Box::pin(async move {
                let input = input.map_err(|_| store::Error::corrupt("job", "input", W::KIND))?;
                W::revive(tx, &input).await
            })
        });
        let ends = KindHandlers {
            end,
            end_all,
            attempt_failed: failed,
            retry_decision: again,
            revive,
            pool: W::POOL,
        };
        self.ends.0.insert(W::KIND, ends);
        self
    }

    /// Attaches the end handlers to the store. Once per store, before anything starts.
    pub fn attach(&mut self, store: &Store) {
        store.attach(Arc::new(std::mem::take(&mut self.ends)));
    }

    /// The pools of all kinds, sorted and unique.
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
