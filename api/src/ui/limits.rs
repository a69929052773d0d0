//! Rate limits: rates, callers near a limit, and rejected callers.

use askama::Template;
use axum::extract::State;

use super::formatting;
use super::page::{PageRequest, PageResult};
use crate::app::App;

const PATH: &str = "/ui/limits";

#[derive(Template)]
#[template(path = "ui/limits.html")]
struct Page {
    on: bool,
    table: String,
    counted: &'static str,
    tone: &'static str,
    callers: Vec<Caller>,
    limits: Vec<Limit>,
}

struct Limit {
    name: String,
    category: String,
    identity: &'static str,
    rate: String,
    passed: u64,
    refused: u64,
}

struct Caller {
    id: String,
    limit: String,
    who: String,
    count: String,
    used: u32,
    of: u32,
    seen: String,
    refused: u64,
    refused_ago: String,
}

pub(super) async fn page(State(app): State<App>, asked: PageRequest) -> PageResult {
    let now = app.clock.now();
    let Some(view) = app.limits.view() else {
        let page = Page {
            on: false,
            table: String::new(),
            counted: "",
            tone: "",
            callers: Vec::new(),
            limits: Vec::new(),
        };
        return Ok(asked.page("Limits", PATH, &page));
    };
    let (counted, tone) = match view.counted {
        "shared" => ("counted across processes", "good"),
        "apart" => ("counted per process: Redis is unavailable", "bad"),
        _ => ("counted in this process", "good"),
    };
    let callers = view.callers.into_iter().enumerate().map(|(index, caller)| Caller {
        id: format!("c{index}"),
        limit: caller.limit,
        who: caller.identity,
        count: caller
            .count
            .map_or_else(|| "-".to_owned(), |count| format!("{count} of {}", caller.allowed)),
        used: caller.count.unwrap_or(0),
        of: caller.allowed,
        seen: formatting::relative(caller.at, now),
        refused: caller.refused,
        refused_ago: caller
            .refused_at
            .map_or_else(|| "-".to_owned(), |at| formatting::relative(at, now)),
    });
    let limits = view.limits.into_iter().map(|limit| Limit {
        name: limit.name,
        category: limit.category,
        identity: limit.identity,
        rate: format!("{} in {} s", limit.count, limit.length.as_secs()),
        passed: limit.passed,
        refused: limit.refused,
    });
    let page = Page {
        on: true,
        table: view.table.unwrap_or_else(|| "none".to_owned()),
        counted,
        tone,
        callers: callers.collect(),
        limits: limits.collect(),
    };
    Ok(asked.page("Limits", PATH, &page))
}
