//! A child that speaks the protocol and runs no Python: this test program, started once more.
//!
//! What a run does is said by its input: `{"do": …}`.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use bytes::BytesMut;
use serde_json::{Value, json};
use towpath_runtime::hosted::frame::{self, Frame, FrameType};
use towpath_runtime::hosted::message::*;

type Out = Arc<Mutex<UnixStream>>;

/// What runs make the child say of itself, and what it heard.
#[derive(Default)]
struct FakeState {
    lag_ms: u64,
    stray_threads: u64,
    questions: u64,
    taken_back: u64,
}

fn send(out: &Out, r#type: FrameType, stream: u32, payload: &impl serde::Serialize) {
    let bytes = frame::encode(r#type, stream, &write(payload)).unwrap();
    // The server may be gone, which is the end anyway.
    let _ = out.lock().unwrap().write_all(&bytes);
}

/// Not a test: the child's `main`.
#[test]
#[ignore = "the program of children, started by other tests"]
fn child() {
    let socket = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let mut socket = UnixStream::from(socket);
    let out = Arc::new(Mutex::new(socket.try_clone().unwrap()));
    let hello = Hello {
        protocol: Range { min: 1, max: 1 },
        runtime: "fake".to_owned(),
        runtime_version: "1".to_owned(),
        pid: std::process::id().try_into().unwrap(),
        versions: [].into(),
        capabilities: Vec::new(),
    };
    send(&out, FrameType::HELLO, 0, &hello);
    let known = Arc::new(Mutex::new(FakeState::default()));
    let mut streams: HashMap<u32, Sender<Frame>> = HashMap::new();
    let mut buffer = BytesMut::new();
    let mut bytes = [0; 65536];
    loop {
        let count = socket.read(&mut bytes).unwrap_or(0);
        if count == 0 {
            return;
        }
        buffer.extend_from_slice(&bytes[..count]);
        while let Some(frame) = frame::parse_frame(&mut buffer, 1 << 28).unwrap() {
            match frame.r#type {
                FrameType::INIT => begin(&out, &frame),
                FrameType::PING => {
                    let ping: Ping = read(&frame.payload).unwrap();
                    let known = known.lock().unwrap();
                    let pong = Pong {
                        t: ping.t,
                        loop_lag_ms: known.lag_ms,
                        rss_bytes: 0,
                        stray_threads: known.stray_threads,
                    };
                    send(&out, FrameType::PONG, 0, &pong);
                }
                FrameType::SHUTDOWN => std::process::exit(0),
                FrameType::RUN => {
                    let (to, frames) = channel();
                    streams.insert(frame.stream, to);
                    let run = Work {
                        out: out.clone(),
                        stream: frame.stream,
                        frames,
                        known: known.clone(),
                        run: read(&frame.payload).unwrap(),
                    };
                    std::thread::spawn(move || run.perform());
                }
                // Never answered.
                FrameType::STATE_GET => known.lock().unwrap().questions += 1,
                _ => match streams.get(&frame.stream) {
                    Some(to) => {
                        let _ = to.send(frame);
                    }
                    None if frame.r#type == FrameType::CANCEL => known.lock().unwrap().taken_back += 1,
                    None => {}
                },
            }
        }
    }
}

fn begin(out: &Out, frame: &Frame) {
    let init: Init = read(&frame.payload).unwrap();
    let config: Value = init.config.read().unwrap();
    if config["broken"] == true {
        let error = LoadError {
            graph: Some("agent".to_owned()),
            file: Some("agent.py".to_owned()),
            line: Some(3),
            error: "ModuleNotFoundError".to_owned(),
            message: "No module named 'nowhere'".to_owned(),
            traceback: None,
        };
        send(out, FrameType::LOAD_ERROR, 0, &error);
        std::process::exit(3);
    }
    let graph = LoadedGraph {
        id: "agent".to_owned(),
        ..LoadedGraph::default()
    };
    let ready = Ready {
        graphs: vec![graph],
        ..Ready::default()
    };
    send(out, FrameType::READY, 0, &ready);
}

struct Work {
    out: Out,
    stream: u32,
    frames: Receiver<Frame>,
    known: Arc<Mutex<FakeState>>,
    run: Run,
}

impl Work {
    fn perform(self) {
        let input: Value = self
            .run
            .input
            .as_ref()
            .map_or(Value::Null, |input| input.read().unwrap());
        match input["do"].as_str().unwrap_or_default() {
            "crash" => {
                eprintln!("last words of the child");
                std::process::exit(70);
            }
            "save" => {
                self.put("1", None);
                self.writes("1");
                let found = self.get();
                self.done("success", &json!({"found": found}));
            }
            "save and crash" => {
                let latest = self.latest();
                if latest.is_some() {
                    return self.done("success", &json!({"resumed at": latest}));
                }
                self.put("1", Some(1));
                let _ = self.frames.recv();
                std::process::exit(70);
            }
            "wait" => {
                self.chunk(b"\"waiting\"");
                loop {
                    let frame = self.frames.recv().unwrap();
                    if frame.r#type == FrameType::CANCEL || frame.r#type == FrameType::FAIL {
                        return self.done("cancelled", &Value::Null);
                    }
                }
            }
            "hang" => {
                self.chunk(b"\"hanging\"");
                loop {
                    std::thread::park();
                }
            }
            "block" => {
                self.known.lock().unwrap().lag_ms = 60_000;
                self.chunk(b"\"blocked\"");
                let _ = self.frames.recv();
                self.known.lock().unwrap().lag_ms = 0;
                self.done("success", &json!({"pid": std::process::id()}));
            }
            "stray" => {
                self.known.lock().unwrap().stray_threads = input["threads"].as_u64().unwrap();
                self.done("success", &json!({"pid": std::process::id()}));
            }
            "questions" => {
                let counts = {
                    let known = self.known.lock().unwrap();
                    json!([known.questions, known.taken_back])
                };
                self.done("success", &counts);
            }
            "" if self.run.input.is_none() => {
                let command: Option<Value> = self.run.command.as_ref().map(|command| command.read().unwrap());
                self.done("success", &json!({"command": command, "repeated": self.run.repeated}));
            }
            "pour" => self.pour(input["bytes"].as_u64().unwrap()),
            "raise" => {
                let error = Raised {
                    error: "ValueError".to_owned(),
                    message: "no".to_owned(),
                    traceback: Some("Traceback: agent.py, line 3".to_owned()),
                    ..Raised::default()
                };
                self.end("error", Some(error), None);
            }
            _ => self.done(
                "success",
                &json!({"pid": std::process::id(), "attempt": self.run.attempt}),
            ),
        }
    }

    /// Sends that many bytes of events, and no more at a time than it may.
    fn pour(&self, bytes: u64) {
        let mut credit = 4_i64 << 20;
        let chunk = vec![b'1'; 1 << 16];
        let mut sent = 0;
        let mut least = credit;
        while sent < bytes {
            while credit <= 0 {
                let frame = self.frames.recv().unwrap();
                let more: Credit = read(&frame.payload).unwrap();
                credit += i64::try_from(more.bytes).unwrap();
            }
            self.chunk(&chunk);
            credit -= i64::try_from(chunk.len() + 2).unwrap();
            least = least.min(credit);
            sent += chunk.len() as u64;
        }
        self.done("success", &json!({"least": least}));
    }

    fn chunk(&self, json: &[u8]) {
        let mut payload = vec![1, 0];
        payload.extend_from_slice(json);
        let bytes = frame::encode(FrameType::CHUNK, self.stream, &payload).unwrap();
        let _ = self.out.lock().unwrap().write_all(&bytes);
    }

    fn put(&self, id: &str, call: Option<u64>) {
        let checkpoint = json!({"v": 4, "id": id, "channel_versions": {"x": "1"}, "channel_values": {}});
        let put = CpPut {
            call,
            ns: String::new(),
            id: id.to_owned(),
            parent: None,
            checkpoint: Json::of(&checkpoint).unwrap(),
            metadata: Json::of(&json!({"step": 1})).unwrap(),
            blobs: vec![(
                "x".to_owned(),
                "1".to_owned(),
                "msgpack".to_owned(),
                Some(Bin(vec![0xc1, 0].into())),
            )],
            thread: None,
        };
        send(&self.out, FrameType::CP_PUT, self.stream, &put);
    }

    fn writes(&self, id: &str) {
        let put = CpWrites {
            call: None,
            ns: String::new(),
            id: id.to_owned(),
            task: "t".to_owned(),
            path: "p".to_owned(),
            writes: vec![(0, "y".to_owned(), "msgpack".to_owned(), Some(Bin(vec![7].into())))],
            thread: None,
        };
        send(&self.out, FrameType::CP_WRITES, self.stream, &put);
    }

    fn ask(&self) -> Option<CpSaved> {
        let get = CpGet {
            call: 9,
            ns: String::new(),
            id: None,
            thread: None,
        };
        send(&self.out, FrameType::CP_GET, self.stream, &get);
        loop {
            let frame = self.frames.recv().unwrap();
            if frame.r#type == FrameType::REPLY {
                let reply: Reply<CpSaved> = read(&frame.payload).unwrap();
                assert_eq!(reply.call, 9);
                return reply.value;
            }
        }
    }

    fn latest(&self) -> Option<String> {
        self.ask().map(|saved| saved.id)
    }

    fn get(&self) -> Value {
        let saved = self.ask().unwrap();
        let blob = saved.blobs[0].3.clone().unwrap().0;
        json!({"id": saved.id, "blob": blob.to_vec(), "writes": saved.writes.len(), "channel": saved.writes[0].2})
    }

    fn done(&self, status: &str, values: &Value) {
        let state = DoneState {
            values: Json::of(values).unwrap(),
            next: Vec::new(),
            interrupts: None,
            checkpoint: None,
        };
        self.end(status, None, Some(state));
    }

    fn end(&self, status: &str, error: Option<Raised>, state: Option<DoneState>) {
        let done = Done {
            status: status.to_owned(),
            error,
            state,
            nodes: 0,
            cpu_us: 0,
        };
        send(&self.out, FrameType::DONE, self.stream, &done);
    }
}
