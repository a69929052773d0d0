//! `towpath jobs` and `towpath dead`

use anyhow::bail;
use clap::ValueEnum as _;
use serde_json::{Map, Value, json};
use towpath_domain::JobId;

use super::client::Client;
use super::print;
use crate::arguments::Output;
use crate::arguments::remote::{DeadCommand, JobFilter, JobSelection, JobsCommand};

pub async fn run(client: &Client, command: JobsCommand, output: Output) -> anyhow::Result<()> {
    match command {
        JobsCommand::Ls { which, limit } => {
            let jobs = client.list("/internal/jobs", &query(&which), limit).await?;
            list(jobs, output, "no matching jobs");
        }
        JobsCommand::Show { job, input } => {
            let query = if input {
                vec![("input", "true".to_owned())]
            } else {
                Vec::new()
            };
            let job = client.get(&format!("/internal/jobs/{job}"), &query).await?;
            match output {
                Output::Json => print::json(&job),
                Output::Table => show(&job),
            }
        }
        JobsCommand::Explain { job } => {
            let job = client.get(&format!("/internal/jobs/{job}"), &[]).await?;
            match output {
                Output::Json => print::json(&job["explanation"]),
                Output::Table => println!("{}", print::text(&job["explanation"]["text"])),
            }
        }
        JobsCommand::Retry(chosen) => act(client, "retry", chosen, output).await?,
        JobsCommand::Cancel(chosen) => act(client, "cancel", chosen, output).await?,
    }
    Ok(())
}

pub async fn dead(client: &Client, command: DeadCommand, output: Output) -> anyhow::Result<()> {
    match command {
        DeadCommand::Ls { limit } => {
            let jobs = client.list("/internal/dead", &[], limit).await?;
            list(jobs, output, "there are no dead letters");
            Ok(())
        }
        DeadCommand::Retry { jobs } => {
            let which = JobFilter::default();
            act(client, "retry", JobSelection { jobs, which }, output).await
        }
    }
}

fn query(which: &JobFilter) -> Vec<(&'static str, String)> {
    let state = which.state.and_then(|state| state.to_possible_value());
    let fields = [
        ("pool", which.pool.clone()),
        ("kind", which.kind.clone()),
        ("state", state.map(|state| state.get_name().to_owned())),
        ("lane", which.lane.clone()),
        ("tenant", which.of.map(|tenant| tenant.to_string())),
    ];
    fields
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
        .collect()
}

/// Applies an action to many jobs. Fails if a named job refuses it.
async fn act(client: &Client, action: &str, chosen: JobSelection, output: Output) -> anyhow::Result<()> {
    let mut done = 0;
    let mut refused: Vec<Value> = Vec::new();
    let mut add = |mut outcome: Value| -> Option<String> {
        done += outcome["done"].as_u64().unwrap_or(0);
        if let Value::Array(some) = outcome["refused"].take() {
            refused.extend(some);
        }
        outcome["next_cursor"].as_str().map(str::to_owned)
    };
    let named = !chosen.jobs.is_empty();
    if named {
        for some in chosen.jobs.chunks(1000) {
            let ids: Vec<String> = some.iter().map(JobId::to_string).collect();
            let body = json!({"action": action, "ids": ids});
            add(client.post("/internal/jobs/bulk", Some(&body)).await?);
        }
    } else {
        let filter: Map<String, Value> = query(&chosen.which)
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value.into()))
            .collect();
        let mut body = json!({"action": action, "filter": filter});
        while let Some(cursor) = add(client.post("/internal/jobs/bulk", Some(&body)).await?) {
            body["cursor"] = cursor.into();
        }
    }
    match output {
        Output::Json => print::json(&json!({"done": done, "refused": refused})),
        Output::Table => {
            let did = if action == "retry" { "retried" } else { "cancelled" };
            println!("{did}: {done}");
            for job in &refused {
                println!("refused: {}: {}", print::text(&job["id"]), print::text(&job["reason"]));
            }
        }
    }
    if named && !refused.is_empty() {
        bail!("{} of {} jobs refused", refused.len(), chosen.jobs.len());
    }
    Ok(())
}

fn list(jobs: Vec<Value>, output: Output, none: &str) {
    match output {
        Output::Json => print::json(&Value::Array(jobs)),
        Output::Table => table(&jobs, none),
    }
}

fn table(jobs: &[Value], none: &str) {
    let rows = jobs.iter().map(|job| {
        [
            print::text(&job["id"]),
            print::text(&job["kind"]),
            print::text(&job["pool"]),
            print::text(&job["state"]),
            print::text(&job["attempt"]),
            print::text(&job["failures"]),
            print::moment(&job["created_at"]),
            print::moment(&job["finished_at"]),
            print::short(&job["error"]),
        ]
    });
    let header = [
        "job",
        "kind",
        "pool",
        "state",
        "attempt",
        "failures",
        "recorded",
        "ended",
        "last error",
    ];
    print::table(header, rows, none);
}

fn show(job: &Value) {
    let names = [
        "id",
        "kind",
        "pool",
        "state",
        "tenant_id",
        "priority",
        "lane",
        "parent_id",
        "attempt",
        "failures",
        "lost_leases",
        "worker_id",
        "lease_until",
        "run_at",
        "deadline_at",
        "cancel_at",
        "created_at",
        "started_at",
        "finished_at",
        "error",
        "input",
    ];
    print::facts(job, &names);
    println!("\n{}", print::text(&job["explanation"]["text"]));
    let lane = &job["lane_state"];
    if lane.is_object() {
        println!(
            "its lane {}: {} of {} slots taken",
            print::text(&lane["key"]),
            lane["held"],
            lane["places"]
        );
    }
    let rows = |name: &str| job[name].as_array().cloned().unwrap_or_default();
    let attempts = rows("attempts");
    if !attempts.is_empty() {
        println!("\nattempts that did not succeed");
        let lines =
            |attempt: &Value| -> Vec<String> { print::text(&attempt["error"]).lines().map(str::to_owned).collect() };
        let rows = attempts.iter().map(|attempt| {
            [
                print::moment(&attempt["at"]),
                print::text(&attempt["outcome"]),
                print::text(&attempt["worker_id"]),
                lines(attempt).first().cloned().unwrap_or_default(),
            ]
        });
        print::table(["at", "outcome", "worker", "error"], rows, "");
        // A traceback or the last output of a process does not fit into a column.
        for attempt in attempts.iter().filter(|attempt| lines(attempt).len() > 1) {
            println!("\nthe attempt of {}:", print::moment(&attempt["at"]));
            for line in lines(attempt) {
                println!("  {line}");
            }
        }
    }
    let steps = rows("steps");
    if !steps.is_empty() {
        println!("\nfinished steps");
        let rows = steps
            .iter()
            .map(|step| [print::moment(&step["at"]), print::text(&step["name"])]);
        print::table(["at", "step"], rows, "");
    }
    let children = rows("children");
    if !children.is_empty() {
        println!("\njobs it started");
        table(&children, "");
    }
}
