//! Runs on threads that their caller may not see.

use serde_json::json;
use towpath_domain::agent::{Object, RunRequest};
use towpath_domain::{AssistantId, RunId, ThreadId};
use towpath_store::assistants;
use towpath_store::runs::Run;
use towpath_workflows::agent::EVENT_RETENTION;
use towpath_workflows::run_agent::{self, NewRun, Target};

use crate::server::Server;

/// Records a run for the user of this name, who only sees their own threads.
async fn start(server: &Server, thread: ThreadId, owner: &str) -> towpath_store::Result<Run> {
    let request = json!({"assistant_id": "steps", "if_not_exists": "create", "metadata": {"owner": owner}});
    let request: RunRequest = serde_json::from_value(request).unwrap();
    let admitted = request.admit(false).unwrap();
    let visible = Object::from_iter([("owner".to_owned(), json!(owner))]);
    let recorded = server.store().write(async |tx| {
        let assistant = assistants::get(tx, server.tenant, AssistantId::of_graph("steps")).await?;
        let new = NewRun {
            id: RunId::new(),
            thread: Target::Existing(thread),
            assistant: &assistant,
            admitted,
            headers: Object::new(),
            user: None,
            cron: None,
            events_kept: EVENT_RETENTION,
            ttl: None,
        };
        run_agent::start_visible(tx, server.tenant, new, &visible).await
    });
    recorded.await
}

/// A request to create a thread may find one that was created since the request was authorized.
#[tokio::test]
async fn a_thread_of_another_user_is_a_missing_one_also_when_it_came_meanwhile() {
    let server = Server::new().await;
    let thread = ThreadId::new();
    let made = start(&server, thread, "ann").await.unwrap();
    let refused = start(&server, thread, "bob").await.unwrap_err();
    assert_eq!(refused.to_string(), "Thread or assistant not found.");
    assert_eq!(server.count("SELECT count(*) FROM run").await, 1, "{}", made.id);
    start(&server, thread, "ann").await.unwrap();
}
