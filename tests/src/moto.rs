//! An S3 speaker that is not ours: moto, from the Python environment of the test script.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::{Child, Command};

use crate::{environment, free_address, until};

/// It asks whether a caller signed, and not whether the signature fits.
const SIGNED: &str =
    "AWS4-HMAC-SHA256 Credential=anybody/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0";

/// A private S3 with one bucket, in memory. It takes any key; the Python suite has one that does not. Dropping it
/// ends it.
#[derive(Debug)]
pub struct Moto {
    address: SocketAddr,
    http: reqwest::Client,
    _child: Child,
}

impl Moto {
    /// Its only bucket.
    pub const BUCKET: &str = "traces";

    /// Starts one, or `None` where `TOWPATH_TEST_PYTHON` does not name a Python that has it.
    ///
    /// # Panics
    /// If it is there and does not answer.
    pub async fn start(folder: &Path) -> Option<Self> {
        let python = environment("TOWPATH_TEST_PYTHON")?;
        let address = free_address();
        let log = std::fs::File::create(folder.join("moto.log")).expect("the world's folder is ours");
        let errors = log.try_clone().expect("a file handle can be doubled");
        let child = Command::new(python)
            .args([
                "-m",
                "moto.server",
                "-H",
                "127.0.0.1",
                "-p",
                &address.port().to_string(),
            ])
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .kill_on_drop(true)
            .spawn()
            .expect("TOWPATH_TEST_PYTHON is a program");
        let moto = Self {
            address,
            http: crate::api::http(),
            _child: child,
        };
        let bucket = moto.url("");
        until("moto to make a bucket", Duration::from_secs(180), async || {
            let made = moto
                .http
                .put(&bucket)
                .header("Authorization", SIGNED)
                .send()
                .await
                .ok()?;
            made.status().is_success().then_some(())
        })
        .await;
        Some(moto)
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The keys that begin with `prefix`, in order.
    ///
    /// # Panics
    /// If it does not answer.
    pub async fn keys(&self, prefix: &str) -> Vec<String> {
        let mut keys = Vec::new();
        let mut more = String::new();
        loop {
            let text = self.get(&format!("?list-type=2&prefix={prefix}{more}")).await;
            let text = String::from_utf8_lossy(&text);
            keys.extend(all(&text, "Key"));
            match all(&text, "NextContinuationToken").pop() {
                Some(token) => more = format!("&continuation-token={token}"),
                None => return keys,
            }
        }
    }

    /// Uploads in parts below `prefix` that no one completed or gave up.
    ///
    /// # Panics
    /// If it does not answer.
    pub async fn open_uploads(&self, prefix: &str) -> usize {
        let text = self.get("?uploads").await;
        let keys = all(&String::from_utf8_lossy(&text), "Key");
        keys.iter().filter(|key| key.starts_with(prefix)).count()
    }

    /// Writes every object below `prefix` as a file below `folder`.
    ///
    /// # Panics
    /// If it does not answer, or the folder cannot be written.
    pub async fn download(&self, prefix: &str, folder: &Path) {
        for key in self.keys(prefix).await {
            let target = folder.join(&key);
            let above = target.parent().expect("a key below a folder");
            std::fs::create_dir_all(above).expect("the world's folder is ours");
            std::fs::write(target, self.get(&format!("/{key}")).await).expect("the world's folder is ours");
        }
    }

    async fn get(&self, rest: &str) -> Vec<u8> {
        let asked = self.http.get(self.url(rest)).header("Authorization", SIGNED);
        let answer = asked.send().await.expect("moto answers");
        assert!(answer.status().is_success(), "GET {rest}: {}", answer.status());
        answer.bytes().await.expect("moto answers").to_vec()
    }

    fn url(&self, rest: &str) -> String {
        // The `=` of the keys is what the stand-in takes as it is.
        format!("http://{}/{}{rest}", self.address, Self::BUCKET)
    }
}

/// The contents of every element of that name.
fn all(text: &str, name: &str) -> Vec<String> {
    let mark = format!("<{name}>");
    let pieces = text.split(&mark).skip(1);
    pieces
        .filter_map(|piece| piece.split('<').next().map(str::to_owned))
        .collect()
}
