//! Bodies as the official SDK sends them: multipart, zstd, a hundred trace runs each.

use bytes::Bytes;
use towpath_traces::operation::{Fields, Operation};

use crate::bench::runs::Runs;

pub const BODY: u64 = 100;
pub const BOUNDARY: &str = "7d1b6c0e9b4f4b0a8a2d6f1c3e5b9d70";

#[derive(Default)]
pub struct Bodies {
    pub packed: Vec<Bytes>,
    /// Total size before compression.
    pub plain: u64,
}

pub fn render(runs: &Runs, rows: u64) -> Bodies {
    let bodies = rows.div_ceil(BODY);
    let threads = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || {
                    let mut made = Bodies::default();
                    for body in (0..bodies).filter(|body| body % threads == thread) {
                        let plain = plain(runs, body * BODY);
                        made.plain += plain.len() as u64;
                        made.packed.push(towpath_traces::sample::as_zstd(&plain));
                    }
                    made
                })
            })
            .collect();
        let mut all = Bodies::default();
        for worker in workers {
            let made = worker.join().expect("making bodies does not panic");
            all.plain += made.plain;
            all.packed.extend(made.packed);
        }
        all
    })
}

fn plain(runs: &Runs, first: u64) -> Vec<u8> {
    let mut body = Vec::new();
    for index in first..first + BODY {
        write_run(&mut body, &runs.post(index));
    }
    body.extend_from_slice(format!("--{BOUNDARY}--\r\n").as_bytes());
    body
}

/// `extra` as one JSON object.
pub fn extra(fields: &Fields) -> String {
    let keys = fields.extra.iter().flatten().fold(String::new(), |text, (key, value)| {
        let comma = if text.is_empty() { "" } else { "," };
        format!("{text}{comma}\"{key}\":{value}")
    });
    format!("{{{keys}}}")
}

fn write_run(to: &mut Vec<u8>, post: &Operation) {
    let name = format!("post.{}", post.id);
    let Fields {
        inputs,
        outputs,
        events,
        error,
        ..
    } = &post.fields;
    let error = error
        .as_ref()
        .map(|error| serde_json::Value::from(error.as_str()).to_string());
    let big = [
        ("inputs", inputs.clone()),
        ("outputs", outputs.clone()),
        ("events", events.clone()),
        ("extra", Some(extra(&post.fields))),
        ("error", error),
    ];
    let head = serde_json::json!({
        "id": post.id,
        "trace_id": post.fields.trace_id,
        "parent_run_id": post.fields.parent_run_id,
        "dotted_order": post.fields.dotted_order,
        "session_name": "bench",
        "name": post.fields.name,
        "run_type": post.fields.run_type,
        "start_time": post.fields.start_time,
        "end_time": post.fields.end_time,
        "tags": post.fields.tags,
    });
    part(to, &name, &head.to_string());
    for (field, text) in big {
        if let Some(text) = text {
            part(to, &format!("{name}.{field}"), &text);
        }
    }
}

fn part(to: &mut Vec<u8>, name: &str, data: &str) {
    to.extend_from_slice(
        format!(
            "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n",
            data.len()
        )
        .as_bytes(),
    );
    to.extend_from_slice(data.as_bytes());
    to.extend_from_slice(b"\r\n");
}
