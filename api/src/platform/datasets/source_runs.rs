//! Examples made from trace runs: inputs, outputs and attachments are read from the run.

use std::collections::{HashMap, HashSet};

use towpath_domain::{Rejection, TraceRunId};
use towpath_query::{Reader, Snapshot};
use towpath_store::datasets::examples::NewExample;
use towpath_store::datasets::files::NewFile;
use towpath_store::feedback::{self, Attachment};

use super::examples::ExampleDraft;
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::platform::runs::Criteria;

/// Maximum number of source runs in one request.
const MAX_RUNS: usize = 1000;
/// Maximum number of source runs in memory.
const RUN_BATCH_SIZE: usize = 50;

/// Content copied from a trace run.
struct SourceRun {
    inputs: Option<String>,
    outputs: Option<String>,
    files: Vec<NewFile>,
}

/// Fills drafts from their source runs, if requested.
pub(super) async fn fill_from_source_runs(
    app: &App,
    tenant: Tenant,
    drafts: Vec<ExampleDraft>,
) -> Result<Vec<NewExample>, ApiError> {
    let mut runs = HashSet::new();
    for draft in &drafts {
        let takes = draft.use_io || !draft.use_attachments.is_empty();
        match (takes, draft.new.source_run) {
            (true, None) => {
                let text = "use_source_run_io and use_source_run_attachments require source_run_id";
                return Err(Rejection::rule("source_run_id", text).into());
            }
            (true, Some(run)) => {
                runs.insert(TraceRunId(run));
            }
            (false, _) if !draft.has_inputs => {
                return Err(Rejection::invalid("inputs", "field required, unless use_source_run_io is set").into());
            }
            (false, _) => {}
        }
    }
    if runs.len() > MAX_RUNS {
        return Err(ApiError::bad_request(format!(
            "source_run_id: expected at most {MAX_RUNS} runs"
        )));
    }
    let mut sources = HashMap::new();
    let most_bytes = app.settings.ingest_body_bytes;
    if !runs.is_empty() {
        let read = app
            .queries
            .run(move |reader| read_source_runs(reader, tenant, runs.into_iter().collect(), most_bytes));
        sources = read.await?;
    }
    // Several examples may use one run.
    let mut room = ByteBudget {
        limit: most_bytes,
        remaining: most_bytes,
    };
    drafts
        .into_iter()
        .map(|draft| fill_draft(draft, &sources, &mut room))
        .collect()
}

/// Bytes that a request may copy from source runs: as many as it could send.
struct ByteBudget {
    limit: usize,
    remaining: usize,
}

impl ByteBudget {
    fn take(&mut self, bytes: usize) -> Result<(), ApiError> {
        self.remaining = self.remaining.checked_sub(bytes).ok_or_else(|| {
            let text = format!(
                "source_run_id: the examples copy more than {} bytes from their source runs; send fewer at once",
                self.limit
            );
            ApiError::bad_request(text)
        })?;
        Ok(())
    }
}

fn fill_draft(
    draft: ExampleDraft,
    sources: &HashMap<TraceRunId, SourceRun>,
    room: &mut ByteBudget,
) -> Result<NewExample, ApiError> {
    let ExampleDraft {
        mut new,
        has_inputs,
        use_io,
        use_attachments,
    } = draft;
    if !use_io && use_attachments.is_empty() {
        return Ok(new);
    }
    let source = new.source_run.and_then(|run| sources.get(&TraceRunId(run)));
    let source = source.ok_or_else(|| ApiError::not_found("source run"))?;
    if use_io {
        if !has_inputs {
            room.take(source.inputs.as_ref().map_or(0, String::len))?;
            new.inputs = source.inputs.clone().unwrap_or_else(|| "{}".to_owned());
        }
        if new.outputs.is_none() {
            room.take(source.outputs.as_ref().map_or(0, String::len))?;
            new.outputs.clone_from(&source.outputs);
        }
    }
    for file in &source.files {
        let asked = use_io || use_attachments.contains(&file.name);
        if asked && new.files.iter().all(|known| known.name != file.name) {
            room.take(file.data.len())?;
            new.files.push(file.clone());
        }
    }
    Ok(new)
}

async fn read_source_runs(
    reader: Reader,
    tenant: Tenant,
    runs: Vec<TraceRunId>,
    most_bytes: usize,
) -> Result<HashMap<TraceRunId, SourceRun>, ApiError> {
    let snapshot = reader.snapshot(tenant.id).await?;
    let criteria = Criteria {
        ids: runs.clone(),
        ..Criteria::default()
    };
    let places = criteria.resolve(&snapshot).await?.positions.unwrap_or_default();
    let mut files = read_files(&snapshot, tenant, &runs, most_bytes).await?;
    let mut sources = HashMap::new();
    let mut room = ByteBudget {
        limit: most_bytes,
        remaining: most_bytes,
    };
    for places in places.chunks(RUN_BATCH_SIZE) {
        for (_, row) in snapshot.rows(places).await? {
            let said = row.fields();
            let source = SourceRun {
                inputs: object_text(said.inputs.as_deref(), "input"),
                outputs: object_text(said.outputs.as_deref(), "output"),
                files: files.remove(&row.id()).unwrap_or_default(),
            };
            let texts = [&source.inputs, &source.outputs].into_iter().flatten();
            room.take(texts.map(String::len).sum())?;
            sources.insert(row.id(), source);
        }
    }
    Ok(sources)
}

/// Clients accept objects only; any other value is wrapped in an object under `name`.
fn object_text(text: Option<&str>, name: &str) -> Option<String> {
    let text = text?.trim();
    match text.chars().next()? {
        '{' => Some(text.to_owned()),
        'n' => None,
        _ => Some(format!("{{\"{name}\":{text}}}")),
    }
}

async fn read_files(
    snapshot: &Snapshot,
    tenant: Tenant,
    runs: &[TraceRunId],
    most_bytes: usize,
) -> Result<HashMap<TraceRunId, Vec<NewFile>>, ApiError> {
    let stored = snapshot
        .store()
        .read(async |tx| feedback::attachments_of(tx, tenant.id, runs).await)
        .await?;
    let open = snapshot.open_attachments().iter();
    let open = open.filter(|attachment| runs.contains(&attachment.run_id)).cloned();
    let mut latest: HashMap<(TraceRunId, String), Attachment> = HashMap::new();
    for attachment in stored.into_iter().chain(open) {
        let key = (attachment.run_id, attachment.name.clone());
        if latest.get(&key).is_none_or(|known| known.seq < attachment.seq) {
            latest.insert(key, attachment);
        }
    }
    let bytes: i64 = latest.values().map(|attachment| attachment.bytes).sum();
    if usize::try_from(bytes).unwrap_or(usize::MAX) > most_bytes {
        let text = format!("the attachments of the source runs exceed {most_bytes} bytes; send fewer examples at once");
        return Err(ApiError::bad_request(text));
    }
    let mut files: HashMap<TraceRunId, Vec<NewFile>> = HashMap::new();
    for ((run, name), attachment) in latest {
        let data = snapshot.attachment(&attachment).await?;
        files.entry(run).or_default().push(NewFile {
            name,
            mime_type: attachment.content_type,
            data: data.to_vec(),
        });
    }
    Ok(files)
}
