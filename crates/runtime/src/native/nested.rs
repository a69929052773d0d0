//! A graph as part of a task.

use std::sync::Arc;

use serde_json::Value;

use super::engine::{Engine, GraphStop};
use super::job::{NodeStop, TaskContext};
use super::plan::Plan;

/// Runs `plan` in the task's namespace and gives its output.
pub(super) async fn run(job: &TaskContext<'_>, plan: &Arc<Plan>, input: Value) -> Result<Value, NodeStop> {
    let ns = job.next_namespace();
    let mut engine = Engine::open(job.run, plan, ns, Some((job.parents.clone(), job.resuming))).await?;
    match engine.run_to_end(Some(input)).await {
        Ok(()) => Ok(engine.output()),
        Err(GraphStop::Interrupt(waiting)) => Err(NodeStop::Interrupt(waiting)),
        Err(GraphStop::Error(error)) => Err(NodeStop::Error(error)),
    }
}
