//! How runs end other than well: as many statements for all runs of an export as for one.

use std::collections::BTreeMap;

use towpath_domain::export::ExportStatus;
use towpath_domain::job::Ended;
use towpath_domain::{ExportRunId, TenantId};
use towpath_store::exports::runs;
use towpath_store::segments::pins;
use towpath_store::{self as store, Tx};

use super::ExportPart;
use crate::clean_export::{self, CleanExport};

/// Settles the rows of these runs.
pub(super) async fn end_all(tx: &mut Tx<'_>, inputs: &[ExportPart], ended: &Ended) -> store::Result<()> {
    let mut tenants: BTreeMap<TenantId, Vec<ExportRunId>> = BTreeMap::new();
    for input in inputs {
        tenants.entry(input.tenant).or_default().push(input.run);
    }
    for (tenant, ids) in tenants {
        end_runs(tx, tenant, &ids, ended).await?;
    }
    Ok(())
}

async fn end_runs(tx: &mut Tx<'_>, tenant: TenantId, ids: &[ExportRunId], ended: &Ended) -> store::Result<()> {
    let (status, error) = match ended {
        Ended::Cancelled => {
            runs::cancel_all(tx, tenant, ids).await?;
            return let_go(tx, tenant, ids).await;
        }
        Ended::Failed(error) => (ExportStatus::Failed, error.as_str()),
        Ended::TimedOut => (ExportStatus::TimedOut, "the export run ran out of time"),
    };
    for run in ids {
        runs::finish(tx, tenant, *run, status, Some(error)).await?;
    }
    let_go(tx, tenant, ids).await
}

/// Lets go of what runs have pinned, and has what they left at their destination tidied up.
async fn let_go(tx: &mut Tx<'_>, tenant: TenantId, ids: &[ExportRunId]) -> store::Result<()> {
    let left = runs::to_be_cleaned(tx, tenant, ids).await?;
    let holders: Vec<_> = ids.iter().map(|id| id.0).collect();
    pins::unpin_all(tx, &holders).await?;
    let clean: Vec<_> = left
        .into_iter()
        .map(|(export, run)| CleanExport::run(tenant, export, run))
        .collect();
    clean_export::start_all(tx, tenant, &clean).await
}
