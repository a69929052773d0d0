//! A stand-in for a Docker engine: it answers as a test says, and keeps what it was asked.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;

/// What the engine was asked.
#[derive(Clone, Debug)]
pub struct RecordedRequest {
    /// Method and path with its query, without the version.
    pub what: String,
    pub body: Vec<u8>,
}

pub enum Answer {
    Json(u16, serde_json::Value),
    Bytes(Vec<u8>),
    /// The connection is closed without a word.
    Nothing,
    /// No answer comes.
    Never,
}

type AnswerFn = dyn Fn(&RecordedRequest, usize) -> Answer + Send + Sync;

/// The engine, which is gone with this.
pub struct Engine {
    pub socket: PathBuf,
    asked: Arc<Mutex<Vec<RecordedRequest>>>,
    stop: CancellationToken,
}

impl Engine {
    /// `answer` is told how often the same was asked before.
    pub fn start(socket: PathBuf, answer: impl Fn(&RecordedRequest, usize) -> Answer + Send + Sync + 'static) -> Self {
        let listener = UnixListener::bind(&socket).unwrap();
        let (asked, stop) = (Arc::<Mutex<Vec<RecordedRequest>>>::default(), CancellationToken::new());
        let answer: Arc<AnswerFn> = Arc::new(answer);
        let (kept, stopped) = (Arc::clone(&asked), stop.clone());
        tokio::spawn(async move {
            loop {
                let stream = tokio::select! {
                    () = stopped.cancelled() => return,
                    accepted = listener.accept() => accepted.unwrap().0,
                };
                tokio::spawn(serve(stream, Arc::clone(&kept), Arc::clone(&answer)));
            }
        });
        Self { socket, asked, stop }
    }

    /// Everything that it was asked and that begins so, in order.
    pub fn asked(&self, beginning: &str) -> Vec<RecordedRequest> {
        let asked = self.asked.lock().unwrap();
        asked
            .iter()
            .filter(|one| one.what.starts_with(beginning))
            .cloned()
            .collect()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn serve(stream: UnixStream, asked: Arc<Mutex<Vec<RecordedRequest>>>, answer: Arc<AnswerFn>) {
    let mut stream = BufReader::new(stream);
    let Some(one) = request(&mut stream).await else { return };
    let answered = {
        let mut asked = asked.lock().unwrap();
        let before = asked.iter().filter(|earlier| earlier.what == one.what).count();
        asked.push(one.clone());
        answer(&one, before)
    };
    match answered {
        Answer::Json(status, body) => {
            let text = if body.is_null() {
                String::new()
            } else {
                body.to_string()
            };
            let head = if status == 204 || status == 304 {
                format!("HTTP/1.1 {status} x\r\nConnection: close\r\n\r\n")
            } else {
                format!(
                    "HTTP/1.1 {status} x\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                    text.len()
                )
            };
            let _ = stream.write_all(format!("{head}{text}").as_bytes()).await;
        }
        Answer::Bytes(bytes) => {
            let head = format!(
                "HTTP/1.1 200 x\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                bytes.len()
            );
            let _ = stream.write_all(head.as_bytes()).await;
            let _ = stream.write_all(&bytes).await;
        }
        Answer::Nothing => {}
        Answer::Never => std::future::pending().await,
    }
}

async fn request(stream: &mut BufReader<UnixStream>) -> Option<RecordedRequest> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok()?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let path = target.trim_start_matches('/');
    // Some paths begin with the interface's version.
    let path = match path.split_once('/') {
        Some((version, rest)) if version.starts_with("v1.") => rest,
        _ => path,
    };
    let what = format!("{method} /{path}");
    let (mut length, mut chunked) = (0, false);
    loop {
        let mut header = String::new();
        stream.read_line(&mut header).await.ok()?;
        let header = header.trim().to_ascii_lowercase();
        if header.is_empty() {
            break;
        }
        if let Some(text) = header.strip_prefix("content-length:") {
            length = text.trim().parse().ok()?;
        }
        chunked |= header.starts_with("transfer-encoding:") && header.contains("chunked");
    }
    let mut body = Vec::new();
    while chunked {
        let mut size = String::new();
        stream.read_line(&mut size).await.ok()?;
        let size = usize::from_str_radix(size.trim(), 16).ok()?;
        let mut chunk = vec![0; size + 2];
        stream.read_exact(&mut chunk).await.ok()?;
        body.extend_from_slice(&chunk[..size]);
        chunked = size > 0;
    }
    if length > 0 {
        body.resize(length, 0);
        stream.read_exact(&mut body).await.ok()?;
    }
    Some(RecordedRequest { what, body })
}

/// An agent server that is healthy once `ready` is cancelled; where it listens.
pub async fn agent(ready: CancellationToken) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let status = if ready.is_cancelled() { "200 OK" } else { "503 Not Yet" };
            let mut head = [0; 1024];
            let _ = stream.read(&mut head).await;
            let _ = stream
                .write_all(format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").as_bytes())
                .await;
        }
    });
    port
}
