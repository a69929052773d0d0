//! Files of examples. Rows of `example` refer to them; they are kept until the example or its dataset is deleted
//! permanently, since earlier versions refer to them too.

use std::collections::{BTreeMap, HashSet};

use serde::{Deserialize, Serialize};
use towpath_domain::dataset::{check_label, check_mime_type};
use towpath_domain::{DatasetId, ExampleFileId, ExampleId, Rejection, TenantId};

use super::split_into_statements;
use crate::query::{Arg, Query};
use crate::{Error, Result, Tx};

/// Files of one example.
const MAX_FILES: usize = 100;

/// A file, as a row of `example` names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExampleFile {
    /// Unique in the example.
    pub name: String,
    /// As sent by the client.
    pub mime_type: String,
    /// Where its bytes are.
    pub id: ExampleFileId,
}

/// A file to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewFile {
    pub name: String,
    /// As sent by the client.
    pub mime_type: String,
    pub data: Vec<u8>,
}

/// What happens to the existing files of an example.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum FileRetention {
    /// All stay.
    #[default]
    All,
    /// Those that are named stay, some under another name.
    Named {
        /// New names by old ones.
        rename: BTreeMap<String, String>,
        /// Names that stay.
        retain: Vec<String>,
    },
}

impl FileRetention {
    /// The files that stay.
    pub(super) fn retain(&self, files: Vec<ExampleFile>) -> Result<Vec<ExampleFile>> {
        let Self::Named { rename, retain } = self else {
            return Ok(files);
        };
        let known: HashSet<&str> = files.iter().map(|file| file.name.as_str()).collect();
        if let Some(missing) = rename.keys().chain(retain).find(|name| !known.contains(name.as_str())) {
            let text = format!("the example has no attachment `{missing}`");
            return Err(Rejection::rule("attachments_operations", text).into());
        }
        let kept = files.into_iter().filter_map(|mut file| {
            if let Some(name) = rename.get(&file.name) {
                file.name.clone_from(name);
                return Some(file);
            }
            retain.contains(&file.name).then_some(file)
        });
        Ok(kept.collect())
    }
}

/// A file that is named, and must be stored.
pub(super) struct PendingFile<'a> {
    id: ExampleFileId,
    example: ExampleId,
    file: &'a NewFile,
}

/// Names new files of an example; one replaces a file of its name. Returns how many bytes come.
pub(super) fn add_files<'a>(
    example: ExampleId,
    files: &mut Vec<ExampleFile>,
    new: &'a [NewFile],
    arrivals: &mut Vec<PendingFile<'a>>,
) -> Result<i64> {
    let mut bytes = 0;
    // A first look, since each of the new ones is looked for among all.
    check_count(new.len())?;
    for (at, file) in new.iter().enumerate() {
        check_label("attachments", &file.name)?;
        check_mime_type(&file.mime_type)?;
        if new[..at].iter().any(|other| other.name == file.name) {
            let text = "two attachments of an example have the same name";
            return Err(Rejection::rule("attachments", text).into());
        }
        let id = ExampleFileId::new();
        files.retain(|known| known.name != file.name);
        files.push(ExampleFile {
            name: file.name.clone(),
            mime_type: file.mime_type.clone(),
            id,
        });
        arrivals.push(PendingFile { id, example, file });
        bytes += file_bytes(file);
    }
    let names: HashSet<&str> = files.iter().map(|file| file.name.as_str()).collect();
    if names.len() < files.len() {
        let text = "two attachments of the example would have the same name";
        return Err(Rejection::rule("attachments", text).into());
    }
    check_count(files.len())?;
    for file in files.iter() {
        check_label("attachments", &file.name)?;
    }
    Ok(bytes)
}

fn check_count(count: usize) -> Result<(), Rejection> {
    if count > MAX_FILES {
        let text = format!("an example may have at most {MAX_FILES} attachments");
        return Err(Rejection::rule("attachments", text));
    }
    Ok(())
}

fn file_bytes(file: &NewFile) -> i64 {
    i64::try_from(file.data.len()).unwrap_or(i64::MAX)
}

/// Stores files that were named.
pub(super) async fn insert_files(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    dataset: DatasetId,
    arrivals: &[PendingFile<'_>],
) -> Result<()> {
    for some in split_into_statements(arrivals, |arrival| arrival.file.data.len()) {
        let mut query = Query::new(
            tx,
            "INSERT INTO example_file (tenant_id, id, dataset_id, example_id, mime_type, data, bytes) VALUES ",
        );
        query.rows(some.iter().map(|PendingFile { id, example, file }| {
            [
                Arg::Uuid(tenant.0),
                Arg::Uuid(id.0),
                Arg::Uuid(dataset.0),
                Arg::Uuid(example.0),
                Arg::Text(file.mime_type.clone()),
                Arg::Bytes(Some(file.data.clone())),
                Arg::Int(file_bytes(file)),
            ]
        }));
        query.execute(tx).await?;
    }
    Ok(())
}

/// A file with its bytes.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct FileContents {
    /// As sent by the client.
    pub mime_type: String,
    pub data: Vec<u8>,
}

/// The bytes of a file.
pub async fn get(tx: &mut Tx<'_>, tenant: TenantId, id: ExampleFileId) -> Result<FileContents> {
    Ok(on!(tx, |conn| sqlx::query_as(
        "SELECT mime_type, data FROM example_file WHERE tenant_id = $1 AND id = $2"
    )
    .bind(tenant)
    .bind(id)
    .fetch_one(conn)
    .await)?)
}

/// The files that a row of `example` names.
pub(super) fn parse(example: ExampleId, text: &str) -> Result<Vec<ExampleFile>> {
    serde_json::from_str(text).map_err(|_| Error::corrupt("example", "files", example))
}
