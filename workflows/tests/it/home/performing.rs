//! Jobs of a workspace, claimed and performed by hand.

use std::future::Future;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::watch;
use towpath_domain::{SegmentId, WorkerId};
use towpath_durable::{Claimed, Engine, Signal};
use towpath_store::{jobs, segments};
use towpath_workflows::World;
use towpath_workflows::heavy::Heavy;

use super::{Home, Work};

impl Home {
    /// Claims one job that is ready, of whatever pool.
    pub async fn claim(&self) -> Option<Claimed> {
        let patience = std::time::Instant::now();
        loop {
            while towpath_durable::ready_due(self.store()).await.unwrap() > 0 {}
            for pool in self.registry.pools() {
                if let Some(job) = self.claim_from(pool).await {
                    return Some(job);
                }
            }
            // On PostgreSQL a claim passes over a row that is locked. The session of work that was dropped in the middle may be
            // at its last statement still, and hold the row until it finds that nobody listens.
            if self.count("SELECT count(*) FROM job WHERE state = 'ready'").await == 0 {
                return None;
            }
            assert!(
                patience.elapsed() < Duration::from_secs(60),
                "a job is ready, and nobody can claim it: {}",
                self.jobs().await
            );
        }
    }

    pub async fn claim_from(&self, pool: &str) -> Option<Claimed> {
        let claimed = self.store().write(async |tx| {
            let claimer = jobs::Claimer::new(pool, WorkerId::new(), 1);
            let claimed = jobs::claim(tx, &claimer).await?;
            if !claimed.is_empty() {
                return Ok(claimed);
            }
            // One that lost its worker again and again.
            jobs::claim_alone(tx, &claimer).await
        });
        claimed.await.unwrap().pop()
    }

    /// Claims one job of this kind; performs whatever comes before it.
    pub async fn until(&self, kind: &str) -> Claimed {
        loop {
            let job = self.claim().await.expect("a job of this kind gets ready");
            if job.kind == kind {
                return job;
            }
            self.perform(job).await;
        }
    }

    pub async fn perform(&self, job: Claimed) {
        let (_tell, told) = watch::channel(Signal::Run);
        towpath_durable::perform(&self.engine, &self.registry, &self.world, job, told).await;
    }

    /// Performs what is ready, and what gets ready by that.
    pub async fn drive(&self) {
        while let Some(job) = self.claim().await {
            self.perform(job).await;
        }
    }

    /// Performs everything, also what is due later, until no job is open.
    pub async fn drain(&self) {
        for _ in 0..100 {
            self.drive().await;
            if self.count("SELECT count(*) FROM job WHERE finished_at IS NULL").await == 0 {
                return;
            }
            self.wait(Duration::from_secs(31)).await;
        }
        panic!("jobs are left");
    }

    /// Performs `job`; when a call to the destination is left without an answer, `then` says what the worker hears.
    pub async fn perform_until_hung(&self, job: Claimed, then: impl AsyncFnOnce() -> Signal) {
        let (tell, told) = watch::channel(Signal::Run);
        let work = towpath_durable::perform(&self.engine, &self.registry, &self.world, job, told);
        tokio::pin!(work);
        tokio::select! {
            () = &mut work => {}
            () = self.s3.hung() => {
                // It goes on meanwhile, as far as it gets.
                let signal = tokio::select! {
                    () = &mut work => return,
                    signal = then() => signal,
                };
                tell.send_replace(signal);
                work.await;
            }
        }
    }

    /// Performs `job` up to a call that is left without an answer, and no further: as if its process were stopped there. It
    /// goes on when the work is awaited.
    pub async fn freeze(&self, job: Claimed) -> Work<'_> {
        let (tell, told) = watch::channel(Signal::Run);
        let mut work: Work<'_> = Box::pin(async move {
            towpath_durable::perform(&self.engine, &self.registry, &self.world, job, told).await;
            drop(tell);
        });
        tokio::select! {
            () = &mut work => panic!("it came to its end"),
            () = self.s3.hung() => {}
        }
        work
    }

    /// With leases of this length from now on.
    pub fn lease(&mut self, lease: Duration) {
        let settings = towpath_durable::Settings {
            lease,
            ..towpath_durable::Settings::default()
        };
        self.engine = Engine::new(self.store().clone(), settings);
    }

    /// Performs `job` and lets go of it after it was looked at so many times: as if its worker were killed there.
    /// Whether that came before its end.
    pub async fn perform_for(&self, job: Claimed, polls: usize) -> bool {
        let (_tell, told) = watch::channel(Signal::Run);
        let work = towpath_durable::perform(&self.engine, &self.registry, &self.world, job, told);
        let mut work = Box::pin(work);
        let mut left = polls;
        std::future::poll_fn(move |cx| {
            if left == 0 {
                return Poll::Ready(true);
            }
            left -= 1;
            match work.as_mut().poll(cx) {
                Poll::Ready(()) => Poll::Ready(false),
                // Not once more: dropped right here, with whatever it waits for still under way.
                Poll::Pending if left == 0 => Poll::Ready(true),
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    }

    /// Performs `job` until `then` says what the worker hears, and to its end from there.
    pub async fn perform_until_told(&self, job: Claimed, then: impl Future<Output = Signal>) {
        let (tell, told) = watch::channel(Signal::Run);
        let work = towpath_durable::perform(&self.engine, &self.registry, &self.world, job, told);
        tokio::pin!(work);
        tokio::select! {
            () = &mut work => {}
            signal = then => {
                tell.send_replace(signal);
                work.await;
            }
        }
    }

    /// Has `job` intend a segment, as an attempt does that is killed before it has written it.
    pub async fn intend(&self, job: &Claimed) {
        let input: serde_json::Value = serde_json::from_str(&job.input).unwrap();
        let mark = serde_json::from_value(input["mark"].clone()).unwrap();
        let intended = self
            .store()
            .write(async |tx| segments::intend(tx, self.tenant, SegmentId::new(), "segments/begun", Some(mark)).await);
        intended.await.unwrap();
    }

    /// The same world, for what runs beside the jobs.
    pub fn world_again(&self) -> World {
        World {
            store: self.world.store.clone(),
            objects: self.world.objects.clone(),
            sealer: self.world.sealer.clone(),
            destinations: self.world.destinations.clone(),
            heavy: Heavy::with_threads(1).unwrap(),
            hosting: self.world.hosting.clone(),
            boxes: self.world.boxes.clone(),
            disks: self.world.disks.clone(),
            sizes: self.world.sizes,
            exports: self.world.exports,
            keeping: self.world.keeping,
        }
    }
}
