//! What ingest is measured against: rows by PostgreSQL's COPY.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sqlx::{Connection, Executor, PgConnection};

use crate::error::{Error, Result};

/// Connections that copy rows into one table: `id, trace_id, parent_run_id, dotted_order, name, run_type, start_time,
/// end_time, error, tags, inputs, outputs, events, extra`, with the id as its key and an index over starts.
pub struct CopyWriters {
    connections: Vec<PgConnection>,
    took: Duration,
}

/// The result of copying.
#[derive(Clone, Copy, Debug)]
pub struct CopyResult {
    /// How long it took, without the time between two calls.
    pub took: Duration,
    /// Table, long texts and indexes. The log beside them is not counted.
    pub bytes: i64,
}

impl CopyWriters {
    /// Makes the table.
    pub async fn open(uri: &str, connections: usize) -> Result<Self> {
        let mut opened = Vec::new();
        for _ in 0..connections.max(1) {
            opened.push(PgConnection::connect(uri).await?);
        }
        opened[0]
            .execute(
                "CREATE TABLE baseline_trace_run (
                     id uuid PRIMARY KEY, trace_id uuid, parent_run_id uuid, dotted_order text, name text, run_type text,
                     start_time timestamptz, end_time timestamptz, error text, tags jsonb, inputs jsonb, outputs jsonb,
                     events jsonb, extra jsonb)",
            )
            .await?;
        opened[0]
            .execute("CREATE INDEX baseline_trace_run_start ON baseline_trace_run (start_time)")
            .await?;
        Ok(Self {
            connections: opened,
            took: Duration::ZERO,
        })
    }

    /// Copies texts in COPY's text format, each in its own transaction, round-robin over all connections.
    pub async fn copy(&mut self, texts: Vec<Vec<u8>>) -> Result<()> {
        let began = Instant::now();
        let texts = Mutex::new(texts);
        let next = || texts.lock().pop();
        let work = self.connections.iter_mut().map(async |connection| {
            while let Some(text) = next() {
                let mut copy = connection.copy_in_raw("COPY baseline_trace_run FROM STDIN").await?;
                copy.send(text).await?;
                copy.finish().await?;
            }
            Ok::<_, Error>(())
        });
        futures::future::try_join_all(work).await.map(drop)?;
        self.took += began.elapsed();
        Ok(())
    }

    /// Returns the result.
    pub async fn finish(mut self) -> Result<CopyResult> {
        let bytes = sqlx::query_scalar("SELECT pg_total_relation_size('baseline_trace_run')")
            .fetch_one(&mut self.connections[0])
            .await?;
        Ok(CopyResult { took: self.took, bytes })
    }
}
