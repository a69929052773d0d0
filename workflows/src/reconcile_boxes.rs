//! Background work of a node: it checks the times of its sandboxes, compares the sandbox host with their rows, fills
//! pools, and renews the lease of the node.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;
use towpath_domain::sandbox::{BoxStatus, DueAction};
use towpath_domain::{BoxId, SnapshotId, TenantId};
use towpath_sandbox::{BoxState, Error, RootFileSystem};
use towpath_store::sandboxes::boxes::{self, BoxLocation, SandboxBox};
use towpath_store::sandboxes::nodes::{self, NodeRegistration};
use towpath_store::sandboxes::{pools, snapshots, tokens};
use towpath_store::sealing::Sealer;
use towpath_store::{self as store, Store};
use uuid::Uuid;

use crate::sandbox_host::{SandboxHost, driver_generation, error_text};
use crate::{delete_box, fill_pool, metric, stop_box};

/// Interval of checks for due sandboxes.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which uses of sandboxes are written and the lease is renewed.
const RENEW_INTERVAL: Duration = Duration::from_secs(15);
/// Interval of comparisons with the rows.
const RECONCILE_INTERVAL: Duration = Duration::from_secs(60);
/// Interval of removals of unused images.
const IMAGE_INTERVAL: Duration = Duration::from_secs(3600);
/// How long the lease of a node lasts by default unless it is renewed.
pub const LEASE_DURATION: Duration = Duration::from_secs(120);
/// When a due time is checked again if its job had no effect.
const RETRY_DELAY: Duration = Duration::from_secs(300);
/// Time limit for a sandbox to report its commands.
const COMMAND_CHECK_TIMEOUT: Duration = Duration::from_secs(2);
/// Time limit for a sandbox to hand out the socket of its proxy.
const PROXY_TIMEOUT: Duration = Duration::from_secs(5);
/// Concurrent requests to sandboxes.
const MAX_CONCURRENT_CHECKS: usize = 32;
/// Rows per read.
const PAGE_SIZE: i64 = 500;

/// Reconciles the sandbox host with the rows.
pub struct BoxReconciler {
    store: Store,
    host: Arc<SandboxHost>,
    sealer: Sealer,
    node: NodeRegistration,
    lease: Duration,
    /// Sandboxes without a row that an earlier comparison ended.
    ended_unknown: HashSet<Uuid>,
}

impl BoxReconciler {
    /// A reconciler for a node that this process has registered, with a lease of this length.
    #[must_use]
    pub fn new(
        store: Store,
        sealer: Sealer,
        machine: Arc<SandboxHost>,
        node: NodeRegistration,
        lease: Duration,
    ) -> Self {
        Self {
            store,
            host: machine,
            sealer,
            node,
            lease,
            ended_unknown: HashSet::new(),
        }
    }

    /// Runs until `stop` is cancelled. Sandboxes keep running after that.
    pub async fn run(mut self, stop: CancellationToken) {
        let (store, machine) = (self.store.clone(), Arc::clone(&self.host));
        let (node, lease) = (self.node.clone(), self.lease);
        // Concurrent with the rest, which waits for sandboxes: the lease must not expire meanwhile.
        tokio::join!(hold_lease(&store, &machine, &node, lease, &stop), self.run_loop(&stop));
        log_failure("writing uses of sandboxes", write_uses(&store, &machine).await);
        log_failure("writing traffic of sandboxes", machine.write_traffic(&store).await);
        log_failure(
            "reporting that the node shuts down",
            store.write(async |tx| nodes::leave(tx, node.process_id).await).await,
        );
    }

    async fn run_loop(&mut self, stop: &CancellationToken) {
        let mut ticks = interval(POLL_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut compared = None::<Instant>;
        let mut swept = None::<Instant>;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
            }
            if self.host.is_lost() {
                continue;
            }
            if compared.is_none_or(|last| last.elapsed() >= RECONCILE_INTERVAL) {
                compared = Some(Instant::now());
                log_failure("comparing sandboxes with their rows", self.reconcile().await);
                log_failure("filling pools of sandboxes", self.fill_pools().await);
                log_failure("counting boxes", self.report_counts().await);
                log_failure("deleting tokens of sandboxes", self.prune_tokens().await);
            }
            if swept.is_none_or(|last| last.elapsed() >= IMAGE_INTERVAL) {
                swept = Some(Instant::now());
                log_failure("removing unused images", self.remove_unused_images().await);
            }
            log_failure("checking times of sandboxes", self.stop_due().await);
        }
    }

    /// Removes images on which no sandbox of this node and no snapshot that it can start is based. Driver errors are
    /// logged and retried at the next removal.
    pub async fn remove_unused_images(&self) -> store::Result<()> {
        let mut bases = BTreeSet::new();
        let mut add = |root: &str| match serde_json::from_str::<RootFileSystem>(root) {
            Ok(root) => {
                bases.insert(root.base);
                true
            }
            Err(_) => false,
        };
        let (mut is_complete, mut last, node) = (true, BoxId::nil(), self.node.id);
        loop {
            let page = self
                .store
                .read(async |tx| boxes::roots_after(tx, node, last, PAGE_SIZE).await)
                .await?;
            let Some((end, _)) = page.last() else { break };
            last = *end;
            is_complete &= page.iter().all(|(_, root)| add(root));
        }
        let mut last = SnapshotId::nil();
        loop {
            let page = self
                .store
                .read(async |tx| snapshots::roots_after(tx, node, last, PAGE_SIZE).await)
                .await?;
            let Some((end, _)) = page.last() else { break };
            last = *end;
            is_complete &= page.iter().all(|(_, root)| add(root));
        }
        if !is_complete {
            tracing::warn!("unused images are not removed: the root of a sandbox or snapshot cannot be read");
            return Ok(());
        }
        if let Err(error) = self.host.driver.remove_unused_images(&bases).await {
            tracing::warn!(reason = error_text(&error), "unused images cannot be removed");
        }
        Ok(())
    }

    async fn report_counts(&self) -> store::Result<()> {
        let node = self.node.id;
        let found = self
            .store
            .read(async |tx| boxes::count_by_status(tx, node).await)
            .await?;
        // Resets the gauge of a status that no sandbox has any more.
        for status in BoxStatus::ALL {
            let count = found.iter().find(|(known, _)| *known == status);
            let count = count.map_or(0, |(_, count)| *count);
            let name = self.node.name.clone();
            metrics::gauge!(metric::BOXES, "node" => name, "status" => status.as_str()).set(count as f64);
        }
        Ok(())
    }

    async fn prune_tokens(&self) -> store::Result<()> {
        self.store.write(async |tx| tokens::prune(tx, PAGE_SIZE).await).await?;
        Ok(())
    }

    async fn fill_pools(&self) -> store::Result<()> {
        let uneven = self
            .store
            .read(async |tx| pools::with_wrong_size(tx, PAGE_SIZE).await)
            .await?;
        for pool in uneven {
            self.store
                .write(async |tx| fill_pool::start(tx, pool.tenant_id, pool.id).await)
                .await?;
        }
        Ok(())
    }

    /// Stops idle sandboxes and deletes expired ones.
    pub async fn stop_due(&self) -> store::Result<()> {
        let node = self.node.id;
        let due = self
            .store
            .read(async |tx| boxes::due(tx, node, PAGE_SIZE).await)
            .await?;
        let mut idle = Vec::new();
        for row in due {
            let row = self.with_last_use(row);
            let now = self.store.clock().now();
            let over = row.lifetime().next_due(&row.activity()).filter(|(at, _)| *at <= now);
            match over {
                None => self.update_due(row).await?,
                Some((_, DueAction::Delete)) => self.delete(&row).await?,
                Some((_, DueAction::Stop)) => idle.push(row),
            }
        }
        // Concurrently, because a sandbox may be slow and each has another owner.
        let asked = stream::iter(idle).map(|row| async move { (self.runs_commands(&row).await, row) });
        let mut asked = std::pin::pin!(asked.buffer_unordered(MAX_CONCURRENT_CHECKS));
        while let Some((runs_commands, row)) = asked.next().await {
            // It may have been used during the request; the next check sees that.
            let came = self.host.last_use(row.id).is_some_and(|at| at > row.active_at);
            if runs_commands {
                let active_at = self.store.clock().now();
                self.update_due(SandboxBox { active_at, ..row }).await?;
            } else if !came {
                self.stop(&row).await?;
            }
        }
        Ok(())
    }

    /// A sandbox with its uses that are not written yet.
    fn with_last_use(&self, row: SandboxBox) -> SandboxBox {
        let last = self.host.last_use(row.id);
        let active_at = last.map_or(row.active_at, |last| last.max(row.active_at));
        SandboxBox { active_at, ..row }
    }

    /// Whether a command is running, if the sandbox reports it in time.
    async fn runs_commands(&self, row: &SandboxBox) -> bool {
        let asked = async {
            let agent = self.host.agent(row).await.ok().flatten()?;
            agent.commands().await.ok()
        };
        let commands = timeout(COMMAND_CHECK_TIMEOUT, asked)
            .await
            .ok()
            .flatten()
            .unwrap_or_default();
        commands.iter().any(|command| command.exit_code.is_none())
    }

    /// Writes the last use of a sandbox, and when its times may expire.
    async fn update_due(&self, row: SandboxBox) -> store::Result<()> {
        let at = [(row.id, row.active_at)];
        self.store
            .write(async |tx| {
                boxes::touch(tx, &at).await?;
                boxes::update_due(tx, &row).await.map(drop)
            })
            .await
    }

    async fn stop(&self, row: &SandboxBox) -> store::Result<()> {
        let again = self.store.clock().now().plus(RETRY_DELAY);
        self.store
            .write(async |tx| {
                stop_box::start_when_idle(tx, row.tenant_id, row.id, row.generation).await?;
                boxes::postpone(tx, row.id, row.generation, again).await
            })
            .await
    }

    async fn delete(&self, row: &SandboxBox) -> store::Result<()> {
        self.store
            .write(async |tx| delete_box::delete(tx, row.tenant_id, row.id).await)
            .await?;
        Ok(())
    }

    /// Ends sandboxes that have no row, and marks those as stopped that the host does not have. Driver errors are
    /// logged and retried at the next comparison.
    pub async fn reconcile(&mut self) -> store::Result<()> {
        // What is served from here on is not judged by rows that were read before.
        let served = self.host.served_lives();
        // Rows first: a sandbox that starts between the two reads has a row.
        let rows = self.load_locations().await?;
        let marks = match self.host.driver.inventory().await {
            Ok(marks) => marks,
            Err(error) => {
                tracing::warn!(
                    reason = error_text(&error),
                    "the sandbox driver cannot list its sandboxes"
                );
                return Ok(());
            }
        };
        let by_id: HashMap<Uuid, &BoxState> = marks.iter().map(|mark| (mark.id, mark)).collect();
        for row in rows.values() {
            self.reconcile_row(row, by_id.get(&row.id.0).copied()).await?;
        }
        for (id, generation) in served {
            let is_over = |row: &BoxLocation| {
                let newest = driver_generation(row.generation);
                newest > generation || (newest == generation && !row.status.is_live())
            };
            if rows.get(&id.0).is_none_or(is_over) {
                self.host.end_proxy_of(id, generation);
            }
        }
        let unserved = rows.values().filter(|row| {
            row.status == BoxStatus::Ready
                && row.host_id == Some(self.host.host_id())
                && !self.host.has_proxy(row.id, row.generation)
        });
        let unserved = unserved.map(|row| (row.tenant_id, row.id)).collect();
        self.serve_proxies(unserved).await;
        let mut ended = HashSet::new();
        for mark in marks.iter().filter(|mark| !rows.contains_key(&mark.id)) {
            if self.end_unknown(mark).await? {
                ended.insert(mark.id);
            }
        }
        self.ended_unknown = ended;
        Ok(())
    }

    async fn load_locations(&self) -> store::Result<HashMap<Uuid, BoxLocation>> {
        let (mut rows, mut last, node) = (HashMap::new(), BoxId::nil(), self.node.id);
        loop {
            let page = self
                .store
                .read(async |tx| boxes::list_after(tx, node, last, PAGE_SIZE).await)
                .await?;
            let Some(end) = page.last() else { return Ok(rows) };
            last = end.id;
            rows.extend(page.into_iter().map(|row| (row.id.0, row)));
        }
    }

    async fn reconcile_row(&self, row: &BoxLocation, mark: Option<&BoxState>) -> store::Result<()> {
        let runs = mark.is_some_and(|mark| mark.is_running && mark.generation == driver_generation(row.generation));
        match row.status {
            BoxStatus::Ready if !runs => {
                let why = "its processes ended: they were killed, or the machine was restarted";
                tracing::warn!(sandbox.id = %row.id, "a sandbox stopped unexpectedly");
                metrics::counter!(metric::BOXES_LOST).increment(1);
                self.host.remove_handle(row.id);
                self.host.end_proxy(row.id);
                self.store
                    .write(async |tx| {
                        boxes::mark_stopped(tx, row.tenant_id, row.id, row.generation, Some(why)).await?;
                        Ok(())
                    })
                    .await?;
                self.host.notify_change();
            }
            BoxStatus::Stopped | BoxStatus::Failed => {
                if let Some(mark) =
                    mark.filter(|mark| mark.is_running && mark.generation <= driver_generation(row.generation))
                {
                    self.end_stale(mark).await;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Serves the proxies of sandboxes that another process of the platform started.
    async fn serve_proxies(&self, unserved: Vec<(TenantId, BoxId)>) {
        // Concurrently, because a sandbox may be slow and each has another owner.
        let served = stream::iter(unserved).for_each_concurrent(MAX_CONCURRENT_CHECKS, |(tenant, id)| async move {
            if timeout(PROXY_TIMEOUT, self.serve_proxy(tenant, id)).await.is_err() {
                tracing::warn!(sandbox.id = %id, "the proxy of a sandbox is not served yet: it does not answer");
            }
        });
        served.await;
    }

    async fn serve_proxy(&self, tenant: TenantId, id: BoxId) {
        let found = self.store.read(async |tx| boxes::get(tx, tenant, id).await).await;
        let row = match found {
            Ok(row) => row,
            Err(store::Error::NotFound) => return,
            Err(error) => {
                log_failure("reading a sandbox", Err(error));
                return;
            }
        };
        if let Err(error) = self.host.ensure_proxy(&row, &self.store, &self.sealer).await {
            let reason = error_text(&error);
            tracing::warn!(sandbox.id = %id, reason, "the proxy of a sandbox is not served yet");
        }
    }

    async fn end_stale(&self, mark: &BoxState) {
        let grace = self.host.settings.grace;
        let stopped = self.host.driver.stop(mark.id, mark.generation, grace).await;
        match stopped {
            Ok(()) | Err(Error::NotRunning | Error::Stale { .. }) => {
                tracing::warn!(sandbox.id = %mark.id, "ended a sandbox that should not run");
            }
            Err(error) => tracing::warn!(sandbox.id = %mark.id, reason = error_text(&error), "a sandbox cannot be \
                 ended"),
        }
    }

    /// Ends a sandbox that has no row, or whose row names another node. It is forgotten only at the second comparison:
    /// until then a job of a process that was considered dead may still try to start it, which the host refuses. Returns
    /// whether to keep it for the next comparison.
    async fn end_unknown(&self, mark: &BoxState) -> store::Result<bool> {
        let id = BoxId(mark.id);
        let found = self.store.read(async |tx| boxes::find_location(tx, id).await).await?;
        if found.is_some_and(|row| row.host_id.is_none_or(|node| node == self.node.id)) {
            return Ok(false);
        }
        let driver = &self.host.driver;
        let done = if self.ended_unknown.contains(&mark.id) {
            driver.forget(mark.id).await
        } else {
            tracing::info!(sandbox.id = %mark.id, "ending a sandbox that is not of this node");
            driver.destroy(mark.id, mark.generation).await
        };
        if let Err(error) = done {
            tracing::warn!(sandbox.id = %mark.id, reason = error_text(&error), "a sandbox cannot be ended");
        }
        Ok(true)
    }
}

/// Renews the lease and writes uses of sandboxes until `stop` is cancelled.
async fn hold_lease(
    store: &Store,
    machine: &SandboxHost,
    node: &NodeRegistration,
    lease: Duration,
    stop: &CancellationToken,
) {
    // Several renewals may fail before the lease ends.
    let mut ticks = interval(RENEW_INTERVAL.min(lease / 4));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        log_failure(
            "renewing the lease of the node",
            renew_lease(store, machine, node, lease).await,
        );
        log_failure("writing uses of sandboxes", write_uses(store, machine).await);
        log_failure("writing traffic of sandboxes", machine.write_traffic(store).await);
    }
}

async fn renew_lease(
    store: &Store,
    machine: &SandboxHost,
    node: &NodeRegistration,
    lease: Duration,
) -> store::Result<()> {
    let report = machine.node_report();
    let holds = store
        .write(async |tx| nodes::renew(tx, node, &report, lease).await)
        .await?;
    if !holds && !machine.is_lost() {
        tracing::error!(
            "another process has registered this node, or it was removed: this process starts no sandboxes"
        );
    }
    machine.set_lost(!holds);
    if !holds {
        // What sandboxes may call is not told to this process any more.
        for (id, generation) in machine.served_lives() {
            machine.end_proxy_of(id, generation);
        }
    }
    Ok(())
}

async fn write_uses(store: &Store, machine: &SandboxHost) -> store::Result<()> {
    let used = machine.take_used();
    let mut left = &used[..];
    while !left.is_empty() {
        let (page, rest) = left.split_at(left.len().min(100));
        if let Err(error) = store.write(async |tx| boxes::touch(tx, page).await).await {
            machine.restore_used(left);
            return Err(error);
        }
        left = rest;
    }
    Ok(())
}

fn log_failure(what: &'static str, done: store::Result<()>) {
    if let Err(error) = done {
        tracing::warn!(error = &error as &dyn std::error::Error, "{what} failed; retrying");
    }
}
