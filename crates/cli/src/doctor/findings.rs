//! What the checks found.

use serde::Serialize;
use serde_json::Value;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Ok,
    Warning,
    Failed,
    Skipped,
}

#[derive(Debug, Serialize)]
pub struct Finding {
    pub check: &'static str,
    pub verdict: Verdict,
    pub text: String,
}

#[derive(Debug, Default)]
pub struct Findings(pub Vec<Finding>);

impl Findings {
    pub fn add(&mut self, check: &'static str, verdict: Verdict, text: impl Into<String>) {
        self.0.push(Finding {
            check,
            verdict,
            text: text.into(),
        });
    }

    /// Adds what the server at `place` reported about itself.
    pub fn server(&mut self, place: &str, answer: &Value) {
        let status = answer["status"].as_str().unwrap_or_default();
        let verdict = match status {
            "ready" => Verdict::Ok,
            "degraded" | "draining" => Verdict::Warning,
            _ => Verdict::Failed,
        };
        let away: Vec<String> = answer["dependencies"]
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(_, state)| state["status"] != "ok")
            .map(|(name, state)| format!("; {name}: {}", state["error"].as_str().unwrap_or("unavailable")))
            .collect();
        self.add(
            "server",
            verdict,
            format!("the server at {place} is {status}{}", away.concat()),
        );
    }
}
