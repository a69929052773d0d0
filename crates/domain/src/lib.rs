//! The nouns of Towpath and the rules about them.
//!
//! Promises: every type here is plain data, every function here is a pure decision. No I/O, no environment, no
//! SQL text; time and randomness are handed in through [`Clock`]. Rooms above (`store`, `durable`, `api`) share
//! these types, so a rule is written once and answers the same everywhere.

pub mod agent;
pub mod clock;
pub mod dataset;
pub mod deployment;
pub mod disk;
pub mod export;
pub mod failpoint;
pub mod feedback;
pub mod filter;
pub mod git;
pub mod id;
pub mod job;
pub mod json;
pub mod patch;
pub mod registry;
pub mod rejection;
pub mod sandbox;
pub mod scope;
pub mod secret;
pub mod shard;
pub mod timestamp;
pub mod trace;
pub mod traceparent;

pub use clock::Clock;
pub use disk::{Disk, Disks};
pub use id::{
    AnnotationQueueId, AssistantId, BoxId, BoxRegistryId, ComparativeExperimentId, CronId, DatasetId, DeploymentId,
    DestinationId, ExampleFileId, ExampleId, ExportId, ExportRunId, FeedbackConfigId, FeedbackTokenId,
    ImagePullSecretId, IntegrationId, JobId, KeyId, ListenerId, LogLineId, OrganizationId, PoolId, ProjectId,
    QuarantineId, RequestId, RevisionId, RunId, RunIndexId, ScheduleId, SegmentId, SnapshotId, TemplateId, TenantId,
    ThreadId, TraceRunId, UnitId, UploadId, VolumeId, WorkerId,
};
pub use patch::Patch;
pub use rejection::{Rejection, Why};
pub use scope::{Scope, Scopes};
pub use secret::Secret;
pub use shard::Shard;
pub use timestamp::Timestamp;
pub use traceparent::Traceparent;
