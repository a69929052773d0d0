//! Clients that are slow or say nothing, by the thousand.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::time::Duration;

use futures::future::join_all;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use towpath_tests::{Layout, Process, World};
use uuid::Uuid;

use super::cpu_lock::CpuLock;
use super::round::start;

/// Connections that never ask anything, where this machine lets a process have so many.
const IDLE: usize = 10_000;
/// Of each address. The server counts them by address, and one has fewer than it may.
const OF_ONE: usize = 1000;
/// Clients of each slow kind: many times the requests that are worked on at once.
const SLOW: usize = 100;
/// Who is not slow, and how often each of those asks.
const CLIENTS: usize = 4;
const QUESTIONS: usize = 20;
/// An answer that took longer is none.
const LIMIT: Duration = Duration::from_secs(25);
/// A head that is not whole after this long is held for ever: the server waits half a minute where it has room.
const HEAD_LIMIT: Duration = Duration::from_secs(35);
/// What the process may take for a connection, in KiB, and for everything else it does meanwhile, in MiB.
const CONNECTION_KIB: f64 = 64.0;
const OTHERS_MIB: f64 = 128.0;

/// All at once: connections without a request, heads and bodies of a byte a second, and answers that no one reads.
#[tokio::test]
async fn slow_and_silent_clients_keep_nobody_out() {
    let idle = IDLE.min(open_files().saturating_sub(1000));
    let plan = World::plan(Layout::Embedded).env("TOWPATH_HTTP_REQUESTS", "16");
    let mut world = start(plan).await.expect("the embedded world needs no server");
    let _turn = CpuLock::take().await;
    let to = world.processes[0].program().address.expect("it listens");
    // It is put together once, and what slow readers ask for.
    world.api.get("/openapi.json").await.expect(200);
    let before = memory_mib(&world.processes[0]);

    // Most of them first: where the server has few connections left it waits less long for the others.
    let most = idle / 5 * 3;
    let mut held = connections(to, 0..most).await;
    let heads = slow(to, "GET /ok HTTP/1.1\r\nhost: x\r\nx-slow: ");
    let bodies = slow(
        to,
        &asked(&world, "POST /runs/batch", "content-type: application/json\r\n", 1000),
    );
    let readers = join_all((0..SLOW).map(async |_| stalled(to).await)).await;
    let (rest, slowest) = tokio::join!(connections(to, most..idle), served(&world, to));
    held.extend(rest);

    let mut longest_head = Duration::ZERO;
    for head in heads {
        let lasted = timeout(HEAD_LIMIT, head).await;
        let lasted = lasted.expect("a head that does not come is waited for no longer than its limit");
        longest_head = longest_head.max(lasted.expect("a client does not panic"));
    }
    let after = memory_mib(&world.processes[0]);
    let allowed = before + OTHERS_MIB + CONNECTION_KIB / 1024.0 * (idle + 3 * SLOW) as f64;
    println!(
        "slow clients: {} of {IDLE} idle connections and {} that are slow; slowest other answer {:.1} s, longest head \
         {:.1} s, memory {before:.0} to {after:.0} MiB",
        held.len(),
        3 * SLOW,
        slowest.as_secs_f64(),
        longest_head.as_secs_f64(),
    );
    assert!(
        after < allowed,
        "{after} MiB are more than the {allowed} MiB of so many connections"
    );

    bodies.iter().for_each(JoinHandle::abort);
    drop((held, readers));
    let once_more = served(&world, to).await;
    assert!(once_more < LIMIT, "after all of them left");
    assert_eq!(world.processes[0].ended(), None, "the process lives");
    world.stop().await;
}

/// How many files this process and those it starts may have open, at the most they may.
fn open_files() -> usize {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a process knows its limits");
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).expect("a process may have what it may have");
    usize::try_from(hard).unwrap_or(usize::MAX)
}

fn memory_mib(process: &Process) -> f64 {
    let pid = process.pid().expect("it runs");
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the system tells");
    let kib = status.lines().find_map(|line| {
        line.strip_prefix("VmRSS:")?
            .trim()
            .strip_suffix(" kB")?
            .parse::<f64>()
            .ok()
    });
    kib.expect("a running process has memory") / 1024.0
}

async fn connect(from: Ipv4Addr, to: SocketAddr, socket: TcpSocket) -> std::io::Result<TcpStream> {
    socket.bind(SocketAddr::from((from, 0)))?;
    timeout(LIMIT, socket.connect(to)).await?
}

/// Connections that ask nothing, of several addresses. Some may end, or never begin: the server has as many as it can
/// have.
async fn connections(to: SocketAddr, numbers: Range<usize>) -> Vec<TcpStream> {
    let all = join_all(numbers.map(async |number| {
        let of = u8::try_from(1 + number / OF_ONE).expect("a few addresses");
        let socket = TcpSocket::new_v4().expect("the limit of open files was asked for");
        timeout(
            Duration::from_secs(5),
            connect(Ipv4Addr::new(127, 0, 1, of), to, socket),
        )
        .await
    }));
    all.await.into_iter().filter_map(|made| made.ok()?.ok()).collect()
}

/// Clients that send a beginning, and then a byte a second. Each tells how long it took until the server was tired of
/// it.
fn slow(to: SocketAddr, beginning: &str) -> Vec<JoinHandle<Duration>> {
    let one = move |beginning: String| async move {
        let socket = TcpSocket::new_v4().expect("the limit of open files was asked for");
        let stream = connect(Ipv4Addr::new(127, 0, 2, 1), to, socket).await;
        let mut stream = stream.expect("the server takes connections");
        let begun = Instant::now();
        let mut sent = stream.write_all(beginning.as_bytes()).await;
        let mut answer = [0; 512];
        while sent.is_ok() {
            let read = timeout(Duration::from_secs(1), stream.read(&mut answer)).await;
            if read.is_ok() {
                break;
            }
            sent = stream.write_all(b"x").await;
        }
        begun.elapsed()
    };
    (0..SLOW).map(|_| tokio::spawn(one(beginning.to_owned()))).collect()
}

/// A client that asks for much and reads nothing.
async fn stalled(to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("the limit of open files was asked for");
    socket.set_recv_buffer_size(4096).expect("a socket has a buffer");
    let stream = connect(Ipv4Addr::new(127, 0, 2, 2), to, socket).await;
    let mut stream = stream.expect("the server takes connections");
    let request = "GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n".repeat(4);
    stream.write_all(request.as_bytes()).await.expect("requests are small");
    stream
}

/// The head of a request of the world's workspace.
fn asked(world: &World, line: &str, headers: &str, length: usize) -> String {
    let [(key, of), (tenant, id)] = world.api.credentials();
    format!("{line} HTTP/1.1\r\nhost: x\r\n{key}: {of}\r\n{tenant}: {id}\r\n{headers}content-length: {length}\r\n\r\n")
}

/// Clients that do as they should, each on a new connection for every question. How long the slowest answer took.
async fn served(world: &World, to: SocketAddr) -> Duration {
    let slowest = join_all((0..CLIENTS).map(async |_| {
        let mut slowest = Duration::ZERO;
        for _ in 0..QUESTIONS {
            let id = Uuid::now_v7();
            let run = json!({"id": id, "trace_id": id, "name": "slow clients", "run_type": "chain",
                             "session_name": "slow clients", "start_time": "2026-03-01T12:00:00Z",
                             "dotted_order": format!("20260301T120000000000Z{id}")})
            .to_string();
            let headers = "connection: close\r\ncontent-type: application/json\r\n";
            for (request, expected) in [
                (asked(world, "GET /sessions", headers, 0), "HTTP/1.1 200"),
                (asked(world, "POST /runs", headers, run.len()) + &run, "HTTP/1.1 202"),
            ] {
                let begun = Instant::now();
                let answer = timeout(LIMIT, answer(to, &request)).await;
                let answer = answer.expect("an answer in time").expect("a connection that lasts");
                assert!(answer.starts_with(expected), "{answer}");
                slowest = slowest.max(begun.elapsed());
            }
            sleep(Duration::from_millis(50)).await;
        }
        slowest
    }));
    slowest.await.into_iter().max().unwrap_or_default()
}

async fn answer(to: SocketAddr, request: &str) -> std::io::Result<String> {
    let mut stream = connect(Ipv4Addr::LOCALHOST, to, TcpSocket::new_v4()?).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}
