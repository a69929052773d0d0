//! What each route is about, in the words of auth handlers: a line for each, by its template. Templates and not paths are
//! looked up, so that a path cannot be written in a way that makes it another route here than at the router. A route
//! without a line is refused, and a test holds the lines to the routers.

use http::Method;

/// What a request does, and to what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct About {
    /// `assistants`, `threads`, `crons`, `store`.
    pub resource: &'static str,
    /// `create`, `read`, `update`, `delete`, `search`, `create_run`, `put`, `get`, `list_namespaces`.
    pub action: &'static str,
    /// What its handler reads beside the path.
    pub input: Input,
}

/// What a handler reads beside the path and its options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// Nothing. A body that was sent all the same is not passed on.
    Nothing,
    /// An object as the body.
    Object,
    /// A list of objects as the body.
    Objects,
    /// A command of the streaming protocol as the body: what it does decides what is judged.
    Command,
    /// An object as the body, whose field of this name auth handlers know as `namespace`.
    Below(&'static str),
    /// A namespace and a key in the query.
    Item,
    /// An assistant in the query.
    Assistant,
    /// A call whose method says what is done: the handler has each judged by itself. The line is about the assistant that is
    /// called.
    Rpc,
}

use Input::{Assistant, Below, Command, Item, Nothing, Object, Objects, Rpc};

struct Line {
    method: &'static str,
    path: &'static str,
    about: About,
}

const fn line(
    method: &'static str,
    path: &'static str,
    resource: &'static str,
    action: &'static str,
    input: Input,
) -> Line {
    let about = About {
        resource,
        action,
        input,
    };
    Line { method, path, about }
}

const LINES: &[Line] = &[
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
    line("GET", "/.well-known/agent-card.json", "assistants", "read", Assistant),
    line("GET", "/.well-known/agent.json", "assistants", "read", Assistant),
    line("POST", "/a2a/{assistant_id}", "assistants", "read", Rpc),
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
    line("POST", "/runs", "threads", "create_run", Object),
    line("POST", "/runs/stream", "threads", "create_run", Object),
    line("POST", "/runs/wait", "threads", "create_run", Object),
    line("POST", "/runs/batch", "threads", "create_run", Objects),
    line("POST", "/runs/cancel", "threads", "update", Object),
    line("POST", "/runs/search", "threads", "search", Object),
    line("GET", "/runs/{run_id}", "threads", "read", Nothing),
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
        Below("namespace_prefix"),
    ),
    line("POST", "/store/namespaces", "store", "list_namespaces", Below("prefix")),
];

/// What a request of this template is about; nothing for routes that are not known.
pub(super) fn about(method: &Method, template: &str) -> Option<About> {
    // A handler of GET answers HEAD, too.
    let method = if *method == Method::HEAD { &Method::GET } else { method };
    let mut lines = LINES.iter();
    let line = lines.find(|line| line.path == template && line.method == method.as_str())?;
    Some(line.about)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::agent::{put_together, system};
    use crate::docs;
    use crate::routes::Purpose;

    #[test]
    fn every_route_has_a_line_and_every_line_a_route() {
        let (_, _, document) = put_together(Purpose::Describe);
        let (_, open) = system::routes().build(Purpose::Describe).split_for_parts();
        let mut left: BTreeSet<_> = LINES.iter().map(|line| (line.method, line.path)).collect();
        for (path, item) in &document.paths.paths {
            if open.paths.paths.contains_key(path) {
                continue;
            }
            for (method, operation) in docs::operations(item) {
                let about = about(&method.parse().unwrap(), path);
                let about = about.unwrap_or_else(|| panic!("{method} {path} has no line: who may call it?"));
                let reads = matches!(about.input, Object | Objects | Command | Below(_) | Rpc);
                assert_eq!(operation.request_body.is_some(), reads, "{method} {path}: its body");
                left.retain(|line| *line != (method, path.as_str()));
            }
        }
        assert!(left.is_empty(), "lines without a route: {left:?}");
    }

    #[test]
    fn templates_are_looked_up_and_not_paths() {
        assert_eq!(about(&Method::GET, "/threads/1"), None);
        assert_eq!(about(&Method::GET, "/info"), None);
        assert_eq!(
            about(&Method::HEAD, "/threads/{thread_id}").map(|about| about.action),
            Some("read")
        );
    }
}
