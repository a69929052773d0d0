//! Enumerations for the API description, derived from the domain types.

use std::borrow::Cow;

use towpath_domain::deployment::{DeploymentStatus, DeploymentType, RevisionStatus, Source};
use towpath_domain::export::{Compression, ExportStatus, Field};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

macro_rules! names {
    ($($(#[$doc:meta])* $name:ident = $values:expr;)*) => {$(
        $(#[$doc])*
        pub struct $name;

        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                ObjectBuilder::new().schema_type(Type::String).enum_values(Some($values)).into()
            }
        }

        impl ToSchema for $name {
            fn name() -> Cow<'static, str> {
                stringify!($name).into()
            }
        }
    )*};
}

names! {
    /// Status of an export or an export run.
    Status = [
        ExportStatus::Created, ExportStatus::Running, ExportStatus::Completed, ExportStatus::Failed,
        ExportStatus::Cancelled, ExportStatus::TimedOut,
    ].map(ExportStatus::as_str);
    /// Status that an export can be set to.
    NewStatus = ["Cancelled", "CANCELLED"];
    /// A field that can be exported.
    ExportField = Field::ALL.map(Field::name);
    /// Compression of columns in exported files.
    CompressionName = Compression::NAMES;
    /// Order of trace runs.
    RunOrder = ["desc", "asc"];
    /// File format.
    Format = ["Parquet"];
    /// Layout and column types.
    FormatVersion = ["v1", "v2_beta"];
    /// Kind of a destination.
    DestinationType = ["s3", "file"];
    /// How requests name a bucket.
    Addressing = ["auto", "virtual", "path"];
    DeploymentSource = [Source::Github, Source::ExternalDocker, Source::InternalDocker, Source::InternalSource]
        .map(Source::as_str);
    /// Default size of a deployment.
    DeploymentTypeName = [DeploymentType::DevFree, DeploymentType::Dev, DeploymentType::Prod, DeploymentType::DevZero]
        .map(DeploymentType::as_str);
    /// Status of a deployment.
    DeploymentState = [
        DeploymentStatus::AwaitingDatabase, DeploymentStatus::Ready, DeploymentStatus::Unused,
        DeploymentStatus::AwaitingDelete, DeploymentStatus::Unknown,
    ].map(DeploymentStatus::as_str);
    RevisionState = RevisionStatus::ALL.map(RevisionStatus::as_str);
    /// Sort direction.
    Order = ["asc", "desc"];
    /// Level of a log line.
    LogLevel = ["DEBUG", "INFO", "WARNING", "ERROR"];
    /// Compute backend of a listener; `process` is the built-in one.
    ComputeType = ["k8s", "process"];
}
