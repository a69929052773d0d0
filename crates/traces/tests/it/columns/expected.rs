//! What the 29 columns must show, worked out the slow and plain way from all operations at once.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use towpath_domain::{ProjectId, TenantId, Timestamp, TraceRunId, trace};
use towpath_traces::operation::{Fields, Operation, Verb};
use towpath_traces::row::Key;

/// Rows in order: key, and columns as JSON.
pub fn rows(tenant: TenantId, project: ProjectId, accepted: &[(i64, Operation)]) -> Vec<(Key, Map<String, Value>)> {
    let mut by_id: BTreeMap<TraceRunId, Vec<&(i64, Operation)>> = BTreeMap::new();
    for operation in accepted {
        by_id.entry(operation.1.id).or_default().push(operation);
    }
    let mut rows: Vec<_> = by_id
        .into_iter()
        .map(|(id, operations)| {
            let sort_time = operations
                .iter()
                .filter_map(|(_, operation)| operation.sort_time())
                .min()
                .unwrap();
            let has_post = operations.iter().any(|(_, operation)| operation.verb == Verb::Post);
            let key = Key { sort_time, id };
            (key, columns(tenant, project, key, has_post, &merged(operations)))
        })
        .collect();
    rows.sort_by_key(|(key, _)| *key);
    rows
}

/// What one operation says of `extra` over what was said before. Of `metadata` and `runtime`, an object says something
/// of its keys alone, and null nothing.
fn add(extra: &mut Option<Map<String, Value>>, said: Option<Vec<(String, String)>>) {
    let Some(said) = said else { return };
    let extra = extra.get_or_insert_default();
    // Of a key that one operation says twice the last counts.
    for (key, text) in said.into_iter().collect::<BTreeMap<_, _>>() {
        let value: Value = serde_json::from_str(&text).unwrap();
        let by_key = ["metadata", "runtime"].contains(&key.as_str());
        match (extra.get_mut(&key), value) {
            (_, Value::Null) if by_key => {}
            (Some(Value::Object(known)), Value::Object(more)) if by_key => known.extend(more),
            (_, value) => drop(extra.insert(key, value)),
        }
    }
}

/// First post, then every patch over it in the order of acceptance; `extra` apart.
pub fn merged(mut operations: Vec<&(i64, Operation)>) -> (Fields, Option<Map<String, Value>>) {
    operations.sort_by_key(|(seq, _)| *seq);
    let mut posts = operations.iter().filter(|(_, operation)| operation.verb == Verb::Post);
    let mut all = posts.next().map(|(_, post)| post.fields.clone()).unwrap_or_default();
    let mut extra = None;
    add(&mut extra, all.extra.take());
    for (_, patch) in operations.iter().filter(|(_, operation)| operation.verb == Verb::Patch) {
        let Fields {
            trace_id,
            parent_run_id,
            dotted_order,
            reference_example_id,
            name,
            run_type,
            start_time,
            end_time,
            status,
            error,
            tags,
            inputs,
            outputs,
            events,
            serialized,
            extra: more,
        } = patch.fields.clone();
        add(&mut extra, more);
        all = Fields {
            trace_id: trace_id.or(all.trace_id),
            parent_run_id: parent_run_id.or(all.parent_run_id),
            dotted_order: dotted_order.or(all.dotted_order),
            reference_example_id: reference_example_id.or(all.reference_example_id),
            name: name.or(all.name),
            run_type: run_type.or(all.run_type),
            start_time: start_time.or(all.start_time),
            end_time: end_time.or(all.end_time),
            status: status.or(all.status),
            error: error.or(all.error),
            tags: tags.or(all.tags),
            inputs: inputs.or(all.inputs),
            outputs: outputs.or(all.outputs),
            events: events.or(all.events),
            serialized: serialized.or(all.serialized),
            extra: None,
        };
    }
    (all, extra)
}

fn columns(
    tenant: TenantId,
    project: ProjectId,
    key: Key,
    has_post: bool,
    (fields, extra): &(Fields, Option<Map<String, Value>>),
) -> Map<String, Value> {
    let ids: Option<Vec<String>> = fields.dotted_order.as_ref().map(|order| {
        trace::dotted_order_parts(order)
            .map(|link| link.unwrap().id.to_string())
            .collect()
    });
    let parents: Option<Vec<String>> = match &ids {
        Some(ids) => Some(ids[..ids.len() - 1].to_vec()),
        None if has_post || fields.parent_run_id.is_some() => {
            Some(fields.parent_run_id.iter().map(ToString::to_string).collect())
        }
        None => None,
    };
    let is_root = parents.as_ref().map(Vec::is_empty);
    let trace_id = match &ids {
        Some(ids) => Some(ids[0].clone()),
        None => fields
            .trace_id
            .map(|id| id.to_string())
            .or((is_root == Some(true)).then(|| key.id.to_string())),
    };
    let status = match (&fields.error, fields.end_time, &fields.status) {
        (Some(_), _, _) => "error",
        (None, Some(_), _) => "success",
        (None, None, Some(sent)) => sent,
        (None, None, None) => "pending",
    };
    let [total, prompt, completion, cost] = usage(fields.outputs.as_deref());
    let first_token = fields.events.as_ref().map(|events| {
        let events: Value = serde_json::from_str(events).unwrap();
        nanos(Timestamp::parse(events[0]["time"].as_str().unwrap()).unwrap())
    });
    let row = json!({
        "id": key.id,
        "tenant_id": tenant,
        "session_id": project,
        "trace_id": trace_id,
        "parent_run_id": parents.as_ref().and_then(|ids| ids.last().cloned()),
        "parent_run_ids": parents,
        "reference_example_id": fields.reference_example_id,
        "name": fields.name,
        "run_type": fields.run_type,
        "start_time": nanos(key.sort_time),
        "end_time": fields.end_time.map(nanos),
        "status": status,
        "is_root": is_root,
        "dotted_order": fields.dotted_order,
        "trace_tier": "longlived",
        "inputs": fields.inputs,
        "outputs": fields.outputs,
        "error": fields.error,
        "extra": extra,
        "events": fields.events,
        "tags": fields.tags,
        "feedback_stats": null,
        "total_tokens": total,
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_cost": cost,
        "prompt_cost": null,
        "completion_cost": null,
        "first_token_time": first_token,
    });
    row.as_object().unwrap().clone()
}

fn nanos(time: Timestamp) -> i64 {
    time.micros() * 1000
}

/// For the few shapes that the generator makes.
fn usage(outputs: Option<&str>) -> [Value; 4] {
    let outputs: Value = outputs.map_or(Value::Null, |text| serde_json::from_str(text).unwrap());
    let direct = [
        &outputs["usage_metadata"],
        &outputs["generations"][0][0]["message"]["kwargs"]["usage_metadata"],
    ];
    for found in direct {
        if let (Some(input), Some(output)) = (found["input_tokens"].as_i64(), found["output_tokens"].as_i64()) {
            // The generator writes the input tokens as four decimals.
            return [
                json!(input + output),
                json!(input),
                json!(output),
                json!(format!("0.{input:04}000000")),
            ];
        }
    }
    let old = &outputs["llm_output"]["token_usage"];
    match (old["prompt_tokens"].as_i64(), old["completion_tokens"].as_i64()) {
        (Some(input), Some(output)) => [json!(input + output), json!(input), json!(output), Value::Null],
        _ => [Value::Null, Value::Null, Value::Null, Value::Null],
    }
}
