//! Typed ids. Each is a UUID on the wire, `uuid` on PostgreSQL and a 16-byte BLOB on SQLite.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

macro_rules! id {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, sqlx::Type)]
        #[sqlx(transparent)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl $name {
            /// A new id. Version 7: ids made one after another in one process sort in that order, which keeps
            /// indexes dense.
            #[must_use]
            #[expect(clippy::new_without_default, reason = "two defaults would differ, which surprises")]
            pub fn new() -> Self {
                Self(Uuid::now_v7())
            }

            /// The id of all zeros, smaller than every real one: where a rotating cursor begins.
            #[must_use]
            pub const fn nil() -> Self {
                Self(Uuid::nil())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                text.parse().map(Self)
            }
        }

        impl From<Uuid> for $name {
            fn from(id: Uuid) -> Self {
                Self(id)
            }
        }
    )*};
}

id! {
    /// A durable job.
    JobId,
    /// One life of a worker process; a restart is a new worker.
    WorkerId,
    /// A schedule of the engine: something that spawns work at its `next_at`.
    ScheduleId,
    /// A workspace. Official clients call it tenant (`X-Tenant-Id`).
    TenantId,
    /// An organisation: owns workspaces and API keys.
    OrganizationId,
    /// An API key; not the key's secret.
    KeyId,
    /// One HTTP request, as logs name it.
    RequestId,
    /// A tracing project. Official clients call it session (`session_id`).
    ProjectId,
    /// A trace run as the client named it.
    TraceRunId,
    /// A unit of the write-ahead log of trace ingest.
    UnitId,
    /// An immutable Parquet file of trace runs.
    SegmentId,
    /// Accepted trace data that could not be folded.
    QuarantineId,
    /// An immutable Parquet file that says where trace runs lie.
    RunIndexId,
    /// A destination of bulk exports.
    DestinationId,
    /// A bulk export.
    ExportId,
    /// One day partition of a bulk export.
    ExportRunId,
    /// A graph with its settings, as the agent server offers it.
    AssistantId,
    /// A conversation of the agent server: its state outlives its runs.
    ThreadId,
    /// One execution of a graph. (A run of tracing is a [`TraceRunId`].)
    RunId,
    /// A recurring run of the agent server.
    CronId,
    /// An agent server that the platform keeps.
    DeploymentId,
    /// One state of what a deployment runs.
    RevisionId,
    /// The process that holds a compute backend.
    ListenerId,
    /// A way into repositories.
    IntegrationId,
    /// Logins of registries of images, under a name.
    ImagePullSecretId,
    /// A line of a revision's log.
    LogLineId,
    /// A source archive that a client sends.
    UploadId,
    /// A link that takes feedback; not its token.
    FeedbackTokenId,
    /// A dataset that applications are evaluated on.
    DatasetId,
    /// One case of a dataset.
    ExampleId,
    /// A file of an example.
    ExampleFileId,
    /// Experiments of a dataset that are judged against each other.
    ComparativeExperimentId,
    /// How the scores of a key of feedback are meant.
    FeedbackConfigId,
    /// Trace runs that people are asked to judge.
    AnnotationQueueId,
    /// A box: an isolated machine. Official clients call it sandbox.
    BoxId,
    /// A volume of boxes.
    VolumeId,
    /// A template of boxes.
    TemplateId,
    /// A pool of boxes that were started ahead.
    PoolId,
    /// The files of a box, kept.
    SnapshotId,
    /// A registry that boxes' images come from.
    BoxRegistryId,
}

/// The namespace under which clients make the ids of assistants that come with a graph.
const GRAPHS: Uuid = uuid::uuid!("6ba7b821-9dad-11d1-80b4-00c04fd430c8");

impl AssistantId {
    /// The id of the assistant that comes with the graph of this name. Clients compute it too (UUID version 5), so it
    /// never changes.
    #[must_use]
    pub fn of_graph(graph: &str) -> Self {
        Self(Uuid::new_v5(&GRAPHS, graph.as_bytes()))
    }

    /// A new random id (UUID version 4), as clients of assistants expect them.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "ids are made here")]
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_assistant_of_a_graph_has_the_id_that_clients_compute() {
        assert_eq!(
            AssistantId::of_graph("agent").to_string(),
            "fe096781-5601-53d2-b2f6-0d3403f7e9ca"
        );
    }
}
