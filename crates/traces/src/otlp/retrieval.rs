//! Retrieval of documents: the query, the documents to rank, and those found.

use serde_json::{Map, Value, json};

use super::list;
use super::mapping::{Attributes, get, parsed};

pub fn inputs(attributes: &Attributes) -> Option<Value> {
    let mut inputs = Map::new();
    let query = get(attributes, "gen_ai.retrieval.query.text").or_else(|| get(attributes, "reranker.query"));
    if let Some(query) = query {
        inputs.insert("query".to_owned(), query.clone());
    }
    let candidates = list::objects(attributes, "reranker.input_documents.");
    if !candidates.is_empty() {
        inputs.insert("documents".to_owned(), candidates.into_iter().map(document).collect());
    }
    (!inputs.is_empty()).then_some(Value::Object(inputs))
}

pub fn outputs(attributes: &Attributes) -> Option<Value> {
    if let Some(found) = get(attributes, "gen_ai.retrieval.documents") {
        let documents: Value = match parsed(found) {
            Value::Array(documents) => documents.into_iter().map(document).collect(),
            other => other,
        };
        return Some(json!({ "documents": documents }));
    }
    let lists = ["retrieval.documents.", "reranker.output_documents."].map(|prefix| list::objects(attributes, prefix));
    let documents = lists.into_iter().find(|list| !list.is_empty())?;
    let documents: Value = documents.into_iter().map(document).collect();
    Some(json!({ "documents": documents }))
}

/// A document as LangChain writes it. Its score, and other fields that LangChain has not, are metadata.
fn document(own: Value) -> Value {
    let mut fields = match own {
        Value::Object(fields) if !fields.contains_key("page_content") => fields,
        other => return other,
    };
    let content = fields.remove("content").or_else(|| fields.remove("text"));
    let id = fields.remove("id");
    let mut metadata = match fields.remove("metadata").as_ref().map(parsed) {
        Some(Value::Object(metadata)) => metadata,
        Some(other) => Map::from_iter([("metadata".to_owned(), other)]),
        None => Map::new(),
    };
    for (name, value) in fields {
        metadata.entry(name).or_insert(value);
    }
    let content = content.unwrap_or_else(|| json!(""));
    let mut document = json!({"type": "Document", "page_content": content, "metadata": metadata});
    if let Some(id) = id {
        document["id"] = id;
    }
    document
}
