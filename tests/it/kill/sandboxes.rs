//! The drill of sandboxes: Towpath dies at every named point of the jobs of a box, and Towpath, agents and launchers
//! die at random moments. Meanwhile a client makes boxes, runs commands, stops, wakes, captures and deletes.
//!
//! Afterwards every acknowledged line is in the volume that all boxes had in turn. Each command ran once, unless the
//! agent that knew it died. The machine has no process, mount, control group, loop device or folder of a box left.
//!
//! `TOWPATH_TEST_SANDBOX_KILLS` is the number of kills (default 10; each point and each kind of process is killed at
//! least once).

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::timeout;
use towpath_tests::{Api, Layout, Random, Reply, World, environment, until};

use super::{LEASE_SECONDS, bury, named_points, restart};
use crate::tables::Tables;

const DEFAULT_KILLS: u32 = 10;
/// A box whose agent was killed is noticed within a minute.
const PATIENCE: Duration = Duration::from_secs(240);
/// Cycles in which no process of a kind was met.
const MAX_MISSES: u32 = 30;
const BOXES: &str = "/v2/sandboxes/boxes";
const SNAPSHOTS: &str = "/v2/sandboxes/snapshots";
const VOLUMES: &str = "/v2/sandboxes/volumes";
/// The volume that every box has in turn.
const KEPT: &str = "kept";

#[tokio::test]
async fn boxes_survive_every_kill() {
    println!("{}", drill().await.unwrap_or_default());
}

/// The table of kills; `None` on a machine without sandboxes.
async fn drill() -> Option<String> {
    let wanted = environment("TOWPATH_TEST_SANDBOX_KILLS");
    let wanted: u32 = wanted.map_or(DEFAULT_KILLS, |text| text.parse().expect("a number of kills"));
    let plan = World::plan(Layout::Embedded)
        .env("TOWPATH_ENGINE_LEASE_SECONDS", LEASE_SECONDS.to_string())
        .env("TOWPATH_SANDBOXES_STOP_GRACE_SECONDS", "1");
    let world = plan.start().await?;
    if !has_sandboxes(&world.api).await {
        world.stop().await;
        return None;
    }
    let client = BoxClient {
        api: world.api.clone(),
        agent_kills: Rc::default(),
        ids: Rc::default(),
    };
    client.make_volume(KEPT).await;
    let mut drill = Drill {
        _leftovers: Leftovers(world.data()),
        world,
        client,
        dice: Random::new(5),
        kills: BTreeMap::new(),
        tokens: Vec::new(),
        cycles: 0,
    };
    let points = named_points(|name| name.starts_with("box."));
    for point in &points {
        drill.at_point(point).await;
    }
    restart(&mut drill.world, None).await;
    let mut misses = 0;
    while let Some(target) = drill.next_target(wanted) {
        if drill.at_random(target).await {
            misses = 0;
        } else {
            misses += 1;
            assert!(misses < MAX_MISSES, "no {} was met in {misses} cycles", target.name());
        }
    }
    let table = drill.table();
    let missed: Vec<&String> = points
        .iter()
        .filter(|point| !drill.kills.contains_key(*point))
        .collect();
    assert!(missed.is_empty(), "{table}\npoints that nobody died at: {missed:?}");
    drill.check_lines().await;
    nothing_is_left(&drill).await;
    drill.world.stop().await;
    Some(table)
}

/// Says aloud why a machine has none. One with user namespaces has to have them.
pub(super) async fn has_sandboxes(api: &Api) -> bool {
    let made = api.post(BOXES, &json!({"name": "probe"})).await;
    if made.status.is_success() {
        let gone = api.request(Method::DELETE, &format!("{BOXES}/probe"), None).await;
        gone.expect("the server is there").expect(204);
        return true;
    }
    let mut unshare = std::process::Command::new("unshare");
    let namespaces = unshare.args(["--user", "--map-root-user", "--mount", "true"]).output();
    let has_namespaces = namespaces.is_ok_and(|done| done.status.success());
    assert!(!has_namespaces, "this machine has user namespaces: {}", made.body);
    eprintln!("skipped: this machine has no sandboxes: {}", made.body);
    false
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KillTarget {
    Towpath,
    Agent,
    Launcher,
}

impl KillTarget {
    const ALL: [Self; 3] = [Self::Towpath, Self::Agent, Self::Launcher];

    const fn name(self) -> &'static str {
        match self {
            Self::Towpath => "towpath",
            Self::Agent => "agent",
            Self::Launcher => "launcher",
        }
    }

    /// Kills in one cycle. A start that fails twice is given up.
    const fn kills_per_cycle(self) -> u32 {
        match self {
            Self::Towpath => 3,
            Self::Agent => 2,
            Self::Launcher => 1,
        }
    }
}

struct Drill {
    // First: what it needs is gone with the world.
    _leftovers: Leftovers,
    world: World,
    client: BoxClient,
    dice: Random,
    /// By point or kind of process.
    kills: BTreeMap<String, u32>,
    tokens: Vec<Token>,
    cycles: u32,
}

impl Drill {
    /// What is to be killed next: the kind that died least.
    fn next_target(&self, wanted: u32) -> Option<KillTarget> {
        let died = |target: &KillTarget| self.kills.get(target.name()).copied().unwrap_or_default();
        let least = KillTarget::ALL.into_iter().min_by_key(died)?;
        (self.total() < wanted || died(&least) == 0).then_some(least)
    }

    fn total(&self) -> u32 {
        self.kills.values().sum()
    }

    fn count(&mut self, what: &str, kills: u32) {
        if kills > 0 {
            *self.kills.entry(what.to_owned()).or_default() += kills;
        }
    }

    /// Towpath dies when it comes to the point, and is started again unarmed.
    async fn at_point(&mut self, point: &str) {
        restart(&mut self.world, Some(format!("{point}:1"))).await;
        let mut work = pin!(self.cycle());
        let mut deaths = 0;
        let tokens = loop {
            deaths += bury(&mut self.world, true);
            if let Some(tokens) = self.tick(work.as_mut(), 30).await {
                break tokens;
            }
        };
        // The last deletions continue after their answers.
        until(&format!("a death at {point}"), PATIENCE, async || {
            deaths += bury(&mut self.world, true);
            (deaths > 0).then_some(())
        })
        .await;
        self.tokens.extend(tokens);
        self.count(point, deaths);
    }

    /// Kills processes of one kind at random moments of a cycle. Whether one was met.
    async fn at_random(&mut self, target: KillTarget) -> bool {
        Tables::of(&self.world).await.forgive().await;
        let mut work = pin!(self.cycle());
        let mut killed = 0;
        // Launchers live for milliseconds.
        let moment = if target == KillTarget::Launcher { 1 } else { 30 };
        let tokens = loop {
            bury(&mut self.world, false);
            if let Some(tokens) = self.tick(work.as_mut(), moment).await {
                break tokens;
            }
            if killed < target.kills_per_cycle() && self.kill(target).await {
                killed += 1;
            }
        };
        self.tokens.extend(tokens);
        self.count(target.name(), killed);
        self.world.revive().await;
        killed > 0
    }

    /// Kills a process of this kind, if there is one and its time has come.
    async fn kill(&mut self, target: KillTarget) -> bool {
        let data = self.world.data();
        match target {
            KillTarget::Towpath => {
                let process = &mut self.world.processes[0];
                let is_due = self.dice.one_in(40) && process.ended().is_none();
                if is_due {
                    process.kill().await;
                }
                is_due
            }
            KillTarget::Agent => {
                let is_killed = self.dice.one_in(20) && agents(&data).pop().is_some_and(kill_process);
                if is_killed {
                    let kills = &self.client.agent_kills;
                    kills.set(kills.get() + 1);
                }
                is_killed
            }
            KillTarget::Launcher => launchers(&data).pop().is_some_and(kill_process),
        }
    }

    fn cycle(&mut self) -> impl Future<Output = Vec<Token>> + use<> {
        self.cycles += 1;
        let (client, name) = (self.client.clone(), format!("drill-{}", self.cycles));
        async move { client.cycle(&name).await }
    }

    /// Lets the work continue for a moment of random length.
    async fn tick(&mut self, work: Pin<&mut impl Future<Output = Vec<Token>>>, most_ms: u64) -> Option<Vec<Token>> {
        let moment = Duration::from_millis(1 + self.dice.below(most_ms));
        timeout(moment, work).await.ok()
    }

    fn table(&self) -> String {
        let mut table = format!(
            "kill drill, sandboxes: {} cycles, {} lines\n| killed | kills |\n|---|---|\n",
            self.cycles,
            self.tokens.len()
        );
        for (what, kills) in &self.kills {
            table += &format!("| {what} | {kills} |\n");
        }
        table + &format!("| all | {} |", self.total())
    }

    /// Reads the volume in a last box, and removes both.
    async fn check_lines(&mut self) {
        self.world.revive().await;
        let id = self.client.make_box("last", &[KEPT]).await;
        let path = format!("/v2/sandboxes/dp/{id}/execute");
        let read = json!({"command": "cat /volumes/kept/lines", "timeout": 60});
        let read = self.client.api.post(&path, &read).await.expect(200);
        let text = read["stdout"].as_str().expect("the output is text");
        let mut found: BTreeMap<&str, u32> = BTreeMap::new();
        for line in text.lines() {
            *found.entry(line).or_default() += 1;
        }
        let (mut lost, mut doubled) = (Vec::new(), Vec::new());
        for token in &self.tokens {
            match found.remove(token.text.as_str()).unwrap_or_default() {
                0 => lost.push(&token.text),
                1 => {}
                _ if token.may_repeat => {}
                _ => doubled.push(&token.text),
            }
        }
        let table = self.table();
        assert!(lost.is_empty(), "{table}\nlost lines: {lost:?}");
        assert!(doubled.is_empty(), "{table}\ncommands that ran twice: {doubled:?}");
        assert!(found.is_empty(), "{table}\nlines that nobody wrote: {found:?}");
        self.client.remove(&format!("{BOXES}/last")).await;
        self.client.remove(&format!("{VOLUMES}/{KEPT}")).await;
    }
}

/// A line that was acknowledged.
struct Token {
    text: String,
    /// An agent was killed meanwhile, so that the next one did not know the command.
    may_repeat: bool,
}

/// A client that repeats every request until it is answered as it should be.
#[derive(Clone)]
struct BoxClient {
    api: Api,
    agent_kills: Rc<Cell<u32>>,
    /// Of all boxes.
    ids: Rc<RefCell<BTreeSet<String>>>,
}

impl BoxClient {
    /// The life of a box, through every job there is.
    async fn cycle(&self, name: &str) -> Vec<Token> {
        let path = format!("{BOXES}/{name}");
        self.make_volume(name).await;
        let id = self.make_box(name, &[KEPT, name]).await;
        let mut tokens = vec![self.append(&id, format!("{name}-first")).await];
        // One that has failed does not run either.
        let stopped = |reply: &Reply| reply.status.is_success() || reply.status == 400;
        self.ask(Method::POST, &format!("{path}/stop"), Some(&json!({})), None, stopped)
            .await;
        tokens.push(self.append(&id, format!("{name}-second")).await);
        let snapshot = self.capture(&id, name).await;
        tokens.push(self.append(&id, format!("{name}-third")).await);
        self.remove(&path).await;
        self.remove(&format!("{SNAPSHOTS}/{snapshot}")).await;
        self.remove(&format!("{VOLUMES}/{name}")).await;
        tokens
    }

    async fn make_volume(&self, name: &str) {
        let body = json!({"name": name, "size": "1Gi"});
        // The answer to an earlier attempt may be lost.
        let made = |reply: &Reply| reply.status == 201 || reply.status == 409;
        self.ask(Method::POST, VOLUMES, Some(&body), None, made).await;
    }

    /// The id of a box that runs, with these volumes at paths of their names.
    async fn make_box(&self, name: &str, volumes: &[&str]) -> String {
        let volumes: Vec<Value> = volumes
            .iter()
            .map(|volume| json!({"volume": volume, "mount_path": format!("/volumes/{volume}")}))
            .collect();
        let body = json!({"name": name, "idle_ttl_seconds": 0, "volumes": volumes});
        let path = format!("{BOXES}/{name}");
        let deadline = Instant::now() + PATIENCE;
        until(&path, PATIENCE * 2, async || {
            let found = self.api.request(Method::GET, &path, None).await.ok()?;
            let status = found.body["status"].as_str().unwrap_or_default();
            if status == "ready" {
                let id = found.body["id"].as_str().expect("a box has an id").to_owned();
                self.ids.borrow_mut().insert(id.clone());
                return Some(id);
            }
            let tried = match status {
                "failed" | "stopped" => self.start(&path).await,
                _ if found.status == 404 => self.api.request(Method::POST, BOXES, Some(&body)).await.ok(),
                _ => None,
            };
            assert!(Instant::now() < deadline, "{name} does not run: {found:?}, {tried:?}");
            None
        })
        .await
    }

    async fn start(&self, path: &str) -> Option<Reply> {
        let path = format!("{path}/start");
        self.api.request(Method::POST, &path, Some(&json!({}))).await.ok()
    }

    /// Adds a line to the volume, with a command that has one id however often it is sent.
    async fn append(&self, id: &str, text: String) -> Token {
        let before = self.agent_kills.get();
        let body = json!({
            "command": format!("echo {text} >> /volumes/kept/lines"), "command_id": text, "timeout": 60,
            "kill_on_disconnect": false,
        });
        let written = |reply: &Reply| reply.status == 200 && reply.body["exit_code"] == 0;
        let path = format!("/v2/sandboxes/dp/{id}/execute");
        self.ask(Method::POST, &path, Some(&body), Some(id), written).await;
        Token {
            text,
            may_repeat: before != self.agent_kills.get(),
        }
    }

    /// A snapshot that is over. Its box may have been killed during the capture.
    async fn capture(&self, id: &str, name: &str) -> String {
        let body = json!({"name": name});
        let path = format!("{BOXES}/{id}/snapshot");
        let made = |reply: &Reply| reply.status == 201;
        let made = self.ask(Method::POST, &path, Some(&body), Some(id), made).await;
        let snapshot = made.body["id"].as_str().expect("a snapshot has an id").to_owned();
        let over = |reply: &Reply| reply.body["status"] == "ready" || reply.body["status"] == "failed";
        let path = format!("{SNAPSHOTS}/{snapshot}");
        self.ask(Method::GET, &path, None, None, over).await;
        snapshot
    }

    async fn remove(&self, path: &str) {
        let gone = |reply: &Reply| reply.status.is_success() || reply.status == 404;
        self.ask(Method::DELETE, path, None, None, gone).await;
    }

    /// Repeats a request until its answer is `over`. A box that failed in between is started again.
    async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        sandbox: Option<&str>,
        over: impl Fn(&Reply) -> bool,
    ) -> Reply {
        let deadline = Instant::now() + PATIENCE;
        until(path, PATIENCE * 2, async || {
            let answered = self.api.request(method.clone(), path, body).await;
            if let Ok(reply) = &answered
                && over(reply)
            {
                return answered.ok();
            }
            assert!(Instant::now() < deadline, "{method} {path}: {answered:?}");
            if let Some(id) = sandbox {
                let own = format!("{BOXES}/{id}");
                let found = self.api.request(Method::GET, &own, None).await.ok()?;
                if found.body["status"] == "failed" {
                    self.start(&own).await;
                }
            }
            None
        })
        .await
    }
}

/// Waits until the machine has nothing of any box. The platform forgets boxes two comparisons after their end.
async fn nothing_is_left(drill: &Drill) {
    let (data, ids) = (drill.world.data(), drill.client.ids.borrow().clone());
    let deadline = Instant::now() + PATIENCE;
    until("the end of all boxes", PATIENCE * 2, async || {
        let left = leftovers(&data, &ids);
        assert!(
            left.is_empty() || Instant::now() < deadline,
            "left behind:\n{}",
            left.join("\n")
        );
        left.is_empty().then_some(())
    })
    .await;
}

fn leftovers(data: &Path, ids: &BTreeSet<String>) -> Vec<String> {
    let root = data.display().to_string();
    let names_box = |text: &str| text.contains(&root) || ids.iter().any(|id| text.contains(id.as_str()));
    let mut left = Vec::new();
    for pid in processes() {
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let command = command_line(pid);
        let is_launcher = command.get(1).is_some_and(|command| command.starts_with("box-"));
        if ids.iter().any(|id| groups.contains(id.as_str())) || (is_launcher && names_box(&command.join(" "))) {
            left.push(format!("process {pid}: {command:?}"));
        }
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts can be read");
    left.extend(
        mounts
            .lines()
            .filter(|line| names_box(line))
            .map(|line| format!("mount: {line}")),
    );
    for device in entries(Path::new("/sys/block")) {
        let file = fs::read_to_string(device.join("loop/backing_file")).unwrap_or_default();
        if names_box(&file) {
            left.push(format!("{}: {file}", device.display()));
        }
    }
    let mut groups = vec![(PathBuf::from("/sys/fs/cgroup"), 0)];
    while let Some((folder, depth)) = groups.pop() {
        for group in entries(&folder).into_iter().filter(|group| group.is_dir()) {
            if ids.iter().any(|id| group.display().to_string().contains(id.as_str())) {
                left.push(format!("control group {}", group.display()));
            } else if depth < 3 {
                groups.push((group, depth + 1));
            }
        }
    }
    for folder in ["boxes", "layers", "runs", "volumes"] {
        let found = entries(&data.join("sandboxes").join(folder));
        left.extend(found.iter().map(|entry| entry.display().to_string()));
    }
    left
}

/// What a folder contains; nothing if it is not there.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let found = fs::read_dir(folder).into_iter().flatten().flatten();
    found.map(|entry| entry.path()).collect()
}

fn processes() -> Vec<i32> {
    let names = entries(Path::new("/proc"));
    let numbers = names.iter().filter_map(|path| path.file_name()?.to_str()?.parse().ok());
    numbers.collect()
}

fn command_line(pid: i32) -> Vec<String> {
    let text = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = text.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// First processes of the boxes that run.
fn agents(data: &Path) -> Vec<i32> {
    let lives = entries(&data.join("sandboxes/runs"));
    let records = lives.iter().filter_map(|life| fs::read(life.join("record.json")).ok());
    let pids = records.filter_map(|record| {
        let record: Value = serde_json::from_slice(&record).ok()?;
        i32::try_from(record["pid"].as_i64()?).ok()
    });
    // The number may belong to another process by now.
    pids.filter(|pid| {
        command_line(*pid)
            .first()
            .is_some_and(|program| program == "/run/towpath/agent")
    })
    .collect()
}

/// Processes that are making a box.
fn launchers(data: &Path) -> Vec<i32> {
    let root = data.display().to_string();
    let is_launcher = |pid: &i32| {
        let command = command_line(*pid);
        let is_start = command
            .get(1)
            .is_some_and(|command| command == "box-launch" || command == "box-init");
        is_start && command.get(2).is_some_and(|folder| folder.starts_with(&root))
    };
    processes().into_iter().filter(is_launcher).collect()
}

fn kill_process(pid: i32) -> bool {
    kill(Pid::from_raw(pid), Signal::SIGKILL).is_ok()
}

/// Boxes outlive their platform: a drill that fails ends them.
pub(super) struct Leftovers(pub(super) PathBuf);

impl Drop for Leftovers {
    fn drop(&mut self) {
        for pid in agents(&self.0) {
            kill_process(pid);
        }
    }
}
