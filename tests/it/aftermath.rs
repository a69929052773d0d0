//! What the tables have to say when everything is over: nothing stranded, no business row left running by a job that
//! is over, no place held by nobody.

use std::time::Duration;

use sqlx::{Connection, SqliteConnection};
use towpath_tests::{World, until};

/// Each question counts rows that must not be there. The same text runs on both databases.
const QUESTIONS: [(&str, &str); 10] = [
    (
        "exports that are not over",
        "SELECT count(*) FROM export WHERE finished_at IS NULL",
    ),
    (
        "exports that did not complete",
        "SELECT count(*) FROM export WHERE status <> 'COMPLETED'",
    ),
    (
        "export runs that are not over",
        "SELECT count(*) FROM export_run WHERE finished_at IS NULL",
    ),
    (
        "export runs left running by a job that is over",
        "SELECT count(*) FROM export_run r JOIN job j ON j.id = r.job_id WHERE r.finished_at IS NULL AND j.finished_at IS NOT NULL",
    ),
    (
        "exports left running by a job that is over",
        "SELECT count(*) FROM export e JOIN job j ON j.id = e.job_id WHERE e.finished_at IS NULL AND j.finished_at IS NOT NULL",
    ),
    (
        "jobs at work",
        "SELECT count(*) FROM job WHERE state IN ('ready', 'running', 'waiting', 'blocked')",
    ),
    (
        "jobs that ended badly",
        "SELECT count(*) FROM job WHERE state IN ('failed', 'timed_out') OR dead",
    ),
    (
        "lanes that count other places than are held",
        "SELECT count(*) FROM lane l WHERE l.held <> (SELECT count(*) FROM job j WHERE j.lane = l.key AND j.lane_held AND j.finished_at IS NULL)",
    ),
    ("pins that nobody holds", "SELECT count(*) FROM segment_pin"),
    ("uploads that nobody will finish", "SELECT count(*) FROM export_upload"),
];

/// Waits until every question is answered with 0.
///
/// # Panics
/// With the questions that are not, when time is up.
pub async fn settles(world: &World) {
    let mut last = Vec::new();
    let limit = Duration::from_secs(60);
    let quiet = tokio::time::timeout(
        limit,
        until("the tables to come to rest", limit * 2, async || {
            last = open_questions(world).await;
            last.is_empty().then_some(())
        }),
    )
    .await;
    assert!(quiet.is_ok(), "left behind:\n{}", last.join("\n"));
}

async fn open_questions(world: &World) -> Vec<String> {
    let mut counts = Vec::new();
    if let Some(database) = &world.database {
        let mut connection = database.connect().await;
        for (_, question) in QUESTIONS {
            counts.push(sqlx::query_scalar::<_, i64>(question).fetch_one(&mut connection).await);
        }
    } else {
        let uri = format!("sqlite://{}/towpath.db", world.data().display());
        let mut connection = SqliteConnection::connect(&uri)
            .await
            .expect("the world's database is there");
        for (_, question) in QUESTIONS {
            counts.push(sqlx::query_scalar::<_, i64>(question).fetch_one(&mut connection).await);
        }
    }
    let mut open = Vec::new();
    for ((what, _), count) in QUESTIONS.into_iter().zip(counts) {
        match count {
            Ok(0) => {}
            Ok(count) => open.push(format!("{count} {what}")),
            Err(error) => panic!("{what}: {error}"),
        }
    }
    open
}
