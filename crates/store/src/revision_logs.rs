//! Log lines of revisions and deployments.
//!
//! A line's id is created inside the recording transaction and sorts in the order of recording, so a reader can
//! continue after the last id it has seen.

use towpath_domain::deployment::{Level, LogKind};
use towpath_domain::{DeploymentId, LogLineId, RevisionId, TenantId, Timestamp};
use uuid::Uuid;

use crate::query::{Arg, Query};
use crate::{Result, Tx};

/// Longest line that is kept, in characters; the rest is cut.
const LONGEST: usize = 16_000;

#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct LogLine {
    /// Id; sorts in the order of recording.
    pub id: LogLineId,
    /// The revision it is about, if one.
    pub revision_id: Option<RevisionId>,
    /// Whose words.
    pub kind: LogKind,
    pub at: Timestamp,
    /// How loud.
    pub level: Level,
    pub message: String,
}

/// A line to record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewLine {
    pub at: Timestamp,
    /// How loud.
    pub level: Level,
    pub message: String,
}

/// Records lines in their order.
pub async fn append(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    deployment: DeploymentId,
    revision: Option<RevisionId>,
    kind: LogKind,
    lines: &[NewLine],
) -> Result<()> {
    // A hundred lines of eight values stay far below what a statement may carry.
    for chunk in lines.chunks(100) {
        let mut query = Query::new(
            tx,
            "INSERT INTO revision_log (id, tenant_id, deployment_id, revision_id, kind, at, level, message) VALUES ",
        );
        for (index, line) in chunk.iter().enumerate() {
            query.push(if index == 0 { "(" } else { ", (" });
            query.bind(Arg::Uuid(LogLineId::new().0)).push(", ");
            query.bind(Arg::Uuid(tenant.0)).push(", ");
            query.bind(Arg::Uuid(deployment.0)).push(", ");
            match revision {
                Some(revision) => query.bind(Arg::Uuid(revision.0)),
                None => query.push("NULL"),
            };
            query.push(match kind {
                LogKind::Build => ", 'build', ",
                LogKind::Deploy => ", 'deploy', ",
            });
            query.bind(Arg::Time(line.at)).push(", ");
            query.bind(Arg::Text(line.level.as_str().to_owned())).push(", ");
            let text = line
                .message
                .chars()
                .filter(|letter| *letter != '\0')
                .take(LONGEST)
                .collect();
            query.bind(Arg::Text(text)).push(")");
        }
        query.execute(tx).await?;
    }
    Ok(())
}

/// Which lines are asked for.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Of this revision; otherwise of the whole deployment.
    pub revision: Option<RevisionId>,
    /// Only these words; otherwise all.
    pub kind: Option<LogKind>,
    /// At least this loud.
    pub level: Option<Level>,
    /// With this in the message, in any case.
    pub query: Option<String>,
    /// Said at or after.
    pub start: Option<Timestamp>,
    /// Said before.
    pub end: Option<Timestamp>,
    /// Recorded after this line, or before it where the newest come first.
    pub past: Option<LogLineId>,
    pub newest_first: bool,
}

/// Lines of a deployment.
pub async fn list(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    deployment: DeploymentId,
    filter: &Filter,
    limit: i64,
) -> Result<Vec<LogLine>> {
    if filter.query.as_ref().is_some_and(|text| text.contains('\0')) {
        return Ok(Vec::new()); // PostgreSQL refuses the parameter itself.
    }
    let mut query = Query::new(
        tx,
        "SELECT id, revision_id, kind, at, level, message FROM revision_log WHERE tenant_id = ",
    );
    query.bind(Arg::Uuid(tenant.0)).push(" AND deployment_id = ");
    query.bind(Arg::Uuid(deployment.0));
    if let Some(revision) = filter.revision {
        query.push(" AND revision_id = ").bind(Arg::Uuid(revision.0));
    }
    match filter.kind {
        Some(LogKind::Build) => _ = query.push(" AND kind = 'build'"),
        Some(LogKind::Deploy) => _ = query.push(" AND kind = 'deploy'"),
        None => {}
    }
    if let Some(least) = filter.level {
        query.push(" AND ");
        let loud = Level::ALL.into_iter().filter(|level| *level >= least);
        query.any_of("level", loud.map(|level| Arg::Text(level.as_str().to_owned())));
    }
    if let Some(part) = &filter.query {
        let pattern: String = part
            .to_lowercase()
            .chars()
            .flat_map(|letter| {
                ['\\']
                    .into_iter()
                    .filter(move |_| "%_\\".contains(letter))
                    .chain([letter])
            })
            .collect();
        query.push(" AND lower(message) LIKE ");
        query.bind(Arg::Text(format!("%{pattern}%"))).push(" ESCAPE '\\'");
    }
    if let Some(start) = filter.start {
        query.push(" AND at >= ").bind(Arg::Time(start));
    }
    if let Some(end) = filter.end {
        query.push(" AND at < ").bind(Arg::Time(end));
    }
    if let Some(past) = filter.past {
        query.push(if filter.newest_first {
            " AND id < "
        } else {
            " AND id > "
        });
        query.bind(Arg::Uuid(past.0));
    }
    query.push(if filter.newest_first {
        " ORDER BY id DESC"
    } else {
        " ORDER BY id"
    });
    query.limit(limit);
    query.fetch_all(tx).await
}

/// Deletes at most `limit` lines of agent servers that were recorded before `before`, oldest first, and returns how
/// many. Lines of builds stay with their revision.
pub async fn forget(tx: &mut Tx<'_>, before: Timestamp, limit: i64) -> Result<u64> {
    // Ids begin with their millisecond, so that no line but those that are old is looked at.
    let millis = u128::from(before.micros().max(0).unsigned_abs() / 1000);
    let first_kept = LogLineId(Uuid::from_u128(millis << 80));
    Ok(on!(tx, |conn| sqlx::query(
        "DELETE FROM revision_log WHERE id IN (
             SELECT id FROM revision_log WHERE id < $1 AND kind = 'deploy' ORDER BY id LIMIT $2 + 0)"
    )
    .bind(first_kept)
    .bind(limit)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?)
}

/// Deletes at most `limit` lines of a revision beyond its newest `keep` of that kind. Returns how many.
pub async fn trim(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    revision: RevisionId,
    kind: LogKind,
    keep: i64,
    limit: i64,
) -> Result<u64> {
    let kind = match kind {
        LogKind::Build => "build",
        LogKind::Deploy => "deploy",
    };
    Ok(on!(tx, |conn| sqlx::query(
        "DELETE FROM revision_log WHERE id IN (
             SELECT id FROM revision_log WHERE tenant_id = $1 AND revision_id = $2 AND kind = $3 AND id <= (
                 SELECT id FROM revision_log WHERE tenant_id = $1 AND revision_id = $2 AND kind = $3
                 ORDER BY id DESC LIMIT 1 OFFSET $4 + 0)
             ORDER BY id LIMIT $5 + 0)"
    )
    .bind(tenant)
    .bind(revision)
    .bind(kind)
    .bind(keep)
    .bind(limit)
    .execute(conn)
    .await
    .map(|done| done.rows_affected()))?)
}
