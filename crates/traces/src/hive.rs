//! Where exported files are.
//!
//! ```text
//! <prefix>/export_id=<export>/tenant_id=<workspace>/session_id=<project>/runs/year=2026/month=01/day=09/<file>
//! <prefix>/export_id=<export>/tenant_id=<workspace>/session_id=<project>/resource=runs/year=2026/…      (v2_beta)
//! <prefix>/export_id=<export>/_manifest.json
//! ```
//!
//! The manifest is outside of the partition folders, so that a reader of `export_id=*/tenant_id=*/…` never takes
//! it for data. Months and days have two digits; the day is the UTC day on which a trace run started.

use chrono::{Datelike, NaiveDate};
use object_store::path::{Path, PathPart};
use towpath_domain::export::FormatVersion;
use towpath_domain::{ExportId, ProjectId, Rejection, TenantId};

/// Longest prefix in bytes, as in the hosted service. S3 limits keys to 1024 bytes.
const MAX_PREFIX: usize = 2048;

/// Checked beginning of every key of a destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefix(Path);

impl Prefix {
    /// Checks a prefix. Slashes at its ends are ignored; other characters are kept.
    pub fn new(prefix: &str) -> Result<Self, Rejection> {
        let refuse = |why: &str| Rejection::invalid("config.prefix", format!("the prefix {why}"));
        if prefix.len() > MAX_PREFIX {
            return Err(refuse("has more than 2048 bytes"));
        }
        if prefix.chars().any(char::is_control) {
            return Err(refuse("has control characters"));
        }
        if prefix.contains('\\') {
            return Err(refuse("has a backslash; parts are separated by `/`"));
        }
        let trimmed = prefix.trim_matches('/');
        if trimmed
            .split('/')
            .any(|part| matches!(part, "." | "..") || (part.is_empty() && !trimmed.is_empty()))
        {
            return Err(refuse("has a part that is empty, `.` or `..`"));
        }
        Path::parse(trimmed)
            .map(Self)
            .map_err(|error| refuse(&format!("can't be used: {error}")))
    }

    /// Prepends the bucket's name, for destinations with `include_bucket_in_prefix`, unless it is there already.
    pub fn with_bucket(self, bucket: &str) -> Result<Self, Rejection> {
        let name = PathPart::parse(bucket)
            .ok()
            .filter(|_| !bucket.is_empty())
            .ok_or_else(|| Rejection::invalid("config.bucket_name", format!("`{bucket}` is not a bucket name")))?;
        if self.0.parts().next().is_some_and(|first| first == name) {
            return Ok(self);
        }
        let parts = std::iter::once(name.clone()).chain(self.0.parts());
        Ok(Self(join(parts)))
    }

    /// Folder of one export.
    #[must_use]
    pub fn export(&self, export: ExportId) -> Path {
        self.child([format!("export_id={export}")])
    }

    /// Folder of one day of an export.
    #[must_use]
    pub fn partition(
        &self,
        version: FormatVersion,
        export: ExportId,
        tenant: TenantId,
        project: ProjectId,
        day: NaiveDate,
    ) -> Path {
        let runs = match version {
            FormatVersion::V1 => "runs",
            FormatVersion::V2Beta => "resource=runs",
        };
        self.child([
            format!("export_id={export}"),
            format!("tenant_id={tenant}"),
            format!("session_id={project}"),
            runs.to_owned(),
            format!("year={:04}", day.year()),
            format!("month={:02}", day.month()),
            format!("day={:02}", day.day()),
        ])
    }

    /// The manifest of an export.
    #[must_use]
    pub fn manifest(&self, export: ExportId) -> Path {
        self.child([format!("export_id={export}"), "_manifest.json".to_owned()])
    }

    /// A file that tests write access to the destination. `name` should be unique.
    #[must_use]
    pub fn test_file(&self, name: &str) -> Path {
        self.child(["tmp".to_owned(), format!("{name}.txt")])
    }

    fn child<const N: usize>(&self, parts: [String; N]) -> Path {
        let parts = parts.map(PathPart::from);
        join(self.0.parts().chain(parts))
    }
}

/// Joins parts without encoding them again: S3 gets the characters that the user wrote.
fn join<'a>(parts: impl Iterator<Item = PathPart<'a>>) -> Path {
    let key = parts.map(|part| part.as_ref().to_owned()).collect::<Vec<_>>().join("/");
    Path::parse(key).expect("every part was checked, and none has a slash")
}

/// A file in a partition's folder.
#[must_use]
pub fn file(partition: &Path, name: &str) -> Path {
    partition.clone().join(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    fn partition(prefix: &Prefix) -> String {
        let [export, tenant, project] = [1, 2, 3].map(Uuid::from_u128);
        let day = NaiveDate::from_ymd_opt(2026, 1, 9).unwrap();
        prefix
            .partition(
                FormatVersion::V1,
                ExportId(export),
                TenantId(tenant),
                ProjectId(project),
                day,
            )
            .to_string()
    }

    const BELOW: &str = "export_id=00000000-0000-0000-0000-000000000001/tenant_id=00000000-0000-0000-0000-000000000002/session_id=00000000-0000-0000-0000-000000000003/runs/year=2026/month=01/day=09";

    #[test]
    fn the_path_is_the_contracts() {
        for (prefix, head) in [
            ("", ""),
            ("/", ""),
            ("traces", "traces/"),
            ("/a b/c%20d~#é/", "a b/c%20d~#é/"),
        ] {
            assert_eq!(partition(&Prefix::new(prefix).unwrap()), format!("{head}{BELOW}"));
        }
        let prefix = Prefix::new("p").unwrap();
        let export = ExportId(Uuid::from_u128(1));
        let (tenant, project) = (TenantId(Uuid::from_u128(2)), ProjectId(Uuid::from_u128(3)));
        let day = NaiveDate::from_ymd_opt(2026, 1, 9).unwrap();
        assert_eq!(
            prefix
                .partition(FormatVersion::V2Beta, export, tenant, project, day)
                .to_string(),
            format!("p/{}", BELOW.replace("/runs/", "/resource=runs/"))
        );
        assert_eq!(
            prefix.manifest(export).as_ref(),
            "p/export_id=00000000-0000-0000-0000-000000000001/_manifest.json"
        );
        assert_eq!(prefix.test_file("x").as_ref(), "p/tmp/x.txt");
        assert_eq!(
            file(&prefix.export(export), "f.parquet").as_ref(),
            "p/export_id=00000000-0000-0000-0000-000000000001/f.parquet"
        );
    }

    #[test]
    fn a_bucket_stands_in_front_once() {
        for (prefix, expected) in [
            ("", "b-1/"),
            ("x/y", "b-1/x/y/"),
            ("b-1", "b-1/"),
            ("b-1/x", "b-1/x/"),
            ("b-12", "b-1/b-12/"),
        ] {
            let prefix = Prefix::new(prefix).unwrap().with_bucket("b-1").unwrap();
            assert_eq!(partition(&prefix), format!("{expected}{BELOW}"));
        }
        for bucket in ["", "..", "a/b"] {
            assert!(Prefix::new("x").unwrap().with_bucket(bucket).is_err());
        }
    }

    #[test]
    fn prefixes_cannot_lead_elsewhere() {
        for prefix in ["..", "a/../b", "./a", "a//b", "a\\b", "a\nb", "a\0", &"x".repeat(2049)] {
            assert_eq!(Prefix::new(prefix).unwrap_err().field, "config.prefix", "{prefix}");
        }
    }
}
