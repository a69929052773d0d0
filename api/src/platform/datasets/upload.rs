//! Creates a dataset from one file: CSV with a header line, or JSON Lines.

use axum::extract::{Request, State};
use serde_json::{Map, Value};
use towpath_domain::dataset::{DataType, MAX_EXAMPLES};
use towpath_domain::{DatasetId, Rejection};
use towpath_store::datasets::examples::{self, NewExample};
use towpath_store::datasets::{self, NewDataset};
use towpath_traces::multipart as parts;
use uuid::Uuid;

use super::{DatasetView, model, multipart};
use crate::app::App;
use crate::auth::Tenant;
use crate::errors::ApiError;
use crate::extract::Json;

/// Fields of the form.
#[derive(Default)]
struct UploadForm<'a> {
    id: Option<DatasetId>,
    name: Option<String>,
    description: Option<String>,
    data_type: DataType,
    input_keys: Vec<String>,
    output_keys: Vec<String>,
    metadata_keys: Vec<String>,
    file: Option<(&'a str, &'a [u8])>,
}

impl<'a> UploadForm<'a> {
    fn parse(boundary: &str, body: &'a [u8]) -> Result<Self, ApiError> {
        let mut form = Self::default();
        for part in parts::parts(body, boundary) {
            let part = part?;
            if part.name == "file" {
                form.file = Some((part.content_type, part.data));
                continue;
            }
            let text = || {
                let text = std::str::from_utf8(part.data).ok();
                text.map(str::to_owned)
                    .ok_or_else(|| Rejection::invalid(part.name, "expected UTF-8"))
            };
            match part.name {
                "id" => {
                    form.id = Some(DatasetId(
                        text()?.parse::<Uuid>().map_err(|_| expected_error("id", "a UUID"))?,
                    ));
                }
                "name" => form.name = Some(text()?),
                "description" => form.description = model::check_text_field("description", Some(text()?))?,
                "data_type" => {
                    let kind = serde_json::from_value(Value::from(text()?));
                    form.data_type = kind.map_err(|_| expected_error("data_type", "kv, llm or chat"))?;
                }
                "input_keys" => form.input_keys.push(text()?),
                "output_keys" => form.output_keys.push(text()?),
                "metadata_keys" => form.metadata_keys.push(text()?),
                other => {
                    return Err(Rejection::unsupported(other, format!("an upload with {other}")).into());
                }
            }
        }
        Ok(form)
    }

    /// Builds an example from the columns of a row.
    fn example(&self, row: &Map<String, Value>) -> NewExample {
        let pick = |keys: &[String]| -> Map<String, Value> {
            let picked = keys.iter().filter_map(|key| Some((key.clone(), row.get(key)?.clone())));
            picked.collect()
        };
        let text = |keys: &[String]| Value::from(pick(keys)).to_string();
        NewExample {
            inputs: text(&self.input_keys),
            outputs: (!self.output_keys.is_empty()).then(|| text(&self.output_keys)),
            metadata: (!self.metadata_keys.is_empty()).then(|| pick(&self.metadata_keys)),
            ..NewExample::default()
        }
    }
}

fn expected_error(field: &str, what: &str) -> Rejection {
    Rejection::invalid(field, format!("expected {what}"))
}

/// Rows of a file, each by column name.
fn parse_rows(content_type: &str, data: &[u8]) -> Result<Vec<Map<String, Value>>, ApiError> {
    match content_type {
        "application/jsonl" | "application/x-ndjson" | "application/x-jsonlines" => json_lines(data),
        _ => csv_rows(data),
    }
}

fn check_row_count(count: usize) -> Result<(), ApiError> {
    if count > MAX_EXAMPLES {
        let text = format!("file: expected at most {MAX_EXAMPLES} rows; send the others as examples of the dataset");
        return Err(ApiError::bad_request(text));
    }
    Ok(())
}

fn json_lines(data: &[u8]) -> Result<Vec<Map<String, Value>>, ApiError> {
    let mut rows = Vec::new();
    for (at, line) in data.split(|byte| *byte == b'\n').enumerate() {
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let row = serde_json::from_slice(line);
        rows.push(row.map_err(|_| ApiError::bad_request(format!("file: line {} is not a JSON object", at + 1)))?);
        check_row_count(rows.len())?;
    }
    Ok(rows)
}

fn csv_rows(data: &[u8]) -> Result<Vec<Map<String, Value>>, ApiError> {
    let data = data.strip_prefix(b"\xef\xbb\xbf").unwrap_or(data);
    let mut reader = csv::Reader::from_reader(data);
    let wrong = |error: &csv::Error| {
        let line = error.position().map_or(1, csv::Position::line);
        ApiError::bad_request(format!(
            "file: line {line} is not UTF-8 CSV with as many columns as the first line"
        ))
    };
    let head = reader.headers().map_err(|error| wrong(&error))?.clone();
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record.map_err(|error| wrong(&error))?;
        let cells = head.iter().zip(&record);
        rows.push(cells.map(|(key, cell)| (key.to_owned(), Value::from(cell))).collect());
        check_row_count(rows.len())?;
    }
    Ok(rows)
}

/// Create a dataset from a file: CSV, or JSON Lines if its content type is JSON Lines. Each row becomes an example.
#[utoipa::path(post, path = "/datasets/upload", operation_id = "upload", tag = "datasets",
    request_body(content = Vec<u8>, content_type = "multipart/form-data",
        description = "`file`, `name`, `description`, `data_type`, `id`, and `input_keys`, `output_keys` and `metadata_keys`, each \
                       once for every column"),
    responses((status = 200, description = "Created", body = DatasetView),
              (status = 409, description = "The name or the id is already in use"), ApiError))]
pub async fn create(State(app): State<App>, tenant: Tenant, request: Request) -> Result<Json<DatasetView>, ApiError> {
    let (boundary, body) = multipart::read_multipart(&app, request).await?;
    app.storage_quota.check(&app.store, &app.clock, tenant.id).await?;
    let form = UploadForm::parse(&boundary, &body)?;
    let (content_type, data) = form.file.ok_or_else(|| Rejection::invalid("file", "field required"))?;
    if form.input_keys.is_empty() {
        return Err(Rejection::invalid("input_keys", "field required").into());
    }
    let rows = parse_rows(content_type, data)?;
    let keys = [&form.input_keys, &form.output_keys, &form.metadata_keys];
    let mut keys = keys.into_iter().flatten();
    if let Some(row) = rows.first()
        && let Some(missing) = keys.find(|key| !row.contains_key(*key))
    {
        return Err(ApiError::bad_request(format!(
            "file: the column `{missing}` does not exist"
        )));
    }
    let news: Vec<NewExample> = rows.iter().map(|row| form.example(row)).collect();
    for new in &news {
        model::check_metadata(new.metadata.clone())?;
    }
    let id = form.id.unwrap_or_else(DatasetId::new);
    let new = NewDataset {
        id,
        name: form.name.unwrap_or_else(|| format!("dataset {id}")),
        description: form.description,
        data_type: form.data_type,
        inputs_schema: None,
        outputs_schema: None,
        metadata: Map::new(),
    };
    let made = app.store.write(async |tx| {
        datasets::create(tx, tenant.id, &new).await?;
        if !news.is_empty() {
            examples::create(tx, tenant.id, id, &news).await?;
        }
        datasets::get(tx, tenant.id, id).await
    });
    Ok(Json(DatasetView::new(made.await?, None)?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn cells_may_have_quotes_and_line_breaks() {
        let read = csv_rows(b"\xef\xbb\xbfq,a\r\n\"x, \"\"y\"\"\nz\",1\r\n").unwrap();
        assert_eq!(json!(read), json!([{"q": "x, \"y\"\nz", "a": "1"}]));
        for wrong in [&b"q,a\n1\n"[..], b"q,a\n\xff,1\n"] {
            assert_eq!(csv_rows(wrong).unwrap_err().status(), 400);
        }
    }

    #[test]
    fn lines_are_objects() {
        let read = json_lines(b"{\"q\": {\"n\": 1}}\n\n{\"q\": 2}").unwrap();
        assert_eq!(json!(read), json!([{"q": {"n": 1}}, {"q": 2}]));
        assert_eq!(json_lines(b"[1]").unwrap_err().status(), 400);
    }
}
