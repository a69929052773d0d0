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
            /// A new id. Version 7: ids sort by creation time within a process, which keeps indexes dense.
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
    JobId,
    /// A process life of a worker; a restart is a new worker.
    WorkerId,
    /// A schedule of the engine, which spawns work at its `next_at`.
    ScheduleId,
    /// A workspace. Official clients call it tenant (`X-Tenant-Id`).
    TenantId,
    /// An organisation: owns workspaces and API keys.
    OrganizationId,
    /// The id of an API key, not its secret.
    KeyId,
    /// One HTTP request, as logs name it.
    RequestId,
    /// A tracing project. Official clients call it session (`session_id`).
    ProjectId,
    /// A trace run as the client named it.
    TraceRunId,
    /// A segment of the write-ahead log of trace ingest.
    WalSegmentId,
    /// An immutable Parquet file of trace runs.
    SegmentId,
    /// Accepted trace data that could not be flushed.
    QuarantineId,
    /// An immutable Parquet file that maps run ids to locations.
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
    /// A deployed agent server.
    DeploymentId,
    /// A revision of a deployment.
    RevisionId,
    /// The process that runs a compute backend.
    ListenerId,
    /// Access to git repositories.
    IntegrationId,
    /// Named credentials for image registries.
    ImagePullSecretId,
    /// A line of a revision's log.
    LogLineId,
    /// An upload of a source archive.
    UploadId,
    /// A feedback link; not its token.
    FeedbackTokenId,
    /// A dataset that applications are evaluated on.
    DatasetId,
    ExampleId,
    ExampleFileId,
    ComparativeExperimentId,
    FeedbackConfigId,
    ModelPriceId,
    AnnotationQueueId,
    PromptId,
    PromptCommitId,
    /// A sandbox: an isolated machine.
    BoxId,
    /// A volume of sandboxes.
    VolumeId,
    /// A template of sandboxes.
    TemplateId,
    /// A pool of sandboxes started in advance.
    PoolId,
    /// A snapshot of a sandbox's files.
    SnapshotId,
    /// An image registry for sandboxes.
    BoxRegistryId,
}

/// The namespace in which clients compute the ids of a graph's default assistants.
const GRAPHS: Uuid = uuid::uuid!("6ba7b821-9dad-11d1-80b4-00c04fd430c8");

impl AssistantId {
    /// The id of the default assistant of this graph. Clients compute it too (UUID version 5), so it never changes.
    #[must_use]
    pub fn of_graph(graph: &str) -> Self {
        Self(Uuid::new_v5(&GRAPHS, graph.as_bytes()))
    }

    /// A random id (UUID version 4), as clients expect for assistants.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "ids are made here")]
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }
}

/// The namespace of the threads whose ids follow from the names that clients gave their contexts.
const CONTEXTS: Uuid = uuid::uuid!("b2a6a4a4-6d8e-5f0e-9b1c-3f1d7f1c2a60");

impl ThreadId {
    /// The thread of a context: its id, or one that follows from its name, the workspace and the caller. Without the
    /// caller, a name would tell whether another one uses it.
    #[must_use]
    pub fn of_context(tenant: TenantId, caller: Option<&str>, name: &str) -> Self {
        name.parse().unwrap_or_else(|_| {
            let owner = format!("{tenant}:{}", caller.unwrap_or_default());
            let names = Uuid::new_v5(&CONTEXTS, owner.as_bytes());
            Self(Uuid::new_v5(&names, name.as_bytes()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_is_a_thread() {
        let (tenant, thread) = (TenantId::new(), ThreadId::new());
        assert_eq!(ThreadId::of_context(tenant, Some("ann"), &thread.to_string()), thread);
        let named = ThreadId::of_context(tenant, Some("ann"), "a conversation");
        assert_eq!(ThreadId::of_context(tenant, Some("ann"), "a conversation"), named);
        for other in [
            ThreadId::of_context(tenant, Some("ann"), "another"),
            ThreadId::of_context(tenant, Some("bob"), "a conversation"),
            ThreadId::of_context(tenant, None, "a conversation"),
            ThreadId::of_context(TenantId::new(), Some("ann"), "a conversation"),
        ] {
            assert_ne!(other, named);
        }
    }

    #[test]
    fn the_assistant_of_a_graph_has_the_id_that_clients_compute() {
        assert_eq!(
            AssistantId::of_graph("agent").to_string(),
            "fe096781-5601-53d2-b2f6-0d3403f7e9ca"
        );
    }
}
