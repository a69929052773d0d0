//! Lists of routes whose handlers describe themselves.

mod route_table;

use axum::Router;
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};

pub use route_table::Route;
pub(crate) use route_table::RouteTable;

/// What `#[utoipa::path]` made of a handler.
macro_rules! described {
    ($handler:ident) => {
        ::pastey::paste! { [<__path_ $handler>] }
    };
    ($a:ident::$handler:ident) => {
        ::pastey::paste! { $a::[<__path_ $handler>] }
    };
    ($a:ident::$b:ident::$handler:ident) => {
        ::pastey::paste! { $a::$b::[<__path_ $handler>] }
    };
}
pub(crate) use described;

/// Handlers of one path, for [`Routes::routes`]. Other than `utoipa_axum::routes!` it can serve them without describing
/// them.
macro_rules! routes {
    ($($($part:ident)::+),+ $(,)?) => {
        $crate::routes::RouteHandlers {
            serve: |router| {
                use ::utoipa_axum::PathItemExt as _;
                $(
                    let router = {
                        type Described = $crate::routes::described!($($part)::+);
                        let filters = <Described as ::utoipa::Path>::methods();
                        let filters = filters.iter().map(|method| method.to_method_filter());
                        let handler = filters.fold(::axum::routing::MethodRouter::new(), |handler, filter| {
                            handler.on(filter, $($part)::+)
                        });
                        router.route(&<Described as ::utoipa::Path>::path(), handler)
                    };
                )+
                router
            },
            describe: || ::utoipa_axum::routes!($($($part)::+),+),
        }
    };
}
pub(crate) use routes;

/// Handlers that are not put together yet.
pub(crate) struct RouteHandlers<S> {
    /// Adds them to a router.
    pub(crate) serve: fn(Router<S>) -> Router<S>,
    /// The same, and what they say of themselves.
    pub(crate) describe: fn() -> UtoipaMethodRouter<S>,
}

/// Routes that are not put together yet. What all of them say of themselves takes many times the memory of its text, and
/// a good part of a start; it is wanted only where somebody asks for it.
pub(crate) struct Routes<S>(Vec<RouteHandlers<S>>);

/// What a router is for.
#[derive(Clone, Copy)]
pub(crate) enum Purpose {
    /// It serves, and its document is empty.
    Serve,
    /// Its document is what is wanted.
    Describe,
}

impl<S: Clone + Send + Sync + 'static> Routes<S> {
    /// These, and one path more.
    pub(crate) fn routes(mut self, handlers: RouteHandlers<S>) -> Self {
        self.0.push(handlers);
        self
    }

    /// These and those.
    pub(crate) fn merge(mut self, others: Self) -> Self {
        self.0.extend(others.0);
        self
    }

    /// The router of them.
    pub(crate) fn build(self, purpose: Purpose) -> OpenApiRouter<S> {
        match purpose {
            Purpose::Serve => {
                let serve = |router, handlers: RouteHandlers<S>| (handlers.serve)(router);
                self.0.into_iter().fold(Router::new(), serve).into()
            }
            Purpose::Describe => {
                let describe = |router: OpenApiRouter<S>, handlers: RouteHandlers<S>| {
                    let handlers = (handlers.describe)();
                    debug_assert_eq!(handlers.1.paths.len(), 1, "they are of one path");
                    router.routes(handlers)
                };
                self.0.into_iter().fold(OpenApiRouter::default(), describe)
            }
        }
    }
}

impl<S> Default for Routes<S> {
    fn default() -> Self {
        Self(Vec::new())
    }
}
