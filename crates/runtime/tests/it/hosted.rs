//! Children and their pool, with a child that runs no Python.

mod fake;
mod isolation;
mod questions;

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use towpath_runtime::hosted::{self, Launch, Options, Pool, StartError};
use towpath_runtime::memory::MemoryHost;
use towpath_runtime::{Execution, Finish, GraphError, GraphSet, Graphs};
use uuid::Uuid;

struct TestPool {
    graphs: GraphSet,
    _sockets: tempfile::TempDir,
}

fn launch(config: &Value, sockets: &std::path::Path) -> Launch {
    Launch {
        program: std::env::current_exe().unwrap(),
        arguments: [
            "--exact",
            "hosted::fake::child",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ]
        .map(Into::into)
        .to_vec(),
        fork_argument: None,
        environment: [].into(),
        clean: false,
        folder: sockets.to_owned(),
        config: config.to_string(),
        graphs: None,
        http: false,
        sockets: sockets.to_owned(),
        start_timeout: Duration::from_secs(60),
    }
}

fn quick() -> Options {
    Options {
        ping_every: Duration::from_millis(20),
        blocked_after: Duration::from_millis(500),
        cancel_grace: Duration::from_millis(200),
        ..Options::default()
    }
}

/// A caller that is cancelled here stops by itself, however long a busy machine takes over it.
fn patient() -> Options {
    Options {
        cancel_grace: Duration::from_secs(60),
        ..quick()
    }
}

impl TestPool {
    async fn start(options: Options) -> Self {
        let sockets = tempfile::tempdir().unwrap();
        let pool = Pool::start(launch(&json!({}), sockets.path()), options).await.unwrap();
        Self {
            graphs: GraphSet::new(Graphs::default().with_hosts(pool)),
            _sockets: sockets,
        }
    }

    fn pool(&self) -> Arc<Pool> {
        self.graphs.current().host_pool().unwrap().clone()
    }

    async fn on(&self, host: &MemoryHost, input: Value) -> Result<Finish, GraphError> {
        let graph = self.graphs.get("agent").unwrap();
        let execution = Execution::new(Uuid::from_u128(1), Uuid::from_u128(2), Some(input));
        graph.run(&execution, host).await
    }

    async fn run(&self, input: Value) -> Result<Finish, GraphError> {
        self.on(&MemoryHost::new(), input).await
    }

    /// Starts a run and waits for its first event.
    async fn begin(&self, input: Value) -> StartedRun {
        self.begin_after(0, input).await
    }

    /// The same with a run whose process ended so often with others in it.
    async fn begin_after(&self, shared_crashes: u32, input: Value) -> StartedRun {
        let host = Arc::new(MemoryHost::new());
        let graph = self.graphs.get("agent").unwrap();
        let run = tokio::spawn({
            let host = host.clone();
            async move {
                let mut execution = Execution::new(Uuid::from_u128(1), Uuid::from_u128(2), Some(input));
                execution.shared_crashes = shared_crashes;
                graph.run(&execution, &*host).await
            }
        });
        while host.take_chunks().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        StartedRun { host, run }
    }
}

struct StartedRun {
    host: Arc<MemoryHost>,
    run: tokio::task::JoinHandle<Result<Finish, GraphError>>,
}

fn pid(finish: &Finish) -> i64 {
    finish.values["pid"].as_i64().unwrap()
}

#[tokio::test]
async fn a_run_goes_to_a_child_and_comes_back() {
    let set = TestPool::start(quick()).await;
    let finish = set.run(json!({"do": "echo"})).await.unwrap();
    assert_eq!(i64::from(set.pool().children()[0].0), pid(&finish));
    assert_eq!(finish.values["attempt"], 1);
}

#[tokio::test]
async fn what_a_run_saves_it_finds_again() {
    let set = TestPool::start(quick()).await;
    let finish = set.run(json!({"do": "save"})).await.unwrap();
    let found = json!({"id": "1", "blob": [0xc1, 0], "writes": 1, "channel": "y"});
    assert_eq!(finish.values["found"], found);
}

#[tokio::test]
async fn a_child_that_dies_takes_its_run_along_and_another_goes_on_where_it_was() {
    let set = TestPool::start(quick()).await;
    let first = pid(&set.run(json!({})).await.unwrap());
    let host = MemoryHost::new();
    let lost = set.on(&host, json!({"do": "save and crash"})).await.unwrap_err();
    assert!(lost.retry, "{lost}");
    assert!(lost.message.contains("status 70"), "{lost}");
    // What was acknowledged is there for the next attempt.
    let finish = set.on(&host, json!({"do": "save and crash"})).await.unwrap();
    assert_eq!(finish.values, json!({"resumed at": "1"}));
    let lost = set.run(json!({"do": "crash"})).await.unwrap_err();
    assert!(lost.message.contains("last words of the child"), "{lost}");
    assert_ne!(pid(&set.run(json!({})).await.unwrap()), first);
}

#[tokio::test]
async fn what_the_code_raises_is_the_runs_error_and_carries_its_traceback() {
    let set = TestPool::start(quick()).await;
    let raised = set.run(json!({"do": "raise"})).await.unwrap_err();
    assert_eq!((raised.class.as_str(), raised.retry), ("ValueError", false));
    assert!(raised.traceback.unwrap().contains("line 3"));
}

#[tokio::test]
async fn a_cancelled_run_ends_and_its_child_stays() {
    let set = TestPool::start(patient()).await;
    let begun = set.begin(json!({"do": "wait"})).await;
    let before = set.pool().children()[0].0;
    begun.host.cancel();
    assert!(begun.run.await.unwrap().unwrap_err().is_cancelled());
    assert_eq!(i64::from(before), pid(&set.run(json!({})).await.unwrap()));
}

/// Waits until a process is gone.
async fn gone(pid: i32) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while std::path::Path::new(&format!("/proc/{pid}/stat")).exists() {
        assert!(Instant::now() < deadline, "waited for the end of the process {pid}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn of_a_command_that_is_saved_only_the_answer_is_given_again() {
    let set = TestPool::start(quick()).await;
    let graph = set.graphs.get("agent").unwrap();
    let host = MemoryHost::new();
    // The child is recognised by the input what to do, and is sent none beside a command.
    let told = json!({"update": {"do": "x"}, "resume": "yes", "goto": ["n"]});
    let mut execution = Execution::new(Uuid::from_u128(1), Uuid::from_u128(2), None);
    execution.command = Some(serde_json::from_value(told).unwrap());
    execution.is_retry = true;
    let first = graph.run(&execution, &host).await.unwrap().values;
    assert_eq!(
        first,
        json!({"command": {"update": {"do": "x"}, "resume": "yes", "goto": ["n"]}, "repeated": true})
    );
    execution.command_saved = true;
    let again = graph.run(&execution, &host).await.unwrap().values;
    assert_eq!(again, json!({"command": {"resume": "yes"}, "repeated": true}));
    execution.command.as_mut().unwrap().resume = None;
    execution.input = Some(json!({"do": "raise"}));
    let goes_on = graph.run(&execution, &host).await.unwrap().values;
    assert_eq!(goes_on, json!({"command": null, "repeated": true}));
}

#[tokio::test]
async fn a_run_that_is_given_up_frees_its_place() {
    let set = TestPool::start(Options { slots: 1, ..quick() }).await;
    let begun = set.begin(json!({"do": "wait"})).await;
    begun.run.abort();
    // The child hears of it, and its only place is free.
    assert!(set.run(json!({})).await.is_ok());
    let begun = set.begin(json!({"do": "hang"})).await;
    begun.run.abort();
    assert!(set.run(json!({})).await.is_ok());
}

#[tokio::test]
async fn a_child_is_replaced_after_its_runs() {
    let set = TestPool::start(Options { max_runs: 2, ..quick() }).await;
    let first = pid(&set.run(json!({})).await.unwrap());
    let mut last = first;
    while last == first {
        last = pid(&set.run(json!({})).await.unwrap());
    }
}

#[tokio::test]
async fn a_blocked_child_keeps_its_run_and_gets_no_other() {
    let set = TestPool::start(patient()).await;
    let blocked = set.begin(json!({"do": "block"})).await;
    let first = set.pool().children()[0].0;
    // Its next answer to a ping tells.
    loop {
        let finish = set.run(json!({})).await.unwrap();
        if pid(&finish) != i64::from(first) {
            break;
        }
    }
    assert!(!blocked.run.is_finished());
    blocked.host.cancel();
    assert_eq!(pid(&blocked.run.await.unwrap().unwrap()), i64::from(first));
}

#[tokio::test]
async fn a_child_that_stood_in_for_a_blocked_one_ends_though_it_has_work() {
    let idle_after = Duration::from_millis(500);
    let set = TestPool::start(Options {
        idle_after,
        ..patient()
    })
    .await;
    let blocked = set.begin(json!({"do": "block"})).await;
    let first = set.pool().children()[0].0;
    while pid(&set.run(json!({})).await.unwrap()) == i64::from(first) {}
    blocked.host.cancel();
    blocked.run.await.unwrap().unwrap();
    // Two at a time: as long as there are two children, each of them has a run.
    while set.pool().children().iter().map(|(pid, _)| *pid).ne([first]) {
        let (one, other) = tokio::join!(set.run(json!({})), set.run(json!({})));
        one.unwrap();
        other.unwrap();
    }
}

#[tokio::test]
async fn isolated_runs_have_a_child_each() {
    let set = TestPool::start(quick().isolated(2)).await;
    let first = set.begin(json!({"do": "wait"})).await;
    let second = set.begin(json!({"do": "wait"})).await;
    let children = set.pool().children();
    assert_eq!(children.iter().map(|(_, runs)| *runs).collect::<Vec<_>>(), [1, 1]);
    first.host.cancel();
    second.host.cancel();
    assert!(first.run.await.unwrap().is_err());
    assert!(second.run.await.unwrap().is_err());
}

#[tokio::test]
async fn a_child_sends_no_more_than_it_may() {
    let set = TestPool::start(quick()).await;
    let host = MemoryHost::new();
    let finish = set.on(&host, json!({"do": "pour", "bytes": 20 << 20})).await.unwrap();
    let bytes: usize = host.take_chunks().iter().map(|chunk| chunk.data.len()).sum();
    assert_eq!(bytes, 20 << 20);
    // It went as far as its credit, which came back in time.
    assert!(finish.values["least"].as_i64().unwrap() > -(1 << 17));
}

#[tokio::test]
async fn a_load_error_says_where_and_what_to_do() {
    let sockets = tempfile::tempdir().unwrap();
    let broken = Pool::start(launch(&json!({"broken": true}), sockets.path()), quick()).await;
    let error = broken.unwrap_err();
    assert!(matches!(error, StartError::Load(_)));
    let text = error.to_string();
    for part in ["\"agent\"", "nowhere", "agent.py, line 3", "dependencies"] {
        assert!(text.contains(part), "{text}");
    }
    let mut missing = launch(&json!({}), sockets.path());
    missing.program = "/nowhere/python".into();
    let error = Pool::start(missing, quick()).await.unwrap_err();
    assert!(error.to_string().contains("/nowhere/python"), "{error}");
}

#[tokio::test]
async fn a_swap_lets_runs_end_where_they_began() {
    let set = TestPool::start(quick()).await;
    let before = set.begin(json!({"do": "wait"})).await;
    let old = set.pool().children()[0].0;
    let sockets = tempfile::tempdir().unwrap();
    let pool = Pool::start(launch(&json!({}), sockets.path()), quick()).await.unwrap();
    let replaced = set.graphs.replace(Graphs::default().with_hosts(pool));
    assert_ne!(pid(&set.run(json!({})).await.unwrap()), i64::from(old));
    assert_eq!(replaced.host_pool().unwrap().children(), [(old, 1)]);
    drop(replaced);
    assert!(!before.run.is_finished());
    before.host.cancel();
    assert!(before.run.await.unwrap().unwrap_err().is_cancelled());
    // No one holds the old set any more: its child goes.
    gone(old).await;
}

#[test]
fn frames_are_taken_whole() {
    use bytes::BytesMut;
    use hosted::frame::{FrameError, FrameType, encode, encode_map, parse_frame};
    let bytes = encode(FrameType::CHUNK, 7, b"abc").unwrap();
    let mut buffer = BytesMut::new();
    for byte in &bytes[..bytes.len() - 1] {
        buffer.extend_from_slice(&[*byte]);
        assert_eq!(parse_frame(&mut buffer, 1024), Ok(None));
    }
    buffer.extend_from_slice(&bytes[bytes.len() - 1..]);
    buffer.extend_from_slice(&encode(FrameType::DONE, 8, b"").unwrap());
    let frame = parse_frame(&mut buffer, 1024).unwrap().unwrap();
    assert_eq!(
        (frame.r#type, frame.stream, &frame.payload[..]),
        (FrameType::CHUNK, 7, &b"abc"[..])
    );
    let frame = parse_frame(&mut buffer, 1024).unwrap().unwrap();
    assert_eq!(
        (frame.r#type, frame.stream, frame.payload.len()),
        (FrameType::DONE, 8, 0)
    );
    let mut long = BytesMut::from(&[0, 1, 0, 0][..]);
    assert_eq!(parse_frame(&mut long, 1024), Err(FrameError::TooLong(65536)));
    let mut short = BytesMut::from(&[0, 0, 0, 1][..]);
    assert_eq!(parse_frame(&mut short, 1024), Err(FrameError::TooShort(1)));
    // A map is written as it would be apart, and no further than allowed.
    let map = json!({"call": 1, "value": "x".repeat(100)});
    let payload = hosted::message::write(&map);
    let whole = encode(FrameType::REPLY, 9, &payload).unwrap();
    assert_eq!(encode_map(FrameType::REPLY, 9, &map, whole.len()), Ok(whole.clone()));
    let most = whole.len() - 1;
    assert_eq!(encode_map(FrameType::REPLY, 9, &map, most), Err(FrameError::Over(most)));
}
