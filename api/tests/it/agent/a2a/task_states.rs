//! Turning points of tasks: several runs of one task, runs of others on its thread, and what is kept of each.

use http::Method;
use serde_json::{Value, json};
use towpath_domain::agent::a2a::{Dialect, TaskId, TaskState};
use towpath_domain::{AssistantId, RunId};
use towpath_store::a2a_tasks::{self, TaskDetail, TaskRow};
use towpath_store::query::Query;
use towpath_store::{Error, a2a_push_configs};
use towpath_workflows::a2a;
use towpath_workflows::run_agent::POOL;

use super::{code, data, done, result, text};
use crate::agent::{Agent, on_both_databases};
use crate::world::{Call, call};

on_both_databases!(
    a_message_does_not_continue_a_task_that_moved_on,
    a_cancel_ends_all_runs_of_a_task,
    a_superseded_question_is_canceled_and_is_no_artifact,
    a_question_that_a_waiting_run_supersedes_is_never_asked,
    a_run_that_is_rolled_back_leaves_its_task,
    a_list_shows_a_task_whose_outcome_cannot_be_read,
    a_list_counts_on_its_first_page,
    a_push_job_names_the_task_and_is_dropped_when_it_moved_on,
    addresses_are_kept_of_tasks_that_are_there,
);

fn id_of(task: &Value) -> TaskId {
    TaskId::parse(task["id"].as_str().unwrap()).unwrap()
}

async fn row(agent: &Agent, graph: &str, task: &Value) -> TaskRow {
    let (assistant, id) = (AssistantId::of_graph(graph), id_of(task));
    agent
        .store
        .read(async |tx| a2a_tasks::get(tx, agent.tenant, assistant, id, TaskDetail::STATE).await)
        .await
        .unwrap()
}

/// A task whose run nobody performs yet; another run of `task` where it is given.
async fn begun(agent: &Agent, graph: &str, task: Option<&Value>) -> Value {
    let mut message = data(&json!({"log": []}));
    message["configuration"] = json!({"returnImmediately": true});
    if let Some(task) = task {
        message["message"]["taskId"] = task["id"].clone();
    }
    result(agent, graph, "SendMessage", &message).await["task"].clone()
}

async fn state(agent: &Agent, graph: &str, task: &Value) -> Value {
    let read = result(agent, graph, "GetTask", &json!({"id": task["id"]})).await;
    read["status"]["state"].clone()
}

/// The ids of the tasks in a state.
async fn listed(agent: &Agent, graph: &str, state: &str) -> Vec<Value> {
    let page = result(agent, graph, "ListTasks", &json!({"status": state})).await;
    let tasks = page["tasks"].as_array().unwrap();
    assert_eq!(page["totalSize"], tasks.len(), "{state}");
    tasks.iter().map(|task| task["id"].clone()).collect()
}

async fn number(agent: &Agent, query: &'static str) -> i64 {
    let counted = agent.store.read(async |tx| Query::new(tx, query).count(tx).await);
    counted.await.unwrap()
}

async fn a_message_does_not_continue_a_task_that_moved_on(agent: Agent) {
    let task = begun(&agent, "human", None).await;
    let go_on = async |before: &TaskRow| {
        let going = agent
            .store
            .write(async |tx| a2a::continue_task(tx, agent.tenant, before, RunId::new()).await);
        going.await
    };
    let submitted = row(&agent, "human", &task).await;
    assert_eq!(submitted.state, TaskState::Submitted);
    agent.perform(POOL).await;
    // It asks: a request for a run that was made before would lose the question.
    let asks = row(&agent, "human", &task).await;
    assert_eq!(asks.state, TaskState::InputRequired);
    assert!(matches!(go_on(&submitted).await, Err(Error::Stale)));
    let canceled = result(&agent, "human", "CancelTask", &json!({"id": task["id"]})).await;
    assert_eq!(canceled["status"]["state"], "TASK_STATE_CANCELED");
    assert!(matches!(go_on(&asks).await, Err(Error::Stale)));
    let over = row(&agent, "human", &task).await;
    assert!(matches!(go_on(&over).await, Err(Error::Stale)), "it is over");
}

async fn a_cancel_ends_all_runs_of_a_task(agent: Agent) {
    let task = begun(&agent, "slow", None).await;
    assert_eq!(begun(&agent, "slow", Some(&task)).await["id"], task["id"]);
    let canceled = result(&agent, "slow", "CancelTask", &json!({"id": task["id"]})).await;
    assert_eq!(canceled["status"]["state"], "TASK_STATE_CANCELED");
    let context = task["contextId"].as_str().unwrap();
    let runs = agent.get(&format!("/threads/{context}/runs")).await.expect(200);
    let stands: Vec<&Value> = runs.as_array().unwrap().iter().map(|run| &run["status"]).collect();
    assert_eq!(stands, ["interrupted", "interrupted"]);
}

async fn a_superseded_question_is_canceled_and_is_no_artifact(agent: Agent) {
    let first = done(&agent, "human", &data(&json!({"log": []}))).await;
    // Another task of the context.
    let mut other = data(&json!({"log": []}));
    other["message"]["contextId"] = first["contextId"].clone();
    let second = done(&agent, "human", &other).await;
    assert_eq!(second["status"]["state"], "TASK_STATE_INPUT_REQUIRED", "{second}");
    let read = result(&agent, "human", "GetTask", &json!({"id": first["id"]})).await;
    assert_eq!(read["status"]["state"], "TASK_STATE_CANCELED", "{read}");
    assert_eq!(read.get("artifacts"), None);
    assert_eq!(listed(&agent, "human", "input-required").await, [second["id"].clone()]);
    // A run that is no task.
    let run = json!({"assistant_id": "human", "input": {"log": []}});
    agent.record(id_of(&second).thread, &run).await;
    assert_eq!(state(&agent, "human", &second).await, "TASK_STATE_CANCELED");
    assert_eq!(listed(&agent, "human", "canceled").await.len(), 2);
    let mut answer = text("yes");
    answer["message"]["taskId"] = second["id"].clone();
    assert_eq!(code(&agent, "human", "SendMessage", &answer).await, -32004);
}

async fn a_question_that_a_waiting_run_supersedes_is_never_asked(agent: Agent) {
    let task = begun(&agent, "human", None).await;
    let run = json!({"assistant_id": "human", "input": {"log": []}});
    agent.record(id_of(&task).thread, &run).await;
    agent.perform(POOL).await;
    assert_eq!(state(&agent, "human", &task).await, "TASK_STATE_CANCELED");
}

async fn a_run_that_is_rolled_back_leaves_its_task(agent: Agent) {
    let roll_back = async |id: TaskId, run: RunId| {
        let path = format!("/threads/{}/runs/{run}/cancel?action=rollback", id.thread);
        let answer = call(&agent.router, Call::new(Method::POST, &path)).await;
        assert_eq!(answer.status, 202, "{}", answer.text);
    };
    let task = begun(&agent, "slow", None).await;
    begun(&agent, "slow", Some(&task)).await;
    let last = row(&agent, "slow", &task).await.run_id;
    roll_back(id_of(&task), last).await;
    assert_eq!(row(&agent, "slow", &task).await.run_id, id_of(&task).run);
    assert_eq!(state(&agent, "slow", &task).await, "TASK_STATE_SUBMITTED");
    roll_back(id_of(&task), id_of(&task).run).await;
    assert_eq!(state(&agent, "slow", &task).await, "TASK_STATE_CANCELED");
    assert_eq!(number(&agent, "SELECT count(*) FROM a2a_task_run").await, 0);
    // What a run brought stays where the run is deleted.
    let task = done(&agent, "echo", &text("hello")).await;
    let id = id_of(&task);
    let path = format!("/threads/{}/runs/{}", id.thread, id.run);
    assert_eq!(agent.delete(&path).await.status, 204);
    let read = result(&agent, "echo", "GetTask", &json!({"id": task["id"]})).await;
    assert_eq!(read["artifacts"], task["artifacts"]);
}

async fn a_list_shows_a_task_whose_outcome_cannot_be_read(agent: Agent) {
    let mut ids = Vec::new();
    for word in ["one", "two"] {
        ids.insert(0, done(&agent, "echo", &text(word)).await["id"].clone());
    }
    agent
        .store
        .write(async |tx| Query::new(tx, "UPDATE a2a_task SET outcome = '{'").execute(tx).await)
        .await
        .unwrap();
    let page = result(&agent, "echo", "ListTasks", &json!({"includeArtifacts": true})).await;
    let tasks = page["tasks"].as_array().unwrap();
    assert_eq!(
        tasks.iter().map(|task| &task["id"]).collect::<Vec<_>>(),
        [&ids[0], &ids[1]]
    );
    assert!(tasks.iter().all(|task| task.get("artifacts").is_none()));
}

async fn a_list_counts_on_its_first_page(agent: Agent) {
    for word in ["one", "two"] {
        done(&agent, "echo", &text(word)).await;
    }
    let first = result(&agent, "echo", "ListTasks", &json!({"pageSize": 1})).await;
    done(&agent, "echo", &text("three")).await;
    let more = json!({"pageSize": 1, "pageToken": first["nextPageToken"]});
    let second = result(&agent, "echo", "ListTasks", &more).await;
    assert_eq!((&first["totalSize"], &second["totalSize"]), (&json!(2), &json!(2)));
    let anew = result(&agent, "echo", "ListTasks", &json!({"pageSize": 1})).await;
    assert_eq!(anew["totalSize"], 3);
}

async fn a_push_job_names_the_task_and_is_dropped_when_it_moved_on(agent: Agent) {
    let mut message = data(&json!({"log": []}));
    message["configuration"] = json!({"taskPushNotificationConfig": {"url": "http://127.0.0.1:9/hook"}});
    let asks = done(&agent, "human", &message).await;
    let mut answer = text("secret answer");
    answer["message"]["taskId"] = asks["id"].clone();
    let ended = done(&agent, "human", &answer).await;
    assert_eq!(ended["status"]["state"], "TASK_STATE_COMPLETED", "{ended}");
    let jobs = "SELECT count(*) FROM job WHERE kind = 'send_push'";
    let with_content =
        "SELECT count(*) FROM job WHERE kind = 'send_push' AND (input LIKE '%secret%' OR input LIKE '%go on%')";
    assert_eq!((number(&agent, jobs).await, number(&agent, with_content).await), (2, 0));
    // The receiver is away, so a call that is made fails.
    let failed = "SELECT count(*) FROM job WHERE kind = 'send_push' AND failures > 0";
    agent.perform("webhooks").await;
    assert_eq!(
        number(&agent, failed).await,
        0,
        "nobody is told of a question that was answered"
    );
    agent.perform("webhooks").await;
    assert_eq!(number(&agent, failed).await, 1, "of the answer the receiver is told");
}

async fn addresses_are_kept_of_tasks_that_are_there(agent: Agent) {
    let task = begun(&agent, "slow", None).await;
    let config = json!({"taskId": task["id"], "url": "https://example.com/hook",
                        "authentication": {"scheme": "Bea\nrer", "credentials": "s3cret"}});
    assert_eq!(
        code(&agent, "slow", "CreateTaskPushNotificationConfig", &config).await,
        -32602
    );
    let older = json!({"taskId": task["id"], "pushNotificationConfig": {"url": "https://example.com/hook",
                       "authentication": {"schemes": ["Bea\nrer"]}}});
    assert_eq!(
        code(&agent, "slow", "tasks/pushNotificationConfig/set", &older).await,
        -32602
    );
    let nobody = a2a_push_configs::NewPushConfig {
        name: "mine".to_owned(),
        url: "https://example.com/hook".to_owned(),
        token: None,
        scheme: None,
        credentials: None,
        dialect: Dialect::V10,
    };
    let put = agent
        .store
        .write(async |tx| a2a_push_configs::put(tx, agent.tenant, RunId::new(), &nobody).await);
    assert!(matches!(put.await, Err(Error::NotFound)));
}
