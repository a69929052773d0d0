//! The routes of operators.

use axum::extract::FromRef;

use super::job_stores::JobStores;
use super::{bulk, jobs, quarantine, queues, schedules, workers};
use crate::app::App;
use crate::routes::{Routes, routes};

/// Those of every surface.
pub(crate) fn shared<S: Clone + Send + Sync + 'static>() -> Routes<S>
where
    JobStores: FromRef<S>,
{
    Routes::default()
        .routes(routes!(queues::list))
        .routes(routes!(queues::get))
        .routes(routes!(queues::pause))
        .routes(routes!(queues::resume))
        .routes(routes!(queues::drain))
        .routes(routes!(queues::scaling))
        .routes(routes!(jobs::list))
        .routes(routes!(bulk::bulk))
        .routes(routes!(jobs::get))
        .routes(routes!(jobs::retry))
        .routes(routes!(jobs::cancel))
        .routes(routes!(jobs::dead))
        .routes(routes!(jobs::retry_dead))
        .routes(routes!(workers::list))
        .routes(routes!(workers::drain))
        .routes(routes!(workers::resume))
        .routes(routes!(schedules::list))
        .routes(routes!(schedules::pause))
        .routes(routes!(schedules::resume))
}

/// Those of the quarantine. Only the platform has them, since it flushes traces.
pub(crate) fn quarantine() -> Routes<App> {
    Routes::default()
        .routes(routes!(quarantine::list))
        .routes(routes!(quarantine::usage))
        .routes(routes!(quarantine::bulk::bulk))
        .routes(routes!(quarantine::get))
        .routes(routes!(quarantine::body))
        .routes(routes!(quarantine::retry))
        .routes(routes!(quarantine::discard))
}
