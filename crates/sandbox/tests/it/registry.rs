//! A registry on loopback that serves a folder over the distribution API, to callers with a login.
//!
//! Blobs are moved to another host, as those of public registries are: a second server, which must not see a token.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use towpath_sandbox::image::{RegistryBody, RegistryLogin, RegistryReply, RegistryTransport, TransportError};

const TOKEN: &str = "token-of-the-registry";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// An archive of a layer.
pub type Layer = tar::Builder<flate2::write::GzEncoder<Vec<u8>>>;

#[derive(Debug)]
pub struct Registry {
    folder: TempDir,
    address: String,
    /// Requests that were answered.
    seen: Arc<Mutex<Vec<String>>>,
}

impl Registry {
    pub async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["manifests", "blobs"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let store = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let site = Site {
            root: folder.path().to_owned(),
            address: address.clone(),
            store: store.local_addr().unwrap().to_string(),
            seen: Arc::clone(&seen),
        };
        for listener in [listener, store] {
            let site = site.clone();
            tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    let site = site.clone();
                    tokio::spawn(async move { serve(stream, &site).await });
                }
            });
        }
        Self { folder, address, seen }
    }

    /// The name of an image in it.
    pub fn image(&self, tag: &str) -> String {
        format!("{}/team/app:{tag}", self.address)
    }

    pub fn login() -> RegistryLogin {
        RegistryLogin {
            username: "robot".to_owned(),
            password: "hunter2".to_owned(),
        }
    }

    pub fn requests(&self) -> Vec<String> {
        std::mem::take(&mut *self.seen.lock().unwrap())
    }

    /// Stores an image behind an index.
    pub fn store(&self, tag: &str, config: &Value, layers: Vec<Layer>) {
        let mut contents = Vec::new();
        let mut blobs = Vec::new();
        for layer in layers {
            let archive = layer.into_inner().unwrap().finish().unwrap();
            let mut content = Vec::new();
            io::copy(&mut flate2::read::GzDecoder::new(&*archive), &mut content).unwrap();
            contents.push(digest(&content));
            blobs.push(self.store_blob(LAYER, &archive));
        }
        let config = json!({"config": config, "rootfs": {"type": "layers", "diff_ids": contents}});
        let config = self.store_blob(
            "application/vnd.oci.image.config.v1+json",
            config.to_string().as_bytes(),
        );
        let manifest =
            json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": blobs}).to_string();
        let name = digest(manifest.as_bytes());
        fs::write(self.folder.path().join("manifests").join(&name), &manifest).unwrap();
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let index = json!({"schemaVersion": 2, "manifests": [{
            "mediaType": MANIFEST, "digest": name, "size": manifest.len(),
            "platform": {"os": "linux", "architecture": architecture},
        }]});
        fs::write(self.folder.path().join("manifests").join(tag), index.to_string()).unwrap();
    }

    fn store_blob(&self, kind: &str, content: &[u8]) -> Value {
        let name = digest(content);
        fs::write(self.folder.path().join("blobs").join(&name), content).unwrap();
        json!({"mediaType": kind, "digest": name, "size": content.len()})
    }
}

pub fn layer() -> Layer {
    let gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    tar::Builder::new(gzip)
}

/// Adds a file of root.
pub fn add_file(layer: &mut Layer, path: &str, mode: u32, content: &[u8]) {
    let mut header = tar::Header::new_gnu();
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(content.len() as u64);
    layer.append_data(&mut header, path, content).unwrap();
}

/// Adds programs of the host with the libraries that they need. False if the host has no `ldd`.
pub fn add_programs(layer: &mut Layer, programs: &[&str]) -> bool {
    let mut files: Vec<PathBuf> = Vec::new();
    for program in programs {
        let Ok(listed) = Command::new("ldd").arg(program).output() else {
            return false;
        };
        files.push(program.into());
        for word in String::from_utf8_lossy(&listed.stdout).split_whitespace() {
            if word.starts_with('/') {
                files.push(word.into());
            }
        }
    }
    files.sort();
    files.dedup();
    for file in files {
        let content = fs::read(&file).unwrap();
        let path = file.strip_prefix("/").unwrap().to_str().unwrap();
        add_file(layer, path, 0o755, &content);
    }
    true
}

fn digest(content: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, content);
    let hex: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

#[derive(Clone, Debug)]
struct Site {
    root: PathBuf,
    address: String,
    /// The host that has the blobs.
    store: String,
    seen: Arc<Mutex<Vec<String>>>,
}

async fn serve(mut stream: TcpStream, site: &Site) -> io::Result<()> {
    let local = stream.local_addr()?.to_string();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    let authorization = head
        .lines()
        .find_map(|line| {
            line.split_once(": ")
                .filter(|(name, _)| name.eq_ignore_ascii_case("authorization"))
        })
        .map(|(_, value)| value.to_owned());
    let (status, headers, body) = if local == site.store {
        at_store(site, &path, authorization.as_deref())
    } else {
        at_registry(site, &path, authorization.as_deref())
    };
    site.seen.lock().unwrap().push(format!("{status} {path}"));
    let length = body.len();
    let head = format!("HTTP/1.1 {status} -\r\nContent-Length: {length}\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(&body).await?;
    stream.shutdown().await
}

type Answer = (u16, String, Vec<u8>);

fn at_registry(site: &Site, path: &str, authorization: Option<&str>) -> Answer {
    if path.starts_with("/token?") {
        let login = Registry::login();
        let expected = format!(
            "Basic {}",
            BASE64.encode(format!("{}:{}", login.username, login.password))
        );
        if authorization != Some(expected.as_str()) || !path.contains("scope=repository:team/app:pull") {
            return (401, String::new(), Vec::new());
        }
        return (200, String::new(), json!({"token": TOKEN}).to_string().into_bytes());
    }
    if authorization != Some(format!("Bearer {TOKEN}").as_str()) {
        let challenge = format!(
            "WWW-Authenticate: Bearer realm=\"http://{}/token\",service=\"test\"\r\n",
            site.address
        );
        return (401, challenge, Vec::new());
    }
    let Some(rest) = path.strip_prefix("/v2/team/app/") else {
        return (404, String::new(), Vec::new());
    };
    if rest.starts_with("blobs/") {
        let to = format!("Location: http://{}/{rest}\r\n", site.store);
        return (307, to, Vec::new());
    }
    from_folder(&site.root, rest)
}

fn at_store(site: &Site, path: &str, authorization: Option<&str>) -> Answer {
    if authorization.is_some() {
        return (400, String::new(), Vec::new());
    }
    from_folder(&site.root, path.trim_start_matches('/'))
}

fn from_folder(root: &Path, path: &str) -> Answer {
    match fs::read(root.join(path)) {
        Ok(content) => (200, String::new(), content),
        Err(_) => (404, String::new(), Vec::new()),
    }
}

/// Calls loopback alone.
#[derive(Debug)]
pub struct LoopbackTransport;

struct WholeBody(Option<Bytes>);

#[async_trait]
impl RegistryBody for WholeBody {
    async fn chunk(&mut self) -> Result<Option<Bytes>, TransportError> {
        Ok(self.0.take())
    }
}

#[async_trait]
impl RegistryTransport for LoopbackTransport {
    async fn get(&self, url: &str, headers: HeaderMap) -> Result<RegistryReply, TransportError> {
        let Some(rest) = url.strip_prefix("http://127.0.0.1:") else {
            return Err(TransportError::Refused(format!("{url} is not on loopback")));
        };
        let (port, path) = rest.split_once('/').unwrap_or((rest, ""));
        let answered = call(&format!("127.0.0.1:{port}"), path, &headers).await;
        answered.map_err(|error| TransportError::Failed(error.to_string()))
    }
}

async fn call(address: &str, path: &str, headers: &HeaderMap) -> io::Result<RegistryReply> {
    let mut stream = TcpStream::connect(address).await?;
    let mut request = format!("GET /{path} HTTP/1.1\r\nHost: {address}\r\n").into_bytes();
    for (name, value) in headers {
        request.extend_from_slice(name.as_str().as_bytes());
        request.extend_from_slice(b": ");
        request.extend_from_slice(value.as_bytes());
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(b"\r\n");
    stream.write_all(&request).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    let end = answer.windows(4).position(|part| part == b"\r\n\r\n");
    let end = end.ok_or_else(|| io::Error::other("no answer"))?;
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let status = head.split(' ').nth(1).and_then(|status| status.parse::<u16>().ok());
    let status = status.and_then(|status| StatusCode::from_u16(status).ok());
    let mut found = HeaderMap::new();
    for (name, value) in head.lines().filter_map(|line| line.split_once(": ")) {
        if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), value.parse::<HeaderValue>()) {
            found.insert(name, value);
        }
    }
    Ok(RegistryReply {
        status: status.ok_or_else(|| io::Error::other("no status"))?,
        headers: found,
        body: Box::new(WholeBody(Some(Bytes::copy_from_slice(&answer[end + 4..])))),
    })
}
