//! Exports of what a round has sent, by hand and by a schedule of one interval a night, each read back from its
//! manifest.

use serde_json::{Value, json};
use towpath_tests::{GeneratedProject, World, rfc3339, until};

use super::client::{Client, PATIENCE, Request};
use super::clock::DAY_MICROS;
use super::day::Day;
use crate::load;

/// The project of the generated trace runs.
pub const PROJECT: &str = "soak";
const PREFIX: &str = "soak";
const EXPORTS: &str = "/api/v1/bulk-exports";

/// Where exports go, and the schedule.
pub struct Exports {
    destination: String,
    project: String,
    schedule: String,
}

impl Exports {
    /// Makes the project, the destination and a schedule whose intervals are as long as the days between two rounds.
    pub async fn start(world: &World, first_day: i64, days: i64) -> Self {
        let made = world
            .api
            .post("/sessions", &json!({ "name": PROJECT }))
            .await
            .expect(200);
        let project = text(&made, "id");
        let destination = world.api.file_destination(PREFIX).await;
        let schedule = json!({
            "bulk_export_destination_id": destination, "session_id": project,
            "start_time": rfc3339(first_day * DAY_MICROS), "interval_hours": days * 24,
        });
        let made = world.api.post(EXPORTS, &schedule).await.expect(200);
        Self {
            destination,
            project,
            schedule: text(&made, "id"),
        }
    }

    /// Asks for an export of what was generated; its id.
    pub async fn ask(&self, platform: &Client, generated: &GeneratedProject, key: &str) -> Option<String> {
        let body = json!({
            "bulk_export_destination_id": self.destination, "session_id": self.project,
            "start_time": generated.start, "end_time": generated.end,
        });
        let request = Request::post(EXPORTS, &body).header("idempotency-key", key);
        let made = platform.insist(&request, &[200]).await?;
        Some(text(&made.body, "id"))
    }

    /// Reads back what a round asked for.
    pub async fn check(&self, day: &Day<'_>, world: &World) {
        let asked = day.acknowledged.borrow().exports.clone();
        for export in asked {
            let record = day.platform.read(format!("{EXPORTS}/{export}")).await;
            self.read_back(day, world, &record.body);
        }
    }

    /// Waits for the export of each night so far, and reads back the last one: it holds what the day before it has
    /// sent.
    pub async fn check_schedule(&self, day: &Day<'_>, world: &World) {
        let nights = day.number + 1;
        let list = format!("{EXPORTS}?source_bulk_export_id={}", self.schedule);
        let newest = until(&format!("{nights} exports of the schedule"), PATIENCE, async || {
            let said = day.platform.once(&Request::get(list.as_str())).await?;
            let all = said.body.as_array()?;
            let over = all.iter().all(|export| export["finished_at"].is_string());
            (over && all.len() == nights).then(|| all[0].clone())
        })
        .await;
        self.read_back(day, world, &newest);
    }

    /// Compares a completed export with what was generated, and removes its files, as a caller that collects them does.
    fn read_back(&self, day: &Day<'_>, world: &World, record: &Value) {
        if record["status"] != "COMPLETED" {
            return day.wrong(&format!("an export did not complete: {record}"));
        }
        let (folder, export) = (world.exports().join(PREFIX), text(record, "id"));
        let tenant = world.tenant.to_string();
        match load::compare(&folder, &export, &tenant, &self.project, &day.generated) {
            Ok(_) => {
                let files = folder.join(format!("export_id={export}"));
                std::fs::remove_dir_all(files).expect("the files of an export are the test's");
            }
            Err(wrong) => day.wrong(&format!("export {export}:\n{wrong}")),
        }
    }
}

fn text(record: &Value, field: &str) -> String {
    let text = record[field].as_str();
    text.unwrap_or_else(|| panic!("no {field} in {record}")).to_owned()
}
