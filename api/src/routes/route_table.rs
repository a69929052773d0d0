//! A router that knows its routes: for those that no API description lists.

use axum::Router;
use axum::handler::Handler;
use axum::routing::{MethodRouter, any, delete, get, patch, post, put};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Route {
    /// The method; `*` is every one.
    pub method: &'static str,
    /// As the router reads it, with parameters in braces.
    pub path: &'static str,
}

/// Routes, and a list of them.
pub(crate) struct RouteTable<S> {
    router: Router<S>,
    routes: Vec<Route>,
}

impl<S: Clone + Send + Sync + 'static> RouteTable<S> {
    pub(crate) fn new() -> Self {
        Self {
            router: Router::new(),
            routes: Vec::new(),
        }
    }

    pub(crate) fn get<H: Handler<T, S>, T: 'static>(self, path: &'static str, handler: H) -> Self {
        self.add("GET", path, get(handler))
    }

    pub(crate) fn post<H: Handler<T, S>, T: 'static>(self, path: &'static str, handler: H) -> Self {
        self.add("POST", path, post(handler))
    }

    pub(crate) fn put<H: Handler<T, S>, T: 'static>(self, path: &'static str, handler: H) -> Self {
        self.add("PUT", path, put(handler))
    }

    pub(crate) fn patch<H: Handler<T, S>, T: 'static>(self, path: &'static str, handler: H) -> Self {
        self.add("PATCH", path, patch(handler))
    }

    pub(crate) fn delete<H: Handler<T, S>, T: 'static>(self, path: &'static str, handler: H) -> Self {
        self.add("DELETE", path, delete(handler))
    }

    pub(crate) fn any<H: Handler<T, S>, T: 'static>(self, path: &'static str, handler: H) -> Self {
        self.add("*", path, any(handler))
    }

    fn add(mut self, method: &'static str, path: &'static str, handlers: MethodRouter<S>) -> Self {
        self.routes.push(Route { method, path });
        self.router = self.router.route(path, handlers);
        self
    }

    /// These and those.
    pub(crate) fn merge(mut self, others: Self) -> Self {
        self.router = self.router.merge(others.router);
        self.routes.extend(others.routes);
        self
    }

    /// With layers around the routes so far.
    pub(crate) fn with_layers(mut self, layers: impl FnOnce(Router<S>) -> Router<S>) -> Self {
        self.router = layers(self.router);
        self
    }

    pub(crate) fn router(self) -> Router<S> {
        self.router
    }

    pub(crate) fn routes(self) -> Vec<Route> {
        self.routes
    }
}
