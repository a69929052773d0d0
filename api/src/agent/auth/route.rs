//! The auth operation of each route, by route template. Templates are used instead of paths, so that a path cannot be
//! written to match another route here than in the router. Routes without an entry are rejected; a test compares the
//! entries with the routers.

use http::Method;

/// Resource and action of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ResourceAction {
    /// `assistants`, `threads`, `crons`, `store`.
    pub resource: &'static str,
    /// `create`, `read`, `update`, `delete`, `search`, `create_run`, `put`, `get`, `list_namespaces`.
    pub action: &'static str,
    /// Input of the handler in addition to the path.
    pub input: RequestInput,
}

/// Input of a handler in addition to the path and options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestInput {
    /// None. A body is not passed on.
    Nothing,
    /// A JSON object as body.
    Object,
    /// A list of JSON objects as body.
    Objects,
    /// A run as body, perhaps in the names of the Agent Protocol, and on a thread that it names.
    Run,
    /// A search for runs as body, perhaps in the names of the Agent Protocol.
    RunSearch,
    /// A command of the streaming protocol as body: the command decides the operation.
    Command,
    /// A JSON object as body; auth handlers know this field as `namespace`.
    UnderNamespace(&'static str),
    /// Namespace and key in the query.
    Item,
    /// An assistant in the query.
    Assistant,
    /// A call whose method decides the operation: the handler authorizes it. The entry is for the called assistant.
    Rpc,
}

use RequestInput::{Assistant, Command, Item, Nothing, Object, Objects, Rpc, Run, RunSearch, UnderNamespace};

struct RouteEntry {
    method: &'static str,
    path: &'static str,
    about: ResourceAction,
}

const fn line(
    method: &'static str,
    path: &'static str,
    resource: &'static str,
    action: &'static str,
    input: RequestInput,
) -> RouteEntry {
    let about = ResourceAction {
        resource,
        action,
        input,
    };
    RouteEntry { method, path, about }
}

const LINES: &[RouteEntry] = &[
    line("POST", "/assistants", "assistants", "create", Object),
    line("POST", "/assistants/search", "assistants", "search", Object),
    line("POST", "/assistants/count", "assistants", "search", Object),
    line("GET", "/assistants/{assistant_id}", "assistants", "read", Nothing),
    line("PATCH", "/assistants/{assistant_id}", "assistants", "update", Object),
    line("DELETE", "/assistants/{assistant_id}", "assistants", "delete", Nothing),
    line("GET", "/assistants/{assistant_id}/graph", "assistants", "read", Nothing),
    line(
        "GET",
        "/assistants/{assistant_id}/schemas",
        "assistants",
        "read",
        Nothing,
    ),
    line(
        "GET",
        "/assistants/{assistant_id}/subgraphs",
        "assistants",
        "read",
        Nothing,
    ),
    line(
        "GET",
        "/assistants/{assistant_id}/subgraphs/{namespace}",
        "assistants",
        "read",
        Nothing,
    ),
    line(
        "POST",
        "/assistants/{assistant_id}/versions",
        "assistants",
        "read",
        Object,
    ),
    line(
        "POST",
        "/assistants/{assistant_id}/latest",
        "assistants",
        "update",
        Object,
    ),
    line("POST", "/agents/search", "assistants", "search", Object),
    line("GET", "/agents/{agent_id}", "assistants", "read", Nothing),
    line("GET", "/agents/{agent_id}/schemas", "assistants", "read", Nothing),
    line("GET", "/.well-known/agent-card.json", "assistants", "read", Assistant),
    line("GET", "/.well-known/agent.json", "assistants", "read", Assistant),
    line("POST", "/a2a/{assistant_id}", "assistants", "read", Rpc),
    line("POST", "/a2a/{assistant_id}/", "assistants", "read", Rpc),
    line(
        "GET",
        "/a2a/{assistant_id}/.well-known/agent-card.json",
        "assistants",
        "read",
        Nothing,
    ),
    line(
        "GET",
        "/a2a/{assistant_id}/.well-known/agent.json",
        "assistants",
        "read",
        Nothing,
    ),
    line("POST", "/threads", "threads", "create", Object),
    line("POST", "/threads/search", "threads", "search", Object),
    line("POST", "/threads/count", "threads", "search", Object),
    line("POST", "/threads/prune", "threads", "delete", Object),
    line("GET", "/threads/{thread_id}", "threads", "read", Nothing),
    line("PATCH", "/threads/{thread_id}", "threads", "update", Object),
    line("DELETE", "/threads/{thread_id}", "threads", "delete", Nothing),
    line("POST", "/threads/{thread_id}/copy", "threads", "read", Nothing),
    line("GET", "/threads/{thread_id}/storage", "threads", "read", Nothing),
    line("GET", "/threads/{thread_id}/stream", "threads", "read", Nothing),
    line("POST", "/threads/{thread_id}/stream", "threads", "read", Object),
    line("POST", "/threads/{thread_id}/stream/events", "threads", "read", Object),
    line("GET", "/threads/{thread_id}/stream/events", "threads", "read", Nothing),
    line(
        "POST",
        "/threads/{thread_id}/commands",
        "threads",
        "create_run",
        Command,
    ),
    line("GET", "/threads/{thread_id}/state", "threads", "read", Nothing),
    line("POST", "/threads/{thread_id}/state", "threads", "update", Object),
    line(
        "GET",
        "/threads/{thread_id}/state/{checkpoint_id}",
        "threads",
        "read",
        Nothing,
    ),
    line(
        "POST",
        "/threads/{thread_id}/state/checkpoint",
        "threads",
        "read",
        Object,
    ),
    line("GET", "/threads/{thread_id}/history", "threads", "read", Nothing),
    line("POST", "/threads/{thread_id}/history", "threads", "read", Object),
    line("GET", "/threads/{thread_id}/runs", "threads", "read", Nothing),
    line("POST", "/threads/{thread_id}/runs", "threads", "create_run", Object),
    line(
        "POST",
        "/threads/{thread_id}/runs/stream",
        "threads",
        "create_run",
        Object,
    ),
    line(
        "POST",
        "/threads/{thread_id}/runs/wait",
        "threads",
        "create_run",
        Object,
    ),
    line("POST", "/threads/{thread_id}/runs/crons", "crons", "create", Object),
    line("GET", "/threads/{thread_id}/runs/{run_id}", "threads", "read", Nothing),
    line(
        "DELETE",
        "/threads/{thread_id}/runs/{run_id}",
        "threads",
        "delete",
        Nothing,
    ),
    line(
        "POST",
        "/threads/{thread_id}/runs/{run_id}/cancel",
        "threads",
        "update",
        Nothing,
    ),
    line(
        "GET",
        "/threads/{thread_id}/runs/{run_id}/join",
        "threads",
        "read",
        Nothing,
    ),
    line(
        "GET",
        "/threads/{thread_id}/runs/{run_id}/stream",
        "threads",
        "read",
        Nothing,
    ),
    line("POST", "/runs", "threads", "create_run", Run),
    line("POST", "/runs/stream", "threads", "create_run", Run),
    line("POST", "/runs/wait", "threads", "create_run", Run),
    line("POST", "/runs/batch", "threads", "create_run", Objects),
    line("POST", "/runs/cancel", "threads", "update", Object),
    line("POST", "/runs/search", "threads", "search", RunSearch),
    line("GET", "/runs/{run_id}", "threads", "read", Nothing),
    line("DELETE", "/runs/{run_id}", "threads", "delete", Nothing),
    line("POST", "/runs/{run_id}/cancel", "threads", "update", Nothing),
    line("GET", "/runs/{run_id}/join", "threads", "read", Nothing),
    line("GET", "/runs/{run_id}/stream", "threads", "read", Nothing),
    line("GET", "/runs/{run_id}/wait", "threads", "read", Nothing),
    line("POST", "/runs/crons", "crons", "create", Object),
    line("POST", "/runs/crons/search", "crons", "search", Object),
    line("POST", "/runs/crons/count", "crons", "search", Object),
    line("GET", "/runs/crons/{cron_id}", "crons", "read", Nothing),
    line("PATCH", "/runs/crons/{cron_id}", "crons", "update", Object),
    line("DELETE", "/runs/crons/{cron_id}", "crons", "delete", Nothing),
    line("POST", "/mcp", "assistants", "search", Rpc),
    line("DELETE", "/mcp", "assistants", "search", Nothing),
    line("PUT", "/store/items", "store", "put", Object),
    line("GET", "/store/items", "store", "get", Item),
    line("DELETE", "/store/items", "store", "delete", Object),
    line(
        "POST",
        "/store/items/search",
        "store",
        "search",
        UnderNamespace("namespace_prefix"),
    ),
    line(
        "POST",
        "/store/namespaces",
        "store",
        "list_namespaces",
        UnderNamespace("prefix"),
    ),
];

/// Operation of a route template; `None` for unknown routes.
pub(super) fn resource_action(method: &Method, template: &str) -> Option<ResourceAction> {
    // GET handlers also answer HEAD.
    let method = if *method == Method::HEAD { &Method::GET } else { method };
    let mut lines = LINES.iter();
    let line = lines.find(|line| line.path == template && line.method == method.as_str())?;
    Some(line.about)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::agent::{assemble_routes, system};
    use crate::docs;
    use crate::routes::Purpose;

    #[test]
    fn every_route_has_a_line_and_every_line_a_route() {
        let (_, _, document) = assemble_routes(Purpose::Describe);
        let (_, open) = system::routes().build(Purpose::Describe).split_for_parts();
        let mut left: BTreeSet<_> = LINES.iter().map(|line| (line.method, line.path)).collect();
        for (path, item) in &document.paths.paths {
            if open.paths.paths.contains_key(path) {
                continue;
            }
            for (method, operation) in docs::operations(item) {
                let about = resource_action(&method.parse().unwrap(), path);
                let about = about.unwrap_or_else(|| panic!("{method} {path} has no line: who may call it?"));
                let reads = matches!(
                    about.input,
                    Object | Objects | Run | RunSearch | Command | UnderNamespace(_) | Rpc
                );
                assert_eq!(operation.request_body.is_some(), reads, "{method} {path}: its body");
                left.retain(|line| *line != (method, path.as_str()));
            }
        }
        assert!(left.is_empty(), "lines without a route: {left:?}");
    }

    #[test]
    fn templates_are_looked_up_and_not_paths() {
        assert_eq!(resource_action(&Method::GET, "/threads/1"), None);
        assert_eq!(resource_action(&Method::GET, "/info"), None);
        assert_eq!(
            resource_action(&Method::HEAD, "/threads/{thread_id}").map(|about| about.action),
            Some("read")
        );
    }
}
