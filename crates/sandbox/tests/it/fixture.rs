//! A driver with a folder of its own, and short words for what tests do with boxes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use towpath_sandbox::{
    BoxAgent, BoxHandle, BoxSpec, Capabilities, Driver as _, Error, ExecEvent, ExecRequest, Execution, ImageSettings,
    Limits, NamespaceDriver, NamespaceSettings,
};
use uuid::Uuid;

/// Nothing else on a machine that tests has these ids.
const FIRST_USER: u32 = 1_700_000_000;

pub struct SandboxFixture {
    folder: TempDir,
    images: ImageSettings,
    pub driver: NamespaceDriver,
    pub capabilities: Capabilities,
    /// First processes of boxes that were started.
    pids: Mutex<Vec<i32>>,
}

/// How a command ended.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct CommandOutcome {
    pub stdout: String,
    pub stderr: String,
    pub exit_code: i32,
    pub timed_out: bool,
}

impl SandboxFixture {
    /// None where boxes cannot be started.
    pub async fn new() -> Option<Self> {
        Self::with_images(ImageSettings::default()).await
    }

    /// The same, with images of these registries.
    pub async fn with_images(images: ImageSettings) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let driver = open(&folder, images.clone());
        match driver.capabilities().await {
            Ok(capabilities) => Some(Self {
                folder,
                images,
                driver,
                capabilities,
                pids: Mutex::default(),
            }),
            Err(Error::Unsupported(why)) => {
                eprintln!("skipped: {why}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// A second platform on the same folder.
    pub fn reopen(&self) -> NamespaceDriver {
        open(&self.folder, self.images.clone())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn spec(&self) -> BoxSpec {
        BoxSpec {
            id: Uuid::now_v7(),
            hostname: "test-box".to_owned(),
            root: towpath_sandbox::RootFileSystem {
                base: "host".to_owned(),
                layers: Vec::new(),
            },
            fresh: false,
            user: None,
            work_dir: None,
            env: BTreeMap::new(),
            limits: Limits::default(),
            mounts: Vec::new(),
            has_proxy: false,
        }
    }

    pub async fn start(&self, spec: &BoxSpec, generation: u64) -> (BoxHandle, BoxAgent) {
        let handle = self.driver.start(spec, generation).await.unwrap();
        self.pids.lock().unwrap().push(handle.pid.unwrap());
        let agent = self.driver.agent(&handle);
        (handle, agent)
    }

    /// Whether boxes have users besides root.
    pub fn has_users(&self) -> bool {
        nix::unistd::geteuid().is_root()
    }
}

impl Drop for SandboxFixture {
    /// A test that failed leaves no box.
    fn drop(&mut self) {
        for pid in self.pids.lock().unwrap().drain(..) {
            let is_ours =
                std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(b"/run/towpath"));
            if is_ours {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
    }
}

fn open(folder: &TempDir, images: ImageSettings) -> NamespaceDriver {
    let settings = NamespaceSettings {
        root: folder.path().join("boxes"),
        program: env!("CARGO_BIN_EXE_towpath-box").into(),
        first_user: FIRST_USER,
        images,
    };
    NamespaceDriver::new(settings).unwrap()
}

pub fn request(command: &str) -> ExecRequest {
    ExecRequest::new(Uuid::now_v7().simple().to_string(), command)
}

pub fn as_root(command: &str) -> ExecRequest {
    ExecRequest {
        user: Some("root".to_owned()),
        ..request(command)
    }
}

/// Runs a command to its end.
pub async fn run(agent: &BoxAgent, request: &ExecRequest) -> CommandOutcome {
    finish(agent.execute(request).await.unwrap()).await
}

/// Everything a command still does.
pub async fn finish(mut execution: Execution) -> CommandOutcome {
    let mut outcome = CommandOutcome::default();
    while let Some(event) = execution.events.next().await.unwrap() {
        match event {
            ExecEvent::Stdout { data, .. } => outcome.stdout.push_str(std::str::from_utf8(&data).unwrap()),
            ExecEvent::Stderr { data, .. } => outcome.stderr.push_str(std::str::from_utf8(&data).unwrap()),
            ExecEvent::Exit { exit_code, timed_out } => {
                outcome.exit_code = exit_code;
                outcome.timed_out = timed_out;
            }
        }
    }
    outcome
}

/// What a command prints, of one that has to succeed.
pub async fn prints(agent: &BoxAgent, request: &ExecRequest) -> String {
    let outcome = run(agent, request).await;
    assert_eq!(outcome.exit_code, 0, "{outcome:?}");
    outcome.stdout
}
