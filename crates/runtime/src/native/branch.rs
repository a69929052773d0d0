//! Decisions after a node.

use serde_json::{Value, json};

use super::plan::{Branch, Plan};
use super::script::packets;
use super::superstep::{Writes, goto_write};
use super::tools::open_calls;
use crate::{Goto, GraphError, Packet};

/// Adds the writes that wake what a decision chooses.
pub(super) fn decide(plan: &Plan, branch: &Branch, state: &Value, writes: &mut Writes) -> Result<(), GraphError> {
    let targets: Vec<Goto> = match branch {
        Branch::Switch { cases, otherwise } => {
            let chosen = cases.iter().find(|(condition, _)| condition.holds(state));
            let chosen = chosen.map_or(otherwise, |(_, to)| to);
            chosen.iter().cloned().map(Goto::Node).collect()
        }
        Branch::Fanout(fanout) => packets(fanout, state)?.into_iter().map(Goto::Send).collect(),
        Branch::ToolCalls => {
            let last = state
                .get("messages")
                .and_then(Value::as_array)
                .and_then(|list| list.last());
            let packet = |call: &Value| {
                Goto::Send(Packet {
                    node: "tools".to_owned(),
                    input: json!({"tool_call": call}),
                })
            };
            last.into_iter().flat_map(open_calls).map(packet).collect()
        }
    };
    for target in &targets {
        writes.extend(goto_write(plan, target)?);
    }
    Ok(())
}
