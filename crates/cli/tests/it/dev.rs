//! `towpath dev` as a process.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};

use crate::{err, run, towpath};

/// A server that is stopped when it is dropped.
pub struct Server {
    child: Child,
    /// Kept open: a server whose output is closed cannot print any more.
    _output: BufReader<ChildStdout>,
    pub url: String,
    pub key: String,
    pub tenant: String,
}

impl Server {
    /// Starts a server and reads the banner that it prints when it is ready.
    pub fn start(folder: &Path) -> Self {
        Self::start_with(folder, &[])
    }

    /// The same with more arguments.
    pub fn start_with(folder: &Path, more: &[&str]) -> Self {
        let usual = [
            "dev",
            "--listen",
            "127.0.0.1:0",
            "--agent-listen",
            "127.0.0.1:0",
            "--data-dir",
            "data",
        ];
        let mut child = towpath(folder, &[&usual[..], more].concat())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut field = |name: &str| loop {
            let mut line = String::new();
            assert_ne!(
                output.read_line(&mut line).unwrap(),
                0,
                "the server ended before it printed {name}"
            );
            if let Some(value) = line.trim().strip_prefix(name) {
                return value.split_whitespace().next().unwrap().to_owned();
            }
        };
        let url = field("reference").replace("/docs", "");
        let key = field("X-API-Key");
        let tenant = field("X-Tenant-Id");
        Self {
            child,
            _output: output,
            url,
            key,
            tenant,
        }
    }

    /// GET with the printed key and workspace; returns status and body.
    pub fn get(&self, path: &str) -> (u16, String) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let http = reqwest::Client::builder()
                .no_proxy()
                .tls_built_in_root_certs(false)
                .build()
                .unwrap();
            let request = http.get(format!("{}{path}", self.url)).header("x-api-key", &self.key);
            let answer = request.header("x-tenant-id", &self.tenant).send().await.unwrap();
            (answer.status().as_u16(), answer.text().await.unwrap())
        })
    }

    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        let pid = nix::unistd::Pid::from_raw(self.child.id().try_into().unwrap());
        nix::sys::signal::kill(pid, signal).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn dev_serves_with_the_pair_it_prints_and_keeps_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::start(folder.path());
    assert_eq!(server.get("/readyz").0, 200);
    assert_eq!(server.get("/api/v1/sessions").0, 200);
    let metrics = server.get("/metrics").1;
    assert!(metrics.contains("towpath_http_requests_total"), "{metrics}");

    let second = run(
        folder.path(),
        &[
            "dev",
            "--listen",
            "127.0.0.1:0",
            "--agent-listen",
            "127.0.0.1:0",
            "--data-dir",
            "data",
        ],
    );
    assert_eq!(second.status.code(), Some(1));
    let pid = server.child.id();
    assert!(err(&second).contains(&format!("(process {pid})")), "{}", err(&second));

    server.signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(server.child.wait().unwrap().code(), Some(0), "SIGTERM drains");
    let (key, tenant) = (server.key.clone(), server.tenant.clone());
    let again = Server::start(folder.path());
    assert_eq!((&again.key, &again.tenant), (&key, &tenant));
    assert_eq!(again.get("/api/v1/sessions").0, 200);
}
