//! A surface that may be replaced while it is served: what the graphs' author says about it changes in `dev`.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use parking_lot::RwLock;
use tower::{ServiceExt as _, service_fn};

/// Serves a router until it is given another; clones share it.
#[derive(Clone, Debug)]
pub struct ReloadableRouter(Arc<RwLock<Router>>);

impl ReloadableRouter {
    /// Begins with this one.
    #[must_use]
    pub fn new(router: Router) -> Self {
        Self(Arc::new(RwLock::new(router)))
    }

    /// Has requests that come from now on answered by this one; those under way stay where they are.
    pub fn replace(&self, router: Router) {
        *self.0.write() = router;
    }

    /// What is to be served.
    pub fn router(&self) -> Router {
        let current = self.0.clone();
        Router::new().fallback_service(service_fn(move |request: Request| {
            let router = current.read().clone();
            router.oneshot(request)
        }))
    }
}
