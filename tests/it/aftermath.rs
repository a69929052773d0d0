//! What the tables have to say when everything is over: nothing stranded, no business row left running by a job that
//! is over, no place held by nobody.

use std::time::Duration;

use towpath_tests::{World, until};

use crate::tables::Tables;

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
    let mut tables = Tables::of(world).await;
    let mut last = Vec::new();
    let limit = Duration::from_secs(60);
    let quiet = tokio::time::timeout(
        limit,
        until("the tables to come to rest", limit * 2, async || {
            last = open_questions(&mut tables).await;
            last.is_empty().then_some(())
        }),
    )
    .await;
    assert!(quiet.is_ok(), "left behind:\n{}", last.join("\n"));
}

async fn open_questions(tables: &mut Tables) -> Vec<String> {
    let mut open = Vec::new();
    for (what, question) in QUESTIONS {
        let count = tables.count(question).await;
        if count > 0 {
            open.push(format!("{count} {what}"));
        }
    }
    open
}
