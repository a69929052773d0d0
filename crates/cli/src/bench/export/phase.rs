//! One way to export, day by day like export runs: CPU-bound work on its own threads, as many days at a time as a
//! worker has slots.

use std::collections::BTreeMap;
use std::path::Path as Folder;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, bail};
use object_store::ObjectStore;
use object_store::path::Path;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use towpath_domain::export::{Credentials, DestinationConfig, DestinationKind, FormatVersion, S3Options};
use towpath_domain::{ExportRunId, Secret, Timestamp};
use towpath_outbound::{Destination, Guard, Policy, Settings};
use towpath_traces::objects::Objects;
use towpath_traces::parquet_file::{Compression, End, FileOptions, file_name, write_file};
use towpath_traces::row_source::{RowSource, SPLICE_ROWS};
use towpath_traces::scan::{Request, Scan};
use towpath_traces::schema::Selection;
use towpath_workflows::cpu_pool::CpuPool;

use super::prepare::{DAYS, Layout, PROJECT, TENANT, day};
use super::{PhaseResult, resource_usage};
use crate::arguments::ExportPhase;

const SUBSET: [&str; 6] = ["id", "name", "start_time", "status", "inputs", "total_tokens"];

pub async fn run(folder: &Folder, phase: ExportPhase, to: Option<&str>) -> anyhow::Result<PhaseResult> {
    let layout = Layout::read(folder)?;
    let objects = Objects::folder(&folder.join("objects"))?;
    let destination = destination(folder, to)?;
    let heavy = Arc::new(CpuPool::new().context("threads for CPU-bound work")?);
    let selection = match phase {
        ExportPhase::SplicedSubset | ExportPhase::ScannedSubset => Selection::of(&SUBSET)?,
        _ => Selection::all(),
    };
    let options = FileOptions {
        version: match phase {
            ExportPhase::SplicedV2 => FormatVersion::V2Beta,
            _ => FormatVersion::V1,
        },
        part_bytes: destination.part_bytes(),
        ..FileOptions::new(selection.clone(), Compression::Zstandard)
    };
    let scans = matches!(phase, ExportPhase::Scanned | ExportPhase::ScannedSubset);
    let began = Instant::now();
    let mut work = JoinSet::new();
    for number in 0..DAYS {
        let start = Timestamp::start_of(day(number));
        let request = Request {
            tenant: TENANT,
            project: PROJECT,
            parts: layout.parts(number, phase == ExportPhase::Late),
            range: start..start.next_midnight(),
            after: None,
            selection: selection.clone(),
            prices: Arc::default(),
        };
        let store = objects.blocking_store();
        let feed = if scans {
            RowSource::new(Scan::new(store, request))
        } else {
            RowSource::splicing(store, request, SPLICE_ROWS)
        };
        let prefix = format!("{}/day={number:02}", phase.name());
        let (heavy, target, options) = (Arc::clone(&heavy), destination.objects().clone(), options.clone());
        work.spawn(async move {
            let place = heavy.memory_permit(&CancellationToken::new()).await;
            let written = heavy.run(one_day(feed, target, prefix, options)).await;
            drop(place);
            written.map_err(|failure| anyhow::anyhow!("{failure}"))?
        });
    }
    let (mut rows, mut bytes) = (0, 0);
    while let Some(written) = work.join_next().await {
        let (of_day, size) = written??;
        rows += of_day;
        bytes += size;
    }
    let seconds = began.elapsed().as_secs_f64();
    let (peak_mb, cpu_seconds) = resource_usage()?;
    Ok(PhaseResult {
        rows,
        bytes,
        seconds,
        cpu_seconds,
        peak_mb,
    })
}

async fn one_day(
    mut feed: RowSource,
    target: Arc<dyn ObjectStore>,
    prefix: String,
    options: FileOptions,
) -> anyhow::Result<(u64, u64)> {
    let (mut rows, mut bytes) = (0, 0);
    for seq in 0.. {
        let path = Path::from(format!("{prefix}/{}", file_name(ExportRunId::nil(), seq)));
        let sealed = write_file(&mut feed, target.clone(), path, &options, End::Roll, &mut |_| {}).await?;
        let Some(sealed) = sealed else { break };
        let written = sealed.complete().await?;
        rows += written.rows;
        bytes += written.bytes;
    }
    Ok((rows, bytes))
}

/// A folder next to the rows, or `s3://bucket/prefix` with the usual AWS variables.
fn destination(folder: &Folder, to: Option<&str>) -> anyhow::Result<Destination> {
    let settings = Settings {
        guard: Guard::new(Policy::development()),
        file_root: Some(folder.join("exports")),
        environment_credentials: None,
    };
    let Some(address) = to.filter(|to| *to != "file") else {
        let config = DestinationConfig::default();
        return Ok(Destination::open(&settings, DestinationKind::File, &config, None)?);
    };
    let address = url::Url::parse(address).context("--destination")?;
    if address.scheme() != "s3" {
        bail!("--destination: expected file or s3://bucket/prefix");
    }
    let environment: BTreeMap<String, String> = crate::config::read_environment().into_iter().collect();
    let variable = |name: &str| environment.get(name).cloned();
    let needed = |name: &str| variable(name).with_context(|| format!("{name} is not set"));
    let config = DestinationConfig {
        bucket_name: address.host_str().map(str::to_owned),
        prefix: address.path().trim_matches('/').to_owned(),
        region: variable("AWS_REGION"),
        endpoint_url: variable("AWS_ENDPOINT_URL"),
        // The same options as with a TLS endpoint.
        config_kwargs_s3: Some(S3Options {
            payload_signing_enabled: Some(false),
            ..S3Options::default()
        }),
        ..DestinationConfig::default()
    };
    let credentials = Credentials {
        access_key_id: Secret::new(needed("AWS_ACCESS_KEY_ID")?),
        secret_access_key: Secret::new(needed("AWS_SECRET_ACCESS_KEY")?),
        session_token: variable("AWS_SESSION_TOKEN").map(Secret::new),
    };
    Ok(Destination::open(
        &settings,
        DestinationKind::S3,
        &config,
        Some(&credentials),
    )?)
}
