//! Lines of a chatty deployment: how many of them the database takes, and what is told of the others.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use towpath_domain::RevisionId;
use towpath_domain::deployment::LogKind;
use towpath_store::{Dialect, on, revision_logs};
use towpath_workflows::deployment_log::{DeploymentLog, Owner};

use crate::home::Database;
use crate::yard::Yard;

impl Yard {
    fn open_log(&self, revision: RevisionId) -> DeploymentLog {
        let owner = Owner {
            tenant: self.home.tenant,
            deployment: self.deployment,
            revision,
            kind: LogKind::Deploy,
        };
        self.hosting.log(self.home.store(), owner, Vec::new())
    }

    /// Lines of programs that are in the database, and how many are told to have been dropped.
    async fn lines(&self) -> (i64, i64) {
        let written = self
            .home
            .count("SELECT count(*) FROM revision_log WHERE message LIKE 'line %'")
            .await;
        let (tenant, deployment) = (self.home.tenant, self.deployment);
        let filter = revision_logs::Filter {
            query: Some("and were dropped".to_owned()),
            ..revision_logs::Filter::default()
        };
        let told = self
            .home
            .store()
            .read(async |tx| revision_logs::list(tx, tenant, deployment, &filter, 1000).await)
            .await
            .unwrap();
        let numbers = told
            .iter()
            .map(|line| line.message.split(' ').next().unwrap().parse::<i64>().unwrap());
        (written, numbers.sum())
    }

    /// Waits until each of so many lines is written, or told to have been dropped.
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
    let yard = Yard::new_on(database).await;
    let id = yard.revision(None).await;
    let log = yard.open_log(id);
    let begun = Instant::now();
    say(&log, 10_000);
    log.log().info("what the platform says is heard");
    log.flush().await;
    assert!(begun.elapsed() >= Duration::from_secs(4), "they were written at once");
    let (written, dropped) = yard.until_told_of(10_000).await;
    assert!((4000..6000).contains(&written), "{written} written, {dropped} dropped");
    let said = "SELECT count(*) FROM revision_log WHERE message = 'what the platform says is heard'";
    assert_eq!(yard.home.count(said).await, 1);

    // One that is started again and again says no more. Nobody waits for these.
    for _ in 0..3 {
        say(&yard.open_log(id), 10_000);
    }
    drop(log);
    let (again, _) = yard.until_told_of(40_000).await;
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

/// Nothing can be written for a moment, in which the log is closed.
async fn lines_outlast_a_database_that_is_away(database: &Database) {
    let yard = Yard::new_on(database).await;
    let id = yard.revision(None).await;
    let log = yard.open_log(id);
    let (leave, left) = oneshot::channel();
    let (come_back, came_back) = oneshot::channel::<()>();
    let away = yard.home.store().write(async |tx| {
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
    let (written, dropped) = yard.until_told_of(5000).await;
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
