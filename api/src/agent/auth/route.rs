//! What each route is about, in the words of auth handlers.

use http::Method;

/// What a request does, and to what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct About {
    /// `assistants`, `threads`, `crons`, `store`.
    pub resource: &'static str,
    /// `create`, `read`, `update`, `delete`, `search`, `create_run`, `put`, `get`, `list_namespaces`.
    pub action: &'static str,
    /// The row it is about, by the name the handler knows its id under.
    pub row: Row,
}

/// A row whose metadata decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Row {
    /// None, or none that is known from the path.
    None,
    /// A thread.
    Thread(String),
    /// The thread of a run.
    Run(String),
    /// An assistant.
    Assistant(String),
    /// A cron.
    Cron(String),
}

/// What a request is about; nothing for routes that handlers do not judge.
pub(super) fn about(method: &Method, path: &str) -> Option<About> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let get = method == Method::GET || method == Method::HEAD;
    let is = |resource, action, row| Some(About { resource, action, row });
    let thread = |id: &&str| Row::Thread((*id).to_owned());
    let run = |id: &&str| Row::Run((*id).to_owned());
    match (&parts[..], get) {
        (["assistants"], false) => is("assistants", "create", Row::None),
        (["assistants", "search" | "count"], _) => is("assistants", "search", Row::None),
        (["assistants", id, rest @ ..], get) => {
            let action = match (rest, method) {
                _ if get => "read",
                (["versions"], _) => "read",
                ([], &Method::DELETE) => "delete",
                _ => "update",
            };
            is("assistants", action, Row::Assistant((*id).to_owned()))
        }
        (["threads"], false) => is("threads", "create", Row::None),
        (["threads", "search" | "count"], _) => is("threads", "search", Row::None),
        (["threads", "prune"], _) => is("threads", "delete", Row::None),
        (["threads", id, "runs", "crons"], false) => is("crons", "create", thread(id)),
        (["threads", id, "runs"] | ["threads", id, "runs", "stream" | "wait"], false) => {
            is("threads", "create_run", thread(id))
        }
        (["threads", id, "runs", ..], true) => is("threads", "read", thread(id)),
        (["threads", id, "runs", ..], false) => is(
            "threads",
            if method == Method::DELETE { "delete" } else { "update" },
            thread(id),
        ),
        (["threads", id, rest @ ..], get) => {
            let action = match (rest, method) {
                _ if get => "read",
                (["history" | "copy"] | ["state", "checkpoint"], _) => "read",
                ([], &Method::DELETE) => "delete",
                _ => "update",
            };
            is("threads", action, thread(id))
        }
        (["runs"] | ["runs", "stream" | "wait" | "batch"], false) => is("threads", "create_run", Row::None),
        (["runs", "cancel"], false) => is("threads", "update", Row::None),
        (["runs", "search"], _) => is("threads", "search", Row::None),
        (["runs", "crons"], false) => is("crons", "create", Row::None),
        (["runs", "crons", "search" | "count"], _) => is("crons", "search", Row::None),
        (["runs", "crons", id], get) => {
            let action = match method {
                _ if get => "read",
                &Method::DELETE => "delete",
                _ => "update",
            };
            is("crons", action, Row::Cron((*id).to_owned()))
        }
        (["runs", id, ..], true) => is("threads", "read", run(id)),
        (["runs", id, ..], false) => is("threads", "update", run(id)),
        (["store", "items"], true) => is("store", "get", Row::None),
        (["store", "items"], false) => is(
            "store",
            if method == Method::DELETE { "delete" } else { "put" },
            Row::None,
        ),
        (["store", "items", "search"], _) => is("store", "search", Row::None),
        (["store", "namespaces"], _) => is("store", "list_namespaces", Row::None),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_have_the_names_handlers_know() {
        let told = |method: Method, path: &str| about(&method, path).map(|about| (about.resource, about.action));
        for (method, path, expected) in [
            (Method::POST, "/threads", ("threads", "create")),
            (Method::POST, "/threads/search", ("threads", "search")),
            (Method::GET, "/threads/1", ("threads", "read")),
            (Method::POST, "/threads/1/state", ("threads", "update")),
            (Method::POST, "/threads/1/state/checkpoint", ("threads", "read")),
            (Method::POST, "/threads/1/history", ("threads", "read")),
            (Method::DELETE, "/threads/1", ("threads", "delete")),
            (Method::POST, "/threads/1/runs", ("threads", "create_run")),
            (Method::POST, "/threads/1/runs/stream", ("threads", "create_run")),
            (Method::GET, "/threads/1/runs/2/stream", ("threads", "read")),
            (Method::POST, "/threads/1/runs/2/cancel", ("threads", "update")),
            (Method::POST, "/threads/1/runs/crons", ("crons", "create")),
            (Method::POST, "/runs/wait", ("threads", "create_run")),
            (Method::GET, "/runs/2/wait", ("threads", "read")),
            (Method::POST, "/runs/crons", ("crons", "create")),
            (Method::PATCH, "/runs/crons/3", ("crons", "update")),
            (Method::POST, "/assistants", ("assistants", "create")),
            (Method::GET, "/assistants/4/graph", ("assistants", "read")),
            (Method::POST, "/assistants/4/latest", ("assistants", "update")),
            (Method::PUT, "/store/items", ("store", "put")),
            (Method::GET, "/store/items", ("store", "get")),
            (Method::POST, "/store/namespaces", ("store", "list_namespaces")),
        ] {
            assert_eq!(told(method.clone(), path), Some(expected), "{method} {path}");
        }
        assert_eq!(told(Method::GET, "/info"), None);
    }
}
