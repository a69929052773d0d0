//! Ends of export runs that did not succeed, in a constant number of statements for all runs of an export.

use std::collections::BTreeMap;

use towpath_domain::export::ExportStatus;
use towpath_domain::job::EndReason;
use towpath_domain::{ExportRunId, TenantId};
use towpath_store::exports::runs;
use towpath_store::segments::pins;
use towpath_store::{self as store, Tx};

use super::ExportPart;
use crate::clean_export::{self, CleanExport};

pub(super) async fn end_all(tx: &mut Tx<'_>, inputs: &[ExportPart], ended: &EndReason) -> store::Result<()> {
    let mut tenants: BTreeMap<TenantId, Vec<ExportRunId>> = BTreeMap::new();
    for input in inputs {
        tenants.entry(input.tenant).or_default().push(input.run);
    }
    for (tenant, ids) in tenants {
        end_runs(tx, tenant, &ids, ended).await?;
    }
    Ok(())
}

async fn end_runs(tx: &mut Tx<'_>, tenant: TenantId, ids: &[ExportRunId], ended: &EndReason) -> store::Result<()> {
    let (status, error) = match ended {
        EndReason::Cancelled => {
            runs::cancel_all(tx, tenant, ids).await?;
            return release_pins(tx, tenant, ids).await;
        }
        EndReason::Failed(error) => (ExportStatus::Failed, error.as_str()),
        EndReason::TimedOut => (ExportStatus::TimedOut, "the export run exceeded its time limit"),
    };
    for run in ids {
        runs::finish(tx, tenant, *run, status, Some(error)).await?;
    }
    release_pins(tx, tenant, ids).await
}

/// Releases the pins of runs, and starts the cleanup at their destination.
async fn release_pins(tx: &mut Tx<'_>, tenant: TenantId, ids: &[ExportRunId]) -> store::Result<()> {
    let left = runs::to_be_cleaned(tx, tenant, ids).await?;
    let holders: Vec<_> = ids.iter().map(|id| id.0).collect();
    pins::unpin_all(tx, &holders).await?;
    let clean: Vec<_> = left
        .into_iter()
        .map(|(export, run)| CleanExport::run(tenant, export, run))
        .collect();
    clean_export::start_all(tx, tenant, &clean).await
}
