//! Log lines of a deployment that prints a lot: how many are stored, and how the rest is reported.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use towpath_domain::RevisionId;
use towpath_domain::deployment::LogKind;
use towpath_store::{Dialect, on, revision_logs};
use towpath_workflows::deployment_log::{DeploymentLog, LogOwner};

use crate::deployment_fixture::DeploymentFixture;
use crate::fixture::Database;

impl DeploymentFixture {
    fn open_log(&self, revision: RevisionId) -> DeploymentLog {
        let owner = LogOwner {
            tenant: self.workflows.tenant,
            deployment: self.deployment,
            revision,
            kind: LogKind::Deploy,
        };
        self.hosting.log(self.workflows.store(), owner, Vec::new())
    }

    /// Number of lines in the database, and number of lines reported as dropped.
    async fn lines(&self) -> (i64, i64) {
        let written = self
            .workflows
            .count("SELECT count(*) FROM revision_log WHERE message LIKE 'line %'")
            .await;
        let (tenant, deployment) = (self.workflows.tenant, self.deployment);
        let filter = revision_logs::Filter {
            query: Some("lines were dropped because".to_owned()),
            ..revision_logs::Filter::default()
        };
        let told = self
            .workflows
            .store()
            .read(async |tx| revision_logs::list(tx, tenant, deployment, &filter, 1000).await)
            .await
            .unwrap();
        let numbers = told
            .iter()
            .map(|line| line.message.split(' ').next().unwrap().parse::<i64>().unwrap());
        (written, numbers.sum())
    }

    /// Waits until all lines are written or reported as dropped.
    async fn until_told_of(&self, all: i64) -> (i64, i64) {
        let told = async {
            loop {
                let (written, dropped) = self.lines().await;
                if written + dropped == all {
                    return (written, dropped);
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let told = tokio::time::timeout(Duration::from_secs(90), told).await;
        told.expect("awaited: each line is written, or told to have been dropped")
    }
}

fn say(log: &DeploymentLog, lines: usize) {
    for n in 0..lines {
        log.log().output(format!("line {n}").as_bytes());
    }
}

async fn a_chatty_server_is_slowed_down(database: &Database) {
    let fixture = DeploymentFixture::new_on(database).await;
    let id = fixture.revision(None).await;
    let log = fixture.open_log(id);
    let begun = Instant::now();
    say(&log, 10_000);
    log.log().info("what the platform says is heard");
    log.flush().await;
    assert!(begun.elapsed() >= Duration::from_secs(4), "they were written at once");
    let (written, dropped) = fixture.until_told_of(10_000).await;
    assert!((4000..6000).contains(&written), "{written} written, {dropped} dropped");
    let said = "SELECT count(*) FROM revision_log WHERE message = 'what the platform says is heard'";
    assert_eq!(fixture.workflows.count(said).await, 1);

    // Repeated restarts do not raise the limit. Nobody flushes these lines.
    for _ in 0..3 {
        say(&fixture.open_log(id), 10_000);
    }
    drop(log);
    let (again, _) = fixture.until_told_of(40_000).await;
    assert!(again < written + 6000, "each log begins anew: {again} after {written}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chatty_server_is_slowed_down_on_sqlite() {
    a_chatty_server_is_slowed_down(&Database::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chatty_server_is_slowed_down_on_postgres() {
    let Some(server) = Database::postgres() else { return };
    a_chatty_server_is_slowed_down(&server).await;
}

/// The database is unavailable for a moment in which the log is closed.
async fn lines_outlast_a_database_that_is_away(database: &Database) {
    let fixture = DeploymentFixture::new_on(database).await;
    let id = fixture.revision(None).await;
    let log = fixture.open_log(id);
    let (leave, left) = oneshot::channel();
    let (come_back, came_back) = oneshot::channel::<()>();
    let away = fixture.workflows.store().write(async |tx| {
        if tx.dialect() == Dialect::Postgres {
            let lock = "LOCK TABLE revision_log IN ACCESS EXCLUSIVE MODE";
            on!(tx, |conn| sqlx::query(lock).execute(conn).await.map(drop))?;
        }
        leave.send(()).unwrap();
        let _ = came_back.await;
        Ok(())
    });
    let speak = async {
        left.await.unwrap();
        say(&log, 5000);
        drop(log);
        come_back.send(()).unwrap();
    };
    let (away, ()) = tokio::join!(away, speak);
    away.unwrap();
    let (written, dropped) = fixture.until_told_of(5000).await;
    assert!(written >= 4000, "{written} written, {dropped} dropped");
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_outlast_a_database_that_is_away_on_sqlite() {
    lines_outlast_a_database_that_is_away(&Database::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_outlast_a_database_that_is_away_on_postgres() {
    let Some(server) = Database::postgres() else { return };
    lines_outlast_a_database_that_is_away(&server).await;
}
