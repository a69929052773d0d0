//! Reading back: runs one by one, by ids and page by page, exports, feedback, files.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use reqwest::Method;
use serde_json::Value;
use towpath_tests::{Columns, rfc3339, visit_rows};
use uuid::Uuid;

use super::compare::{ExpectedExtras, differences, exported, view};
use super::derived::instant;
use super::json::{Json, quoted};
use super::operation::{Attachment, Handle, Tenant, object, shortened};
use super::oracle::{FeedbackRecord, Outcome};
use super::round::ExportedRow;
use super::server::Server;
use super::step::ExpectedRun;
use crate::load;

const DAY: i64 = 86_400_000_000;
/// Days of an export, each of which is a job.
const MOST_DAYS: i64 = 16;
/// Exports of one project; days that are further away are read page by page alone.
const MOST_RANGES: usize = 4;
/// How long an export may take.
const EXPORT_LIMIT: Duration = Duration::from_secs(900);

impl Server {
    fn beside<'a>(
        &'a self,
        tenant: Tenant,
        shown: &ExpectedRun,
        project: &'a dyn Fn(Handle) -> Uuid,
    ) -> ExpectedExtras<'a> {
        ExpectedExtras {
            features: self.features,
            tenant: self.tenants[tenant],
            project,
            stats: shown.stats.clone(),
            files: shown.files.clone(),
        }
    }

    /// Writes down what is different between a run and what an answer shows of it.
    fn compare(&self, step: usize, tenant: Tenant, run: &ExpectedRun, shown: Option<&Json>, by: &str) {
        let project = |handle| self.project(handle);
        let beside = self.beside(tenant, run, &project);
        let wrong = differences(&run.outcomes, shown, |row, shown| view(row, shown, &beside));
        self.counts
            .rows_read
            .fetch_add(usize::from(shown.is_some()), Ordering::Relaxed);
        if !wrong.is_empty() {
            let what = format!("{by}: run {}: {}", run.id, wrong.join("; "));
            self.wrong(step, Some((tenant, run.id)), what);
        }
    }

    pub(super) async fn get(&self, step: usize, tenant: Tenant, runs: &[ExpectedRun]) {
        for run in runs {
            let path = format!("/runs/{}", run.id);
            let api = self.api(tenant, step);
            match self.json(step, api, Method::GET, &path, None).await {
                None => {}
                Some((404, _)) => self.compare(step, tenant, run, None, "GET /runs/{id}"),
                Some((200, shown)) => self.compare(step, tenant, run, Some(&shown), "GET /runs/{id}"),
                Some((status, said)) => {
                    let what = format!("GET {path}: {status} {}", shortened(&said.to_string()));
                    self.wrong(step, Some((tenant, run.id)), what);
                }
            }
        }
    }

    pub(super) async fn query(&self, step: usize, tenant: Tenant, runs: &[ExpectedRun]) {
        let ids = Json::List(runs.iter().map(|run| Json::text(run.id.to_string())).collect());
        let Some((there, _)) = self.page(step, tenant, &[("id", ids.to_string())]).await else {
            return;
        };
        self.compare_all(step, tenant, runs, &there, "POST /runs/query by id");
    }

    fn compare_all(&self, step: usize, tenant: Tenant, runs: &[ExpectedRun], there: &[Json], by: &str) {
        let mut shown: HashMap<&str, &Json> = HashMap::new();
        for run in there {
            let id = run.at("id").as_text().unwrap_or_default();
            if shown.insert(id, run).is_some() {
                let about = id.parse().ok().map(|id| (tenant, id));
                self.wrong(step, about, format!("{by}: run {id} came twice"));
            }
        }
        for run in runs {
            let found = shown.remove(run.id.to_string().as_str());
            self.compare(step, tenant, run, found, by);
        }
        for id in shown.into_keys() {
            let about = id.parse().ok().map(|id| (tenant, id));
            self.wrong(step, about, format!("{by}: run {id} is not to be there"));
        }
    }

    /// A page of runs, and where the next one begins.
    async fn page(&self, step: usize, tenant: Tenant, asked: &[(&str, String)]) -> Option<(Vec<Json>, Option<String>)> {
        let members: Vec<_> = asked.iter().map(|(name, raw)| (quoted(name), raw.clone())).collect();
        let body = object(&members);
        let api = self.api(tenant, step);
        let (status, page) = self.json(step, api, Method::POST, "/runs/query", Some(body)).await?;
        match page.at("runs").items() {
            Some(runs) if status == 200 => {
                let next = page.at("cursors").at("next").as_text().map(str::to_owned);
                Some((runs.to_vec(), next))
            }
            _ => {
                self.wrong(
                    step,
                    None,
                    format!("POST /runs/query: {status} {}", shortened(&page.to_string())),
                );
                None
            }
        }
    }

    pub(super) async fn walk(
        &self,
        step: usize,
        tenant: Tenant,
        project: Handle,
        (newest, limit): (bool, usize),
        runs: &[ExpectedRun],
    ) {
        let session = quoted(&self.project(project).to_string());
        let order = quoted(if newest { "desc" } else { "asc" });
        let mut asked = vec![
            ("session", session.clone()),
            ("order", order),
            ("limit", limit.to_string()),
        ];
        let mut there: Vec<Json> = Vec::new();
        loop {
            let Some((page, next)) = self.page(step, tenant, &asked).await else {
                return;
            };
            if page.is_empty() && next.is_some() {
                return self.wrong(
                    step,
                    None,
                    format!("project {project}: an empty page that is not the last"),
                );
            }
            there.extend(page);
            let Some(next) = next else { break };
            asked.truncate(3);
            asked.push(("cursor", quoted(&next)));
            if there.len() > runs.len() * 2 + 1000 {
                return self.wrong(step, None, format!("project {project}: the pages do not end"));
            }
        }
        if self.features.start_is_place {
            let starts = there.iter().map(|run| run.at("start_time").as_text().and_then(instant));
            let starts: Vec<Option<i64>> = starts.collect();
            let sorted = starts
                .windows(2)
                .all(|two| if newest { two[0] >= two[1] } else { two[0] <= two[1] });
            if !sorted {
                self.wrong(
                    step,
                    None,
                    format!("project {project}: runs do not come in the order of their starts"),
                );
            }
        }
        self.compare_all(step, tenant, runs, &there, "POST /runs/query of a project");
        let body = object(&[(quoted("session"), session)]);
        let api = self.api(tenant, step);
        if let Some((_, stats)) = self.json(step, api, Method::POST, "/runs/stats", Some(body)).await
            && stats.at("run_count") != &Json::number(there.len())
        {
            let count = stats.at("run_count");
            let what = format!(
                "project {project}: /runs/stats counts {count} runs, the pages have {}",
                there.len()
            );
            self.wrong(step, None, what);
        }
    }

    pub(super) async fn export(&self, step: usize, tenant: Tenant, project: Handle, runs: &[ExpectedRun]) {
        self.export_all(step, tenant, project, runs, None, |_, _| {}).await;
    }

    /// Exports a project and compares each row of its files: with what may be shown of it, or with what it was in an
    /// `earlier` export. `each` is handed the rows that are right.
    pub(super) async fn export_all(
        &self,
        step: usize,
        tenant: Tenant,
        project: Handle,
        runs: &[ExpectedRun],
        earlier: Option<&HashMap<Uuid, ExportedRow>>,
        mut each: impl FnMut(Uuid, ExportedRow),
    ) {
        let expected: HashMap<Uuid, &ExpectedRun> = runs.iter().map(|run| (run.id, run)).collect();
        let earlier = earlier.into_iter().flatten();
        let earlier: HashMap<Uuid, ExportedRow> = earlier
            .filter(|(id, _)| !expected.contains_key(*id))
            .map(|(id, retired)| (*id, *retired))
            .collect();
        for range in ranges(runs, &earlier) {
            let mut seen = HashSet::new();
            let done = self.export_days(step, tenant, project, range, |columns| {
                self.counts.rows_exported.fetch_add(1, Ordering::Relaxed);
                let id = columns["id"]
                    .as_str()
                    .and_then(|id| id.parse().ok())
                    .unwrap_or_default();
                let digest = digest(&columns);
                let found = match (expected.get(&id), earlier.get(&id)) {
                    (Some(run), _) => self.compare_row(tenant, run, &columns),
                    (None, Some(retired)) if retired.digest == digest => Ok(retired.day),
                    (None, Some(_)) => Err(format!("it is not what it was: {columns:?}")),
                    (None, None) => Err("it is not to be there".to_owned()),
                };
                let found = if seen.insert(id) {
                    found
                } else {
                    Err("it is there twice".to_owned())
                };
                match found {
                    Ok(day) => each(id, ExportedRow { digest, day }),
                    Err(what) => {
                        let what = format!("an export of project {project}: run {id}: {what}");
                        self.wrong(step, Some((tenant, id)), what);
                    }
                }
            });
            if done.await.is_none() {
                return;
            }
            let within = |day: i64| (range.0..range.1).contains(&day);
            let lacks = |run: &&ExpectedRun| run.outcomes.iter().all(|outcome| must_start(outcome, within));
            let live = runs.iter().filter(lacks).map(|run| run.id);
            let retired = earlier.iter().filter(|(_, retired)| within(retired.day));
            for id in live.chain(retired.map(|(id, _)| *id)).filter(|id| !seen.contains(id)) {
                let what = format!("an export of project {project} lacks run {id}");
                self.wrong(step, Some((tenant, id)), what);
            }
        }
    }

    /// The day on which a row of an export is, or what is wrong with it.
    fn compare_row(&self, tenant: Tenant, run: &ExpectedRun, columns: &Columns) -> Result<i64, String> {
        let project = |handle| self.project(handle);
        let beside = self.beside(tenant, run, &project);
        let wrong = differences(&run.outcomes, Some(columns), |row, columns| {
            exported(row, columns, &beside)
        });
        if !wrong.is_empty() {
            return Err(wrong.join("; "));
        }
        let start = columns.get("start_time").and_then(Value::as_i64).unwrap_or_default();
        let placed = run.outcomes.iter().flatten().map(|row| row.sort_key.bounds().0).next();
        let micros = if self.features.start_is_place {
            Some(start / 1000)
        } else {
            placed
        };
        Ok(micros.unwrap_or_default().div_euclid(DAY))
    }

    /// Exports some days of a project, and hands over its rows. `None` where that went wrong.
    pub(super) async fn export_days(
        &self,
        step: usize,
        tenant: Tenant,
        project: Handle,
        (from, until): (i64, i64),
        each: impl FnMut(Columns),
    ) -> Option<()> {
        let text = |text: &str| quoted(text);
        let body = object(&[
            (text("bulk_export_destination_id"), text(&self.destinations[tenant])),
            (text("session_id"), text(&self.project(project).to_string())),
            (text("start_time"), text(&rfc3339(from * DAY))),
            (text("end_time"), text(&rfc3339(until * DAY))),
        ]);
        let api = self.api(tenant, step);
        let (status, made) = self
            .json(step, api, Method::POST, "/api/v1/bulk-exports", Some(body))
            .await?;
        let Some(id) = made.at("id").as_text().filter(|_| status == 200) else {
            self.wrong(step, None, format!("an export: {status} {made}"));
            return None;
        };
        let ended = api.export_ended(id, EXPORT_LIMIT).await;
        if ended["status"] != "COMPLETED" {
            self.wrong(step, None, format!("an export of project {project}: {ended}"));
            return None;
        }
        let folder = self
            .exports
            .join(format!("fuzz-{tenant}"))
            .join(format!("export_id={id}"));
        match load::complete(&folder) {
            Err(error) => {
                self.wrong(step, None, format!("an export of project {project}: {error}"));
                None
            }
            Ok(files) => {
                visit_rows(&files, each);
                if self.features.missing_operations {
                    let manifest = std::fs::read_to_string(folder.join("_manifest.json")).unwrap_or_default();
                    let missing = Json::parse(&manifest).unwrap_or(Json::Null);
                    if missing.at("missing_operations") != &Json::number(0) {
                        let missing = missing.at("missing_operations");
                        self.wrong(
                            step,
                            None,
                            format!("an export says that {missing} operations are missing"),
                        );
                    }
                }
                let _ = std::fs::remove_dir_all(&folder);
                Some(())
            }
        }
    }

    pub(super) async fn show_feedback(&self, step: usize, tenant: Tenant, given: &FeedbackRecord) {
        let feedback = &given.feedback;
        let path = format!("/feedback/{}", feedback.id);
        let api = self.api(tenant, step);
        let Some((status, shown)) = self.json(step, api, Method::GET, &path, None).await else {
            return;
        };
        let wanted = if given.deleted { 404 } else { 200 };
        if status != wanted {
            return self.wrong(
                step,
                None,
                format!("GET {path}: {status} in place of {wanted}: {shown}"),
            );
        }
        if given.deleted {
            return;
        }
        let run = feedback.run.map_or(Json::Null, |run| Json::text(run.to_string()));
        let mut expected: BTreeMap<&str, Json> = BTreeMap::from([
            ("id", Json::text(feedback.id.to_string())),
            ("key", Json::text(feedback.key.as_str())),
            ("run_id", run),
        ]);
        for (name, raw) in &feedback.members {
            expected.insert(name, Json::parse(raw).expect("what is sent is JSON"));
        }
        for (name, wanted) in expected {
            let got = shown.at(name);
            if !wanted.says(got) {
                self.wrong(step, None, format!("GET {path}: {name}: got {got}, wanted {wanted}"));
            }
        }
    }

    pub(super) async fn show_file(&self, step: usize, tenant: Tenant, file: &Attachment) {
        let api = self.api(tenant, step);
        let run = Some((tenant, file.run));
        let path = format!("/runs/{}", file.run);
        let Some((_, shown)) = self.json(step, api, Method::GET, &path, None).await else {
            return;
        };
        let link = shown.at("s3_urls").at(&format!("attachment.{}", file.name));
        let Some(link) = link.at("presigned_url").as_text() else {
            return self.wrong(
                step,
                run,
                format!("run {} does not show its file {:?}", file.run, file.name),
            );
        };
        let Some(answer) = self.ask(step, api, Method::GET, link, &[], Bytes::new()).await else {
            return;
        };
        let content_type = answer.headers.get("content-type").and_then(|value| value.to_str().ok());
        if answer.status != 200 || answer.body != file.data || content_type != Some(file.content_type.as_str()) {
            let what = format!(
                "file {:?} of run {}: {} {content_type:?}, {} bytes in place of {}",
                file.name,
                file.run,
                answer.status,
                answer.body.len(),
                file.data.len()
            );
            self.wrong(step, run, what);
        }
    }
}

/// Days from which and until before which rows are: few ranges that are not long, those with the most rows.
fn ranges(runs: &[ExpectedRun], earlier: &HashMap<Uuid, ExportedRow>) -> Vec<(i64, i64)> {
    let mut days: BTreeMap<i64, usize> = BTreeMap::new();
    for row in runs.iter().flat_map(|run| run.outcomes.iter().flatten()) {
        let (first, last) = row.sort_key.bounds();
        for time in [first, last] {
            *days.entry(time.div_euclid(DAY)).or_default() += 1;
        }
    }
    for retired in earlier.values() {
        *days.entry(retired.day).or_default() += 2;
    }
    let mut ranges: Vec<(usize, (i64, i64))> = Vec::new();
    for (day, rows) in days {
        match ranges.last_mut() {
            Some((held, (first, until))) if day - *until <= 2 && day - *first < MOST_DAYS => {
                *until = day + 1;
                *held += rows;
            }
            _ => ranges.push((rows, (day, day + 1))),
        }
    }
    ranges.sort_by_key(|(rows, _)| std::cmp::Reverse(*rows));
    ranges.truncate(MOST_RANGES);
    ranges.into_iter().map(|(_, range)| range).collect()
}

/// Whether an outcome is a row that is on such a day for certain.
fn must_start(outcome: &Outcome, within: impl Fn(i64) -> bool) -> bool {
    outcome.as_ref().is_some_and(|row| {
        let (first, last) = row.sort_key.bounds();
        within(first.div_euclid(DAY)) && within(last.div_euclid(DAY))
    })
}

/// What a row of an export says, in a few bytes.
pub fn digest(columns: &Columns) -> u64 {
    let mut hasher = DefaultHasher::new();
    for (name, value) in columns {
        name.hash(&mut hasher);
        value.to_string().hash(&mut hasher);
    }
    hasher.finish()
}
