//! Generated trace runs like those of an official client, from a recording.
//!
//! The trace of five runs in `tests/data/python-identity.bin` is multiplied: fresh ids, starts spread over days, a
//! number in its inputs and outputs, varying token counts. Everything follows from a seed and the number of the run, so
//! a checker can compute the content of an export ([`Sample::expected`]). For `towpath demo`, benchmarks and kill
//! tests.

mod expected;

use std::io::Write as _;
use std::ops::Range;
use std::sync::LazyLock;

use bytes::Bytes;
use chrono::NaiveDate;
use towpath_domain::trace::{DottedOrderPart, format_part};
use towpath_domain::{TenantId, Timestamp};
use uuid::Uuid;

use crate::accept::{self, Request, Route};
use crate::body::{Encoding, Limits};
use crate::operation::Fields;
pub use expected::{Cell, Expected};

/// Trace runs per trace.
pub const TREE: u64 = 5;

const RECORDED: &[u8] = include_bytes!("../tests/data/python-identity.bin");
const RECORDED_TYPE: &str = "multipart/form-data; boundary=4528e3d4d75f4db4aacb59cec3612be8";
const BOUNDARY: &str = "5a4d1f0c3e9b4f0aa1d2c3b4a5968778";

/// What to make.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Another seed gives other ids, times and numbers.
    pub seed: u64,
    /// Name of the project.
    pub project: String,
    /// First day on which trace runs start.
    pub first_day: NaiveDate,
    /// Number of days.
    pub days: u32,
}

/// Which operations of the runs a body contains. About two thirds of the runs have a post and a patch, the others only
/// a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleOperations {
    /// Posts and patches.
    Both,
    /// Posts only.
    Posts,
    /// Patches only.
    Patches,
}

/// A body ready to send to `POST /runs/multipart`.
#[derive(Clone, Debug)]
pub struct Body {
    pub content_type: String,
    pub content_encoding: Option<&'static str>,
    pub bytes: Bytes,
}

/// The metadata of a post that is patched later.
const BEGUN: &str = r#"{"begun":true,"stage":"begun"}"#;

/// A source of trace runs.
#[derive(Clone, Debug)]
pub struct Sample {
    plan: Plan,
}

/// One of the recorded runs.
struct Template {
    fields: Fields,
    /// Which of the five is its parent.
    parent: Option<usize>,
    /// From the start of the trace, in microseconds.
    offset: i64,
    /// In microseconds.
    duration: i64,
}

static TEMPLATES: LazyLock<Vec<Template>> = LazyLock::new(|| {
    let request = Request {
        tenant: TenantId::nil(),
        route: Route::Multipart,
        content_type: RECORDED_TYPE,
        content_encoding: None,
        body: Bytes::from_static(RECORDED),
        received_at: Timestamp::from_micros(0),
    };
    let accepted = accept::accept(request, &Limits::default()).expect("the recorded body is part of the build");
    let contents = accept::read(&accepted.frame, &Limits::NONE).expect("the recorded body was just accepted");
    let first: Vec<_> = contents.operations.into_iter().take(TREE as usize).collect();
    let ids: Vec<Uuid> = first.iter().map(|operation| operation.id.0).collect();
    let micros = |time: Option<Timestamp>| time.map_or(0, Timestamp::micros);
    let root = micros(first[0].fields.start_time);
    first
        .into_iter()
        .map(|operation| {
            let fields = operation.fields;
            let parent = fields
                .parent_run_id
                .and_then(|parent| ids.iter().position(|id| *id == parent));
            let start = micros(fields.start_time);
            Template {
                parent,
                offset: start - root,
                duration: micros(fields.end_time) - start,
                fields,
            }
        })
        .collect()
});

/// All there is to know of one run. Texts are raw JSON.
struct Run {
    id: Uuid,
    links: Vec<DottedOrderPart>,
    start: Timestamp,
    end: Timestamp,
    first_token: Option<Timestamp>,
    prompt_tokens: Option<i64>,
    template: &'static Template,
    inputs: String,
    outputs: String,
    events: String,
    metadata: String,
    runtime: String,
    patched: bool,
}

impl Sample {
    /// Nothing is made yet.
    #[must_use]
    pub const fn new(plan: Plan) -> Self {
        Self { plan }
    }

    #[must_use]
    pub const fn plan(&self) -> &Plan {
        &self.plan
    }

    /// A body with the runs of `range`.
    #[must_use]
    pub fn body(&self, range: Range<u64>, which: SampleOperations, encoding: Encoding) -> Body {
        let mut plain = Vec::with_capacity(usize::try_from(range.end - range.start).unwrap_or_default() * 3000);
        for index in range {
            let run = self.run(index);
            if which != SampleOperations::Patches {
                self.write_post(&mut plain, &run);
            }
            if which != SampleOperations::Posts && run.patched {
                self.write_patch(&mut plain, &run);
            }
        }
        plain.extend_from_slice(format!("--{BOUNDARY}--\r\n").as_bytes());
        let (content_encoding, bytes) = match encoding {
            Encoding::Identity => (None, plain),
            Encoding::Gzip => (Some("gzip"), packed(&plain, gzip)),
            Encoding::Zstd => (Some("zstd"), packed(&plain, zstd)),
        };
        Body {
            content_type: format!("multipart/form-data; boundary={BOUNDARY}"),
            content_encoding,
            bytes: bytes.into(),
        }
    }

    /// How many operations [`Sample::body`] puts into a body.
    #[must_use]
    pub fn operations(&self, range: Range<u64>, which: SampleOperations) -> u64 {
        let runs = range.end - range.start;
        let patches = range.filter(|index| self.is_patched(*index)).count() as u64;
        match which {
            SampleOperations::Both => runs + patches,
            SampleOperations::Posts => runs,
            SampleOperations::Patches => patches,
        }
    }

    fn is_patched(&self, index: u64) -> bool {
        !self.dice(index, 3).is_multiple_of(3)
    }

    /// A pseudo-random number from the seed, a run or trace, and a purpose.
    fn dice(&self, number: u64, purpose: u64) -> u64 {
        let mut mixed =
            self.plan.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ purpose.wrapping_mul(0xd1b5_4a32_d192_ed03);
        for _ in 0..2 {
            mixed = mixed.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^= mixed >> 31;
        }
        mixed
    }

    fn id(&self, index: u64) -> Uuid {
        let random = (u128::from(self.dice(index, 1)) << 64) | u128::from(self.dice(index, 2));
        uuid::Builder::from_random_bytes(random.to_be_bytes()).into_uuid()
    }

    /// Starts are in whole days, far enough from midnight that a trace does not cross it.
    fn tree_start(&self, tree: u64) -> i64 {
        const MARGIN: u64 = 60_000_000;
        const DAY: u64 = 86_400_000_000;
        let day = tree % u64::from(self.plan.days.max(1));
        let within = MARGIN + self.dice(tree, 4) % (DAY - 2 * MARGIN);
        Timestamp::start_of(self.plan.first_day).micros() + i64::try_from(day * DAY + within).unwrap_or(i64::MAX)
    }

    /// When a run starts, which is where it sorts.
    #[must_use]
    pub fn start(&self, index: u64) -> Timestamp {
        Timestamp::from_micros(self.tree_start(index / TREE) + TEMPLATES[(index % TREE) as usize].offset)
    }

    fn run(&self, index: u64) -> Run {
        let tree = index / TREE;
        let position = (index % TREE) as usize;
        let template = &TEMPLATES[position];
        let root = self.tree_start(tree);
        let mut links = Vec::new();
        let mut at = Some(position);
        while let Some(position) = at {
            let start = Timestamp::from_micros(root + TEMPLATES[position].offset);
            links.insert(
                0,
                DottedOrderPart {
                    start,
                    id: self.id(tree * TREE + position as u64),
                },
            );
            at = TEMPLATES[position].parent;
        }
        let fields = &template.fields;
        let start = self.start(index);
        let is_model = fields.run_type.as_deref() == Some("llm");
        let prompt_tokens = is_model.then(|| 300 + (self.dice(index, 5) % 200) as i64);
        let counted = |text: &str| match prompt_tokens {
            Some(tokens) => text
                .replace("\"input_tokens\":412", &format!("\"input_tokens\":{tokens}"))
                .replace(
                    "\"total_tokens\":469",
                    &format!("\"total_tokens\":{}", tokens + expected::COMPLETION_TOKENS),
                ),
            None => text.to_owned(),
        };
        let first_token = is_model.then(|| Timestamp::from_micros(start.micros() + 40));
        let events = first_token.map_or("[]".to_owned(), |time| {
            let later = Timestamp::from_micros(time.micros() + 25);
            format!(r#"[{{"name":"new_token","time":"{time}"}},{{"name":"new_token","time":"{later}"}}]"#)
        });
        let extra = |wanted: &str| {
            let found = fields.extra.iter().flatten().find(|(key, _)| key == wanted);
            counted(found.map_or("{}", |(_, value)| value))
        };
        Run {
            id: self.id(index),
            start,
            end: Timestamp::from_micros(start.micros() + template.duration),
            first_token,
            prompt_tokens,
            inputs: numbered(fields.inputs.as_deref().unwrap_or("{}"), index),
            outputs: counted(&numbered(fields.outputs.as_deref().unwrap_or("null"), index)),
            events,
            metadata: extra("metadata"),
            runtime: extra("runtime"),
            patched: self.is_patched(index),
            links,
            template,
        }
    }

    fn write_post(&self, to: &mut Vec<u8>, run: &Run) {
        let name = format!("post.{}", run.id);
        let end = if run.patched {
            String::new()
        } else {
            format!(r#","end_time":"{}""#, iso(run.end))
        };
        // A run reports these at its start, others at its end.
        let tags = if run.patched {
            r#"["begun"]"#.to_owned()
        } else {
            json(&run.template.fields.tags)
        };
        let metadata = if run.patched { BEGUN } else { &run.metadata };
        part(to, &name, &format!(r#"{{{},"tags":{tags}{end}}}"#, self.head(run)));
        part(to, &format!("{name}.inputs"), &run.inputs);
        if !run.patched {
            self.write_end(to, &name, run);
        }
        part(
            to,
            &format!("{name}.extra"),
            &format!(r#"{{"metadata":{metadata},"runtime":{}}}"#, run.runtime),
        );
        if let Some(serialized) = &run.template.fields.serialized {
            part(to, &format!("{name}.serialized"), serialized);
        }
    }

    fn write_patch(&self, to: &mut Vec<u8>, run: &Run) {
        let name = format!("patch.{}", run.id);
        let (tags, end) = (json(&run.template.fields.tags), iso(run.end));
        part(
            to,
            &name,
            &format!(
                r#"{{{},"tags":{tags},"session_id":null,"end_time":"{end}"}}"#,
                self.head(run)
            ),
        );
        self.write_end(to, &name, run);
        part(
            to,
            &format!("{name}.extra"),
            &format!(r#"{{"metadata":{}}}"#, run.patched_metadata()),
        );
    }

    fn write_end(&self, to: &mut Vec<u8>, name: &str, run: &Run) {
        part(to, &format!("{name}.outputs"), &run.outputs);
        part(to, &format!("{name}.events"), &run.events);
        if let Some(error) = &run.template.fields.error {
            part(to, &format!("{name}.error"), &json(error));
        }
    }

    fn head(&self, run: &Run) -> String {
        let fields = &run.template.fields;
        let trace = run.links[0].id;
        let parent = json(&run.parent());
        format!(
            r#""id":"{}","start_time":"{}","parent_run_id":{parent},"dotted_order":"{}","trace_id":"{trace}","session_name":{},"name":{},"run_type":{}"#,
            run.id,
            iso(run.start),
            run.dotted_order(),
            json(&self.plan.project),
            json(&fields.name),
            json(&fields.run_type),
        )
    }
}

impl Run {
    fn dotted_order(&self) -> String {
        self.links.iter().map(format_part).collect::<Vec<_>>().join(".")
    }

    fn patched_metadata(&self) -> String {
        let end = r#"{"stage":"ended""#;
        match self.metadata.strip_prefix('{') {
            Some("}") | None => format!("{end}}}"),
            Some(rest) => format!("{end},{rest}"),
        }
    }

    fn parent(&self) -> Option<Uuid> {
        self.links.len().checked_sub(2).map(|at| self.links[at].id)
    }
}

/// A body compressed like by the Python client.
#[must_use]
pub fn as_zstd(plain: &[u8]) -> Bytes {
    packed(plain, zstd).into()
}

fn part(to: &mut Vec<u8>, name: &str, data: &str) {
    write!(
        to,
        "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{data}\r\n",
        data.len()
    )
    .expect("writing to memory does not fail");
}

/// As the Python client writes times.
fn iso(time: Timestamp) -> String {
    time.to_utc().format("%Y-%m-%dT%H:%M:%S%.6f+00:00").to_string()
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("texts and ids are always JSON")
}

/// A JSON object with its number put first.
fn numbered(object: &str, index: u64) -> String {
    match object.strip_prefix('{') {
        Some("}") => format!(r#"{{"sample":{index}}}"#),
        Some(rest) => format!(r#"{{"sample":{index},{rest}"#),
        None => object.to_owned(),
    }
}

fn packed(plain: &[u8], pack: impl FnOnce(&[u8]) -> std::io::Result<Vec<u8>>) -> Vec<u8> {
    pack(plain).expect("packing in memory does not fail")
}

fn gzip(plain: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut to = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    to.write_all(plain)?;
    to.finish()
}

/// A streaming frame without content size, as the Python client writes it.
fn zstd(plain: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut to = ::zstd::stream::write::Encoder::new(Vec::new(), 3)?;
    to.write_all(plain)?;
    to.finish()
}
