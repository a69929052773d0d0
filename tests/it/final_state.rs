//! What the tables have to say when everything is over: nothing stranded, no business row left running by a job that is
//! over, no place held by no one.

use std::time::Duration;

use towpath_tests::{World, until};

use crate::tables::Tables;

/// What must not be there when work has come to rest. The same text runs on both databases.
const AT_REST: [(&str, &str); 8] = [
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
        "jobs at work",
        "SELECT count(*) FROM job WHERE state IN ('ready', 'running', 'waiting', 'blocked')",
    ),
    (
        "jobs that ended badly",
        "SELECT count(*) FROM job WHERE state IN ('failed', 'timed_out') OR dead",
    ),
    // The scheduler mends a chain that broke.
    (
        "schedules that nobody spawns for",
        "SELECT count(*) FROM schedule s JOIN job j ON j.id = s.spawn_job
         WHERE j.finished_at IS NOT NULL AND s.ended_at IS NULL",
    ),
    ("pins that nobody holds", "SELECT count(*) FROM segment_pin"),
    ("uploads that nobody will finish", "SELECT count(*) FROM export_upload"),
];

/// What jobs that ended badly were, and why.
const BADLY: &str =
    "SELECT kind || ' ' || state || ' after ' || attempt || ' attempts, ' || lost_leases || ' lost leases: '
                            || coalesce(error, '') FROM job WHERE state IN ('failed', 'timed_out') OR dead";

/// What must not be there at any moment: see the file.
fn orphans() -> Vec<(&'static str, &'static str)> {
    let questions = include_str!("../orphans.sql").split("\n-- ").skip(1);
    let found: Vec<_> = questions
        .filter_map(|question| question.split_once('\n'))
        .filter(|(_, statement)| statement.starts_with("SELECT"))
        .collect();
    assert_eq!(found.len(), 9, "{found:?}");
    found
}

/// Waits until every question is answered with 0.
///
/// # Panics
/// With the questions that are not, when time is up, and the jobs that ended badly.
pub async fn settles(world: &World) {
    let mut last = vec!["not one look at the tables was over in time".to_owned()];
    // No bar: worlds that share a thread look while others compute.
    let limit = Duration::from_secs(300);
    let quiet = tokio::time::timeout(
        limit,
        until("the tables to come to rest", limit * 2, async || {
            last = open_questions(world).await;
            last.is_empty().then_some(())
        }),
    )
    .await;
    if quiet.is_err() {
        for (name, mut tables) in Tables::all(world).await {
            let badly = tables.texts(BADLY).await;
            last.extend(badly.into_iter().map(|job| format!("{job} ({name})")));
        }
        panic!("left behind:\n{}", last.join("\n"));
    }
}

/// Fails when rows were left behind by jobs that are over, whatever else continues.
///
/// # Panics
/// With what was left.
pub async fn leaves_no_orphans(world: &World) {
    let left = answers(world, &orphans()).await;
    assert!(left.is_empty(), "left behind:\n{}", left.join("\n"));
}

async fn open_questions(world: &World) -> Vec<String> {
    // Whatever is still at work, this must not be: a world that comes to rest later does not excuse it.
    leaves_no_orphans(world).await;
    answers(world, &AT_REST).await
}

/// The questions that are not answered with 0.
async fn answers(world: &World, questions: &[(&str, &'static str)]) -> Vec<String> {
    let mut left = Vec::new();
    for (name, mut tables) in Tables::all(world).await {
        for &(what, question) in questions {
            let count = tables.count(question).await;
            if count > 0 {
                left.push(format!("{count} {what} ({name})"));
            }
        }
    }
    left
}
