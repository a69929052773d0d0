//! Files of examples. A row of `example` names them; their bytes are here until the example or its dataset is deleted for good,
//! since earlier versions name them too.

use std::collections::{BTreeMap, HashSet};

use serde::{Deserialize, Serialize};
use towpath_domain::dataset::check_label;
use towpath_domain::{DatasetId, ExampleFileId, ExampleId, Rejection, TenantId};

use crate::{Error, Result, Tx};

/// Files of one example.
const MOST_FILES: usize = 100;

/// A file, as a row of `example` names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct File {
    /// Unique in the example.
    pub name: String,
    /// As the client said.
    pub mime_type: String,
    /// Where its bytes are.
    pub id: ExampleFileId,
}

/// A file to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewFile {
    /// Its name.
    pub name: String,
    /// As the client said.
    pub mime_type: String,
    /// Its bytes.
    pub data: Vec<u8>,
}

/// What becomes of the files that an example has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Kept {
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

impl Kept {
    /// The files that stay.
    pub(super) fn of(&self, files: Vec<File>) -> Result<Vec<File>> {
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

/// Stores new files of an example; one takes the place of a file of its name. Answers how many bytes came.
pub(super) async fn add(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    dataset: DatasetId,
    example: ExampleId,
    files: &mut Vec<File>,
    new: &[NewFile],
) -> Result<i64> {
    let mut bytes = 0;
    for file in new {
        check_label("attachments", &file.name)?;
        let id = ExampleFileId::new();
        let size = i64::try_from(file.data.len()).unwrap_or(i64::MAX);
        files.retain(|known| known.name != file.name);
        files.push(File {
            name: file.name.clone(),
            mime_type: file.mime_type.clone(),
            id,
        });
        on!(tx, |conn| sqlx::query(
            "INSERT INTO example_file (tenant_id, id, dataset_id, example_id, mime_type, data, bytes)
             VALUES ($1, $2, $3, $4, $5, $6, $7)"
        )
        .bind(tenant)
        .bind(id)
        .bind(dataset)
        .bind(example)
        .bind(&file.mime_type)
        .bind(&file.data[..])
        .bind(size)
        .execute(conn)
        .await
        .map(drop))?;
        bytes += size;
    }
    let names: HashSet<&str> = files.iter().map(|file| file.name.as_str()).collect();
    if names.len() < files.len() {
        let text = "two attachments of the example would have the same name";
        return Err(Rejection::rule("attachments", text).into());
    }
    if files.len() > MOST_FILES {
        let text = format!("an example has at most {MOST_FILES} attachments");
        return Err(Rejection::rule("attachments", text).into());
    }
    for file in files.iter() {
        check_label("attachments", &file.name)?;
    }
    Ok(bytes)
}

/// A file with its bytes.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct Contents {
    /// As the client said.
    pub mime_type: String,
    /// Its bytes.
    pub data: Vec<u8>,
}

/// The bytes of a file.
///
/// # Errors
/// [`Error::NotFound`], also for a file of another workspace.
pub async fn get(tx: &mut Tx<'_>, tenant: TenantId, id: ExampleFileId) -> Result<Contents> {
    Ok(on!(tx, |conn| sqlx::query_as(
        "SELECT mime_type, data FROM example_file WHERE tenant_id = $1 AND id = $2"
    )
    .bind(tenant)
    .bind(id)
    .fetch_one(conn)
    .await)?)
}

/// The files that a row of `example` names.
pub(super) fn parse(example: ExampleId, text: &str) -> Result<Vec<File>> {
    serde_json::from_str(text).map_err(|_| Error::corrupt("example", "files", example))
}
