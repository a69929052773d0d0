//! What a box must not see, do or use up, as its user and as its root: the security cases.
//!
//! Each case is blocked, or accepted with a reason. The suite prints how many there are of each. A page of the
//! documentation lists them: after a change, `TOWPATH_UPDATE=1` writes it again.

mod agent_api;
mod case;
mod exhaustion;
mod file_api;
mod kernel;
mod network;
mod processes;
mod proxied;
mod secrets;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;

use towpath_sandbox::{
    BoxAgent, BoxProxy, BoxSpec, Driver as _, ExecEvent, ExecRequest, Execution, Limits, VolumeMount,
};
use uuid::Uuid;

use crate::fixture::{SandboxFixture, as_root, prints, request, run};
use crate::network::{Internet, allow};
use case::{Case, HostFacts, Tally, observe, perform};

const LEAST_CASES: usize = 60;
const VOLUME_BYTES: u64 = 64 << 20;
const PAGE: &str = "docs/internals/sandbox-security.md";

#[tokio::test]
async fn every_case_is_blocked_or_accepted() {
    let Some(world) = SandboxFixture::new().await else {
        return;
    };
    let host = Host::new(&world);
    let (mut isolated, mut agent, mut limited, mut networked) =
        (Tally::default(), Tally::default(), Tally::default(), Tally::default());
    if !host.has_python(&world).await {
        eprintln!("skipped: the machine has no python3 in /usr");
        return;
    }
    tokio::join!(
        host.isolation(&world, &mut isolated),
        agent_api::perform(&world, host.port(), &mut agent),
        host.exhaustion(&world, &mut limited),
        host.proxy(&world, &mut networked),
    );
    for tally in [agent, limited, networked] {
        isolated.add(tally);
    }
    println!("{}", isolated.summary(world.driver.name(), users(&world)));
    assert!(isolated.failures.is_empty(), "{}", isolated.failures.join("\n"));
    assert!(isolated.blocked >= LEAST_CASES, "{isolated:?}");
}

/// A box of an account has no user but root.
fn users(world: &SandboxFixture) -> &'static [&'static str] {
    if world.has_users() {
        &["user", "root"]
    } else {
        &["root"]
    }
}

/// What boxes must not reach.
struct Host {
    facts: HostFacts,
    listener: TcpListener,
    _abstract_socket: UnixListener,
}

impl Host {
    fn new(world: &SandboxFixture) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let name = format!("towpath-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
        let secret = world.path("secret");
        std::fs::write(&secret, "secret").unwrap();
        let mut facts = HostFacts::default();
        for (fact, value) in [
            ("SECRET", secret.display().to_string()),
            ("FOLDER", world.path("boxes").display().to_string()),
            ("PROGRAM", "towpath-box".to_owned()),
            ("PID", std::process::id().to_string()),
            ("PORT", listener.local_addr().unwrap().port().to_string()),
            ("ABSTRACT", name),
            ("LONG", "x".repeat(5000)),
            ("HUGE", "x".repeat(200_000)),
        ] {
            facts.set(fact, value);
        }
        Self {
            facts,
            listener,
            _abstract_socket: UnixListener::bind_addr(&address).unwrap(),
        }
    }

    fn port(&self) -> u16 {
        self.listener.local_addr().unwrap().port()
    }

    async fn has_python(&self, world: &SandboxFixture) -> bool {
        let (handle, agent) = world.start(&world.spec(), 1).await;
        let found = run(&agent, &request("python3 -c pass")).await;
        world.driver.destroy(handle.id, 1).await.unwrap();
        found.exit_code == 0
    }

    /// The kernel, processes, the network, secrets and files.
    async fn isolation(&self, world: &SandboxFixture, tally: &mut Tally) {
        let users = users(world);
        let (other, _serving) = other_box(world).await;
        let mut spec = world.spec();
        spec.env.insert("OF_BOX".to_owned(), "known".to_owned());
        spec.mounts = vec![volume(world, "/data", false).await, volume(world, "/kept", true).await];
        let (handle, agent) = world.start(&spec, 1).await;
        prints(
            &agent,
            &as_root(
                "for path in /var/lib /data; do cp /usr/bin/id $path/set-user-id; chmod 4755 $path/set-user-id; done",
            ),
        )
        .await;
        prints(&agent, &as_root(file_api::SETUP_OF_ROOT)).await;
        for cases in [kernel::CASES, processes::CASES, network::CASES] {
            perform(&agent, users, &self.facts, cases, tally).await;
        }
        if cfg!(target_arch = "x86_64") {
            perform(&agent, users, &self.facts, kernel::X86_CASES, tally).await;
        }
        file_api::perform(&agent, users, &self.facts, &world.path("").display().to_string(), tally).await;
        if world.has_users() {
            file_api::swap_a_link(&agent, tally).await;
        } else {
            tally.skip(file_api::SWAP, "the box has no user but root");
        }
        let _secret = command_with_a_secret(&agent).await;
        perform(&agent, users, &self.facts, secrets::CASES, tally).await;
        agent.check_ready().await.unwrap();
        world.driver.destroy(handle.id, 1).await.unwrap();
        world.driver.destroy(other, 1).await.unwrap();
    }

    async fn exhaustion(&self, world: &SandboxFixture, tally: &mut Tally) {
        let can = &world.capabilities;
        if !(can.can_limit_memory && can.can_limit_processes && can.can_limit_cpu) {
            return tally.skip("exhaustion", &can.missing.join("; "));
        }
        let mut spec = world.spec();
        spec.limits = Limits {
            memory_bytes: Some(256 << 20),
            cpu_millis: Some(500),
            processes: Some(128),
            disk_bytes: None,
        };
        spec.mounts = vec![volume(world, "/data", false).await];
        let (handle, agent) = world.start(&spec, 1).await;
        perform(&agent, users(world), &self.facts, exhaustion::CASES, tally).await;
        if can.can_mount_images {
            perform(&agent, users(world), &self.facts, exhaustion::CASES_OF_VOLUMES, tally).await;
        } else {
            tally.skip("exhaustion of volumes", &can.missing.join("; "));
        }
        agent.check_ready().await.unwrap();
        world.driver.destroy(handle.id, 1).await.unwrap();
    }

    async fn proxy(&self, world: &SandboxFixture, tally: &mut Tally) {
        let internet = Internet::new().await;
        let spec = BoxSpec {
            has_proxy: true,
            ..world.spec()
        };
        let (handle, agent) = world.start(&spec, 1).await;
        let endpoint = world.driver.open_proxy(&handle).await.unwrap().unwrap();
        let proxy = BoxProxy::start(internet.settings(), endpoint, allow(&["api.test"])).unwrap();
        // Otherwise a proxy that refuses everything would pass.
        let open = observe(&agent, "root", "seen = tunnel('api.test:443')").await;
        assert_eq!(open, "200");
        perform(&agent, users(world), &self.facts, proxied::CASES, tally).await;
        assert!(internet.seen().is_empty(), "{:?}", internet.seen());
        drop(proxy);
        perform(&agent, users(world), &self.facts, proxied::CASES_WITHOUT_PROXY, tally).await;
        world.driver.destroy(handle.id, 1).await.unwrap();
    }
}

async fn volume(world: &SandboxFixture, path: &str, read_only: bool) -> VolumeMount {
    VolumeMount {
        source: world.driver.make_volume(Uuid::now_v7(), VOLUME_BYTES).await.unwrap(),
        path: path.to_owned(),
        read_only,
    }
}

/// A box that listens on a port and an abstract socket.
async fn other_box(world: &SandboxFixture) -> (Uuid, Execution) {
    let (other, agent) = world.start(&world.spec(), 1).await;
    let script = "import socket, time\nport = socket.create_server((\"127.0.0.1\", 4711))\n\
                  named = socket.socket(socket.AF_UNIX)\nnamed.bind(\"\\0other-box\")\nnamed.listen()\n\
                  print(\"ready\", flush=True)\ntime.sleep(1000)";
    let serve = request(&format!("exec python3 -c '{script}'"));
    (other.id, first_output(&agent, serve).await)
}

async fn command_with_a_secret(agent: &BoxAgent) -> Execution {
    let mut command = as_root("echo ready; sleep 1000; : argument-of-root");
    command.env.insert("OF_ROOT".to_owned(), "hidden".to_owned());
    first_output(agent, command).await
}

/// A command that has written something and runs on.
async fn first_output(agent: &BoxAgent, mut command: ExecRequest) -> Execution {
    command.timeout_seconds = 0;
    let mut execution = agent.execute(&command).await.unwrap();
    let first = execution.events.next().await.unwrap();
    assert!(matches!(first, Some(ExecEvent::Stdout { .. })), "{first:?}");
    execution
}

/// The name of a case, and why it is accepted.
type ListedCase = (&'static str, Option<&'static str>);

fn areas() -> Vec<(&'static str, Vec<ListedCase>)> {
    let listed = |cases: &[&'static [Case]]| {
        let cases = cases.iter().copied().flatten();
        cases.map(|case| (case.name, case.accepted)).collect()
    };
    let files = file_api::FILE_CASES.iter().map(|case| case.name);
    let unlisted = |name| (name, None);
    vec![
        ("Kernel", listed(&[kernel::CASES, kernel::X86_CASES])),
        ("Agent and other processes", listed(&[processes::CASES])),
        ("Network without a proxy", listed(&[network::CASES])),
        (
            "Network with a proxy",
            listed(&[proxied::CASES, proxied::CASES_WITHOUT_PROXY]),
        ),
        ("Files", files.chain([file_api::SWAP]).map(unlisted).collect()),
        ("Exhaustion", listed(&[exhaustion::CASES, exhaustion::CASES_OF_VOLUMES])),
        ("Secrets", listed(&[secrets::CASES])),
        ("Requests", agent_api::NAMES.into_iter().map(unlisted).collect()),
    ]
}

/// The list of cases on the page.
fn list() -> String {
    let mut text = String::new();
    for (area, cases) in areas() {
        let _ = write!(text, "\n### {area}\n\n");
        for (name, accepted) in cases {
            let _ = match accepted {
                Some(reason) => writeln!(text, "- {name} — accepted: {reason}"),
                None => writeln!(text, "- {name}"),
            };
        }
    }
    text
}

#[test]
fn names_of_cases_are_unique() {
    let mut names = BTreeSet::new();
    for (area, cases) in areas() {
        for (name, _) in cases {
            assert!(names.insert(name), "{area}: {name} is there twice");
        }
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "says that the page is to be written anew")]
fn the_page_lists_every_case() {
    const HEADING: &str = "\n## Cases\n";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(PAGE);
    let page = std::fs::read_to_string(&path).unwrap();
    let (before, _) = page.split_once(HEADING).expect("the page has the heading `Cases`");
    let expected = format!("{before}{HEADING}{}", list());
    if page != expected {
        let is_update = std::env::var_os("TOWPATH_UPDATE").is_some();
        assert!(is_update, "{PAGE} has other cases; TOWPATH_UPDATE=1 writes them");
        std::fs::write(path, expected).unwrap();
    }
}
