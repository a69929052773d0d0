//! A graph as part of a task.

use std::sync::Arc;

use serde_json::Value;

use super::engine::{Engine, Halt};
use super::job::{Job, Stop};
use super::plan::Plan;

/// Runs `plan` in the task's namespace and gives its output.
pub(super) async fn run(job: &Job<'_>, plan: &Arc<Plan>, input: Value) -> Result<Value, Stop> {
    let ns = job.next_namespace();
    let mut engine = Engine::open(job.run, plan, ns, Some((job.parents.clone(), job.resuming))).await?;
    match engine.go(Some(input)).await {
        Ok(()) => Ok(engine.output()),
        Err(Halt::Interrupt(waiting)) => Err(Stop::Interrupt(waiting)),
        Err(Halt::Error(error)) => Err(Stop::Error(error)),
    }
}
