//! `towpath limits`

use serde_json::Value;

use super::client::Client;
use super::print;
use crate::arguments::Output;

pub async fn run(client: &Client, all: bool, output: Output) -> anyhow::Result<()> {
    let answer = client.get("/internal/limits", &[]).await?;
    match output {
        Output::Json => print::json(&answer),
        Output::Table => table(&answer, all),
    }
    Ok(())
}

fn table(answer: &Value, all: bool) {
    let counted = match answer["counted"].as_str() {
        Some("here") => "counted in this process",
        Some("shared") => "counted for all processes",
        Some("apart") => "each process counts by itself, because Redis is unavailable",
        _ => {
            println!("there are no limits; follow those of the hosted platform with: --limits us|eu|FILE");
            return;
        }
    };
    let rules = answer["table"].as_str().unwrap_or("none");
    println!("rules: {rules}; {counted}\n");
    let used = |limit: &&Value| all || limit["passed"].as_u64() > Some(0) || limit["refused"].as_u64() > Some(0);
    let limits = answer["items"].as_array().into_iter().flatten().filter(used);
    let limits = limits.map(|limit| {
        [
            print::text(&limit["name"]),
            print::text(&limit["identity"]),
            format!(
                "{} in {} s",
                print::text(&limit["count"]),
                print::text(&limit["interval_seconds"])
            ),
            print::text(&limit["passed"]),
            print::text(&limit["refused"]),
        ]
    });
    print::table(
        ["limit", "of each", "at most", "passed", "refused"],
        limits,
        "no requests counted yet; --all lists every limit",
    );
    println!();
    let callers = answer["callers"].as_array().into_iter().flatten().map(|caller| {
        let count = match &caller["count"] {
            Value::Null => "-".to_owned(),
            count => format!("{} of {}", print::text(count), print::text(&caller["of"])),
        };
        [
            print::text(&caller["who"]),
            print::text(&caller["limit"]),
            count,
            print::moment(&caller["seen_at"]),
            print::text(&caller["refused"]),
            print::moment(&caller["refused_at"]),
        ]
    });
    print::table(
        ["caller", "limit", "in its window", "seen", "refused", "last refused"],
        callers,
        "no caller is near a limit or was refused within the last hour",
    );
}
