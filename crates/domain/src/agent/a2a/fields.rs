//! Names of fields. Readers of ProtoJSON accept a field by its JSON name and by its name in the protocol buffer.

use serde_json::{Map, Value};

/// A field by its name in JSON (`contextId`), else by that in the protocol buffer (`context_id`).
#[must_use]
pub fn field<'a>(of: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    of.get(key).or_else(|| {
        let has_other_name = key.bytes().any(|byte| byte.is_ascii_uppercase());
        has_other_name.then(|| of.get(&proto_name(key))).flatten()
    })
}

fn proto_name(key: &str) -> String {
    let mut name = String::with_capacity(key.len() + 4);
    for character in key.chars() {
        if character.is_ascii_uppercase() {
            name.push('_');
        }
        name.push(character.to_ascii_lowercase());
    }
    name
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_field_has_two_names() {
        let Value::Object(of) =
            json!({"contextId": 1, "status_timestamp_after": 2, "task_id": 3, "taskId": 4, "id": 5})
        else {
            unreachable!()
        };
        for (key, value) in [
            ("contextId", Some(1)),
            ("statusTimestampAfter", Some(2)),
            ("taskId", Some(4)),
            ("id", Some(5)),
            ("pageToken", None),
            ("page", None),
        ] {
            assert_eq!(field(&of, key).and_then(Value::as_i64), value, "{key}");
        }
    }
}
