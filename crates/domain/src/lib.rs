//! The domain types of Towpath and their rules.
//!
//! Every type is plain data, every function a pure decision: no I/O, no environment, no SQL; time comes from [`Clock`].
//! All other crates share these types, so each rule exists once.

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
mod metric_table;
pub mod patch;
pub mod prompt;
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
pub use disk::{DiskStatus, DiskStatuses};
pub use id::{
    AnnotationQueueId, AssistantId, BoxId, BoxRegistryId, ComparativeExperimentId, CronId, DatasetId, DeploymentId,
    DestinationId, ExampleFileId, ExampleId, ExportId, ExportRunId, FeedbackConfigId, FeedbackTokenId,
    ImagePullSecretId, IntegrationId, JobId, KeyId, ListenerId, LogLineId, ModelPriceId, OrganizationId, PoolId,
    ProjectId, PromptCommitId, PromptId, QuarantineId, RequestId, RevisionId, RunId, RunIndexId, ScheduleId, SegmentId,
    SnapshotId, TemplateId, TenantId, ThreadId, TraceRunId, UploadId, VolumeId, WalSegmentId, WorkerId,
};
pub use patch::Patch;
pub use rejection::{Rejection, RejectionKind};
pub use scope::{Scope, Scopes};
pub use secret::Secret;
pub use shard::Shard;
pub use timestamp::Timestamp;
pub use traceparent::Traceparent;
