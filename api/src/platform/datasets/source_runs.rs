//! Examples that are made of trace runs: their inputs, outputs and attachments are read from the run.

use std::collections::{HashMap, HashSet};

use towpath_domain::{Rejection, TraceRunId};
use towpath_query::{Reader, Snapshot};
use towpath_store::datasets::examples::NewExample;
use towpath_store::datasets::files::NewFile;
use towpath_store::feedback::{self, Attachment};

use super::examples::Draft;
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::platform::runs::Criteria;

/// Source runs that are read for one request.
const MOST_RUNS: usize = 1000;

/// What is taken of a trace run.
struct Source {
    inputs: Option<String>,
    outputs: Option<String>,
    files: Vec<NewFile>,
}

/// Fills drafts from their source runs, where they ask for that.
pub(super) async fn complete(app: &App, tenant: Tenant, drafts: Vec<Draft>) -> Result<Vec<NewExample>, ApiError> {
    let mut runs = HashSet::new();
    for draft in &drafts {
        let takes = draft.use_io || !draft.use_attachments.is_empty();
        match (takes, draft.new.source_run) {
            (true, None) => {
                let text = "use_source_run_io and use_source_run_attachments need a source_run_id";
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
    if runs.len() > MOST_RUNS {
        return Err(ApiError::bad_request(format!(
            "source_run_id: at most {MOST_RUNS} runs at once"
        )));
    }
    let mut sources = HashMap::new();
    if !runs.is_empty() {
        let most_bytes = app.settings.ingest_body_bytes;
        let read = app
            .reading
            .run(move |reader| read(reader, tenant, runs.into_iter().collect(), most_bytes));
        sources = read.await?;
    }
    drafts.into_iter().map(|draft| fill(draft, &sources)).collect()
}

fn fill(draft: Draft, sources: &HashMap<TraceRunId, Source>) -> Result<NewExample, ApiError> {
    let Draft {
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
            new.inputs = source.inputs.clone().unwrap_or_else(|| "{}".to_owned());
        }
        new.outputs = new.outputs.or_else(|| source.outputs.clone());
    }
    for file in &source.files {
        let asked = use_io || use_attachments.contains(&file.name);
        if asked && new.files.iter().all(|known| known.name != file.name) {
            new.files.push(file.clone());
        }
    }
    Ok(new)
}

async fn read(
    reader: Reader,
    tenant: Tenant,
    runs: Vec<TraceRunId>,
    most_bytes: usize,
) -> Result<HashMap<TraceRunId, Source>, ApiError> {
    let snapshot = reader.snapshot(tenant.id).await?;
    let criteria = Criteria {
        ids: runs.clone(),
        ..Criteria::default()
    };
    let places = criteria.resolve(&snapshot).await?.places.unwrap_or_default();
    let mut files = files(&snapshot, tenant, &runs, most_bytes).await?;
    let mut sources = HashMap::new();
    for (_, row) in snapshot.rows(&places).await? {
        let said = row.fields();
        let source = Source {
            inputs: object(said.inputs.as_deref(), "input"),
            outputs: object(said.outputs.as_deref(), "output"),
            files: files.remove(&row.id()).unwrap_or_default(),
        };
        sources.insert(row.id(), source);
    }
    Ok(sources)
}

/// Clients read objects only; another value stands under `name` in one.
fn object(text: Option<&str>, name: &str) -> Option<String> {
    let text = text?.trim();
    match text.chars().next()? {
        '{' => Some(text.to_owned()),
        'n' => None,
        _ => Some(format!("{{\"{name}\":{text}}}")),
    }
}

async fn files(
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
        let text = format!(
            "the attachments of the source runs have more than {most_bytes} bytes: send fewer examples at once"
        );
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
