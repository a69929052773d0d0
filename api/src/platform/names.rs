//! Texts with a fixed set of values, for the API description: taken from the domain, so that the two cannot differ.

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
    /// How far an export or an export run is.
    Status = [
        ExportStatus::Created, ExportStatus::Running, ExportStatus::Completed, ExportStatus::Failed,
        ExportStatus::Cancelled, ExportStatus::TimedOut,
    ].map(ExportStatus::as_str);
    /// What the status of an export can be set to.
    NewStatus = ["Cancelled", "CANCELLED"];
    /// A field that can be exported.
    ExportField = Field::ALL.map(Field::name);
    /// How the columns of an exported file are compressed.
    CompressionName = Compression::NAMES;
    /// Which trace runs come first.
    RunOrder = ["desc", "asc"];
    /// File format.
    Format = ["Parquet"];
    /// Layout and column types.
    FormatVersion = ["v1", "v2_beta"];
    /// Kind of a destination.
    DestinationType = ["s3", "file"];
    /// How a bucket is named in a request.
    Addressing = ["auto", "virtual", "path"];
    /// Where a deployment comes from.
    DeploymentSource = [Source::Github, Source::ExternalDocker, Source::InternalDocker, Source::InternalSource]
        .map(Source::as_str);
    /// How large a deployment is by default.
    DeploymentTypeName = [DeploymentType::DevFree, DeploymentType::Dev, DeploymentType::Prod, DeploymentType::DevZero]
        .map(DeploymentType::as_str);
    /// Where a deployment stands.
    DeploymentState = [
        DeploymentStatus::AwaitingDatabase, DeploymentStatus::Ready, DeploymentStatus::Unused,
        DeploymentStatus::AwaitingDelete, DeploymentStatus::Unknown,
    ].map(DeploymentStatus::as_str);
    /// Where a revision stands.
    RevisionState = RevisionStatus::ALL.map(RevisionStatus::as_str);
    /// Which way a list goes.
    Order = ["asc", "desc"];
    /// How loud a log line is.
    LogLevel = ["DEBUG", "INFO", "WARNING", "ERROR"];
    /// What a listener deploys to: `process` is the built-in one.
    ComputeType = ["k8s", "process"];
}
