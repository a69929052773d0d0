//! What the process that holds the machine of boxes does beside its jobs: it looks at the times of boxes, compares the machine
//! with the rows, and fills pools.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use towpath_domain::sandbox::{BoxStatus, Due};
use towpath_domain::{BoxId, Timestamp};
use towpath_sandbox::{Error, Mark};
use towpath_store::sandboxes::boxes::{self, Located, SandboxBox};
use towpath_store::sandboxes::hosts::{self, Claim};
use towpath_store::sandboxes::{pools, tokens};
use towpath_store::{self as store, Store};
use uuid::Uuid;

use crate::boxes::{Boxes, generation, shown};
use crate::{box_delete, box_stop, pool_fill};

/// How often times of boxes are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// How often uses of boxes are written, and the right to hold the machine is renewed.
const WRITE: Duration = Duration::from_secs(15);
/// How often the machine is compared with the rows.
const COMPARE: Duration = Duration::from_secs(60);
/// How long the right to hold the machine lasts unless it is renewed.
pub const LEASE: Duration = Duration::from_secs(60);
/// When a time that has passed is looked at again, should its job come to nothing.
const AGAIN: Duration = Duration::from_secs(300);
/// Rows of one read.
const PAGE: i64 = 500;

/// What the machine is and has seen.
pub struct Keeper {
    store: Store,
    machine: Arc<Boxes>,
    claim: Claim,
    /// Boxes without a row that were ended in an earlier comparison.
    ended: HashSet<Uuid>,
}

impl Keeper {
    /// The keeper of a machine by a right that this process has.
    #[must_use]
    pub fn new(store: Store, machine: Arc<Boxes>, claim: Claim) -> Self {
        Self {
            store,
            machine,
            claim,
            ended: HashSet::new(),
        }
    }

    /// Keeps boxes until `stop` is cancelled. Boxes run on after that.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut ticks = interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut written, mut compared) = (Instant::now(), None::<Instant>);
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                _ = ticks.tick() => {}
            }
            if written.elapsed() >= WRITE {
                written = Instant::now();
                report("renewing the right to hold the machine of boxes", self.renew().await);
                report("writing uses of boxes", self.write_uses().await);
            }
            if self.machine.is_lost() {
                continue;
            }
            if compared.is_none_or(|last| last.elapsed() >= COMPARE) {
                compared = Some(Instant::now());
                report("comparing the machine of boxes with its rows", self.compare().await);
                report("filling pools of boxes", self.fill_pools().await);
                report("forgetting tokens of boxes", self.prune().await);
            }
            report("looking at times of boxes", self.look().await);
        }
        report("writing uses of boxes", self.write_uses().await);
        let life = self.claim.life;
        report(
            "giving back the machine of boxes",
            self.store.write(async |tx| hosts::end(tx, life).await).await,
        );
    }

    async fn renew(&self) -> store::Result<()> {
        let holds = self
            .store
            .write(async |tx| hosts::take(tx, &self.claim, LEASE).await)
            .await?;
        if !holds && !self.machine.is_lost() {
            tracing::error!(
                "another process holds the machine of boxes by now; this one starts none until that has ended"
            );
        }
        self.machine.set_lost(!holds);
        Ok(())
    }

    async fn write_uses(&self) -> store::Result<()> {
        let used = self.machine.take_used();
        for page in used.chunks(100) {
            self.store.write(async |tx| boxes::touch(tx, page).await).await?;
        }
        Ok(())
    }

    async fn prune(&self) -> store::Result<()> {
        self.store.write(async |tx| tokens::prune(tx, PAGE).await).await?;
        Ok(())
    }

    async fn fill_pools(&self) -> store::Result<()> {
        let uneven = self.store.read(async |tx| pools::uneven(tx, PAGE).await).await?;
        for pool in uneven {
            self.store
                .write(async |tx| pool_fill::start(tx, pool.tenant_id, pool.id).await)
                .await?;
        }
        Ok(())
    }

    /// Stops boxes that are idle, and removes those whose time is over.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn look(&self) -> store::Result<()> {
        let due = self.store.read(async |tx| boxes::due(tx, PAGE).await).await?;
        for row in due {
            let now = self.store.clock().now();
            let over = row.times().next(&row.standing()).filter(|(at, _)| *at <= now);
            match over {
                None => self.store.write(async |tx| boxes::update_due(tx, &row).await).await?,
                Some((_, Due::Delete)) => self.delete(&row).await?,
                Some((_, Due::Stop)) => {
                    if self.is_in_use(&row).await {
                        self.prolong(row, now).await?;
                    } else {
                        self.stop(&row).await?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether somebody is connected, or a command runs.
    async fn is_in_use(&self, row: &SandboxBox) -> bool {
        if self.machine.connections(row.id) > 0 {
            return true;
        }
        let Ok(Some(agent)) = self.machine.agent(row).await else {
            return false;
        };
        let commands = agent.commands().await.unwrap_or_default();
        commands.iter().any(|command| command.exit_code.is_none())
    }

    async fn prolong(&self, row: SandboxBox, now: Timestamp) -> store::Result<()> {
        let used = SandboxBox { active_at: now, ..row };
        let at = [(used.id, now)];
        self.store
            .write(async |tx| {
                boxes::touch(tx, &at).await?;
                boxes::update_due(tx, &used).await
            })
            .await
    }

    async fn stop(&self, row: &SandboxBox) -> store::Result<()> {
        let again = self.store.clock().now().plus(AGAIN);
        self.store
            .write(async |tx| {
                box_stop::start(tx, row.tenant_id, row.id, row.generation).await?;
                boxes::postpone(tx, row.id, row.generation, again).await
            })
            .await
    }

    async fn delete(&self, row: &SandboxBox) -> store::Result<()> {
        self.store
            .write(async |tx| box_delete::delete(tx, row.tenant_id, row.id).await)
            .await?;
        Ok(())
    }

    /// Ends what the machine has and the rows do not, and marks as stopped what the rows have and the machine does not.
    ///
    /// # Errors
    /// Those of the database. What the driver cannot do is logged, and tried again at the next comparison.
    pub async fn compare(&mut self) -> store::Result<()> {
        // Rows first: what begins between the two reads has a row that says so.
        let rows = self.rows().await?;
        let marks = match self.machine.driver.inventory().await {
            Ok(marks) => marks,
            Err(error) => {
                tracing::warn!(reason = shown(&error), "the machine of boxes cannot say what it has");
                return Ok(());
            }
        };
        let by_id: HashMap<Uuid, &Mark> = marks.iter().map(|mark| (mark.id, mark)).collect();
        for row in rows.values() {
            self.compare_row(row, by_id.get(&row.id.0).copied()).await?;
        }
        let mut ended = HashSet::new();
        for mark in marks.iter().filter(|mark| !rows.contains_key(&mark.id)) {
            if self.end_unknown(mark).await? {
                ended.insert(mark.id);
            }
        }
        self.ended = ended;
        Ok(())
    }

    async fn rows(&self) -> store::Result<HashMap<Uuid, Located>> {
        let (mut rows, mut last) = (HashMap::new(), BoxId::nil());
        loop {
            let page = self.store.read(async |tx| boxes::after(tx, last, PAGE).await).await?;
            let Some(end) = page.last() else { return Ok(rows) };
            last = end.id;
            rows.extend(page.into_iter().map(|row| (row.id.0, row)));
        }
    }

    async fn compare_row(&self, row: &Located, mark: Option<&Mark>) -> store::Result<()> {
        let runs = mark.is_some_and(|mark| mark.is_running && mark.generation == generation(row.generation));
        let is_here = row.host_id.is_none_or(|host| host == self.machine.host_id());
        match row.status {
            BoxStatus::Ready if !runs => {
                let why = if is_here {
                    "its processes ended: they were killed, or the machine was started anew"
                } else {
                    "the machine that it ran on does not hold boxes any more"
                };
                tracing::warn!(sandbox.id = %row.id, "a box that should run does not");
                self.machine.forget(row.id);
                self.store
                    .write(async |tx| {
                        boxes::stopped(tx, row.tenant_id, row.id, row.generation, Some(why)).await?;
                        Ok(())
                    })
                    .await?;
                self.machine.announce();
            }
            BoxStatus::Stopped | BoxStatus::Failed => {
                if let Some(mark) = mark.filter(|mark| mark.is_running && mark.generation <= generation(row.generation))
                {
                    self.end_stale(mark).await;
                }
            }
            _ => {}
        }
        Ok(())
    }

    async fn end_stale(&self, mark: &Mark) {
        let grace = self.machine.settings.grace;
        let stopped = self.machine.driver.stop(mark.id, mark.generation, grace).await;
        match stopped {
            Ok(()) | Err(Error::NotRunning | Error::Stale { .. }) => {
                tracing::warn!(sandbox.id = %mark.id, "a box ran that should not; it was ended");
            }
            Err(error) => tracing::warn!(sandbox.id = %mark.id, reason = shown(&error), "a box cannot be ended"),
        }
    }

    /// Ends a box that has no row. It is forgotten at the second sight: until then a job of a process that was thought dead
    /// may still try to start it, which the machine refuses. Answers whether it is to be seen again.
    async fn end_unknown(&self, mark: &Mark) -> store::Result<bool> {
        let id = BoxId(mark.id);
        if self.store.read(async |tx| boxes::exists(tx, id).await).await? {
            return Ok(false);
        }
        let driver = &self.machine.driver;
        let done = if self.ended.contains(&mark.id) {
            driver.forget(mark.id).await
        } else {
            tracing::info!(sandbox.id = %mark.id, "the machine has a box that no row names; it is ended");
            driver.destroy(mark.id, mark.generation).await
        };
        if let Err(error) = done {
            tracing::warn!(sandbox.id = %mark.id, reason = shown(&error), "a box cannot be ended");
        }
        Ok(true)
    }
}

fn report(what: &'static str, done: store::Result<()>) {
    if let Err(error) = done {
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            "{what} failed; it is tried again"
        );
    }
}
