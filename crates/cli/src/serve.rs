//! `towpath serve`: roles of a cluster.

use std::net::SocketAddr;

use anyhow::{Context as _, bail};
use towpath_store::{Dialect, Store, access};

use crate::arguments::{Role, Serve, flag};
use crate::config::{Config, Mode, Settings};
use crate::exit::Usage;
use crate::first_key;
use crate::signals::Signals;
use crate::storage::Storage;
use crate::telemetry;
use crate::wiring::{Roles, Server};

pub async fn run(command: Serve) -> anyhow::Result<()> {
    let roles = roles(&command.role);
    let flags = [
        flag("listen", "--listen", command.listen),
        flag("limits.rules", "--limits", command.limits.as_ref()),
    ];
    let config = Config::load(
        &command
            .common
            .inputs(mode(roles), flags.into_iter().flatten().collect()),
    )?;
    let spans = telemetry::start_logging(&config)?;
    let metrics = telemetry::start_metrics()?;
    // Before anything that may take long, such as a migration or an unresponsive database.
    let mut signals = Signals::listen()?;
    let Some(opened) = signals.unless_stopped(Storage::open(&config.settings)).await else {
        spans.close().await;
        return Ok(());
    };
    let storage = opened?;
    if storage.store.dialect() == Dialect::Sqlite && roles != Roles::ALL {
        bail!(Usage(
            "SQLite serves one process: run all roles in it (--role all), or set DATABASE_URI to a PostgreSQL database"
                .into()
        ));
    }
    if roles.api {
        first_key::of_serve(&storage.store, &config.settings).await?;
        check_exposed(&storage.store, &config.settings).await?;
    }
    let server = Server::start(&config, roles, storage, metrics).await?;
    tracing::info!(listen = %server.address(), roles = %roles, "ready");
    let ran = server.run(signals).await;
    spans.close().await;
    ran
}

pub fn roles(given: &[Role]) -> Roles {
    let has = |role| given.contains(&role) || given.contains(&Role::All);
    Roles {
        api: has(Role::Api),
        worker: has(Role::Worker),
        scheduler: has(Role::Scheduler),
    }
}

const fn mode(roles: Roles) -> Mode {
    match roles {
        Roles { api: true, .. } => Mode::Api,
        Roles { worker: true, .. } => Mode::Worker,
        _ => Mode::Scheduler,
    }
}

/// Refuses to listen outside loopback without an API key: nobody could use the server, or anybody could.
async fn check_exposed(store: &Store, settings: &Settings) -> anyhow::Result<()> {
    if settings.listen.ip().is_loopback() {
        return Ok(());
    }
    warn_in_clear(settings, settings.listen);
    if store
        .read(async |tx| access::has_keys(tx).await)
        .await
        .context("looking for API keys")?
    {
        return Ok(());
    }
    bail!(Usage(format!(
        "{} is reachable from outside and there is no API key: create one with `towpath keys create`, or set \
         TOWPATH_API_KEY and TOWPATH_TENANT_ID",
        settings.listen
    )))
}

/// Warns if other machines reach an address without TLS and no proxy with TLS is configured.
pub fn warn_in_clear(settings: &Settings, listen: SocketAddr) {
    if is_in_clear(settings, listen) {
        tracing::warn!(
            %listen,
            "KEYS AND TRACES ARE NOT ENCRYPTED: this address is reachable from outside without TLS; set tls.cert and \
             tls.key, or put a TLS proxy in front, name it in http.trusted_proxies, and set public_url to its \
             https address"
        );
    }
}

/// Whether traffic at `listen` is not encrypted.
pub fn is_in_clear(settings: &Settings, listen: SocketAddr) -> bool {
    let public = settings.public_url.as_deref();
    let behind_proxy = public.is_some_and(|url| url.starts_with("https://")) && !settings.trusted_proxies.is_empty();
    !listen.ip().is_loopback() && settings.tls.is_none() && !behind_proxy
}

#[cfg(test)]
mod tests {
    use crate::config::Inputs;

    use super::*;

    #[test]
    fn an_address_of_others_without_tls_and_proxies_is_in_clear() {
        let is_in_clear = |environment: &[(&str, &str)], listen: &str| {
            let inputs = Inputs {
                environment: environment
                    .iter()
                    .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                    .collect(),
                ..Inputs::isolated(Mode::Api, Vec::new())
            };
            let config = Config::load(&inputs).unwrap();
            is_in_clear(&config.settings, listen.parse().unwrap())
        };
        let https = ("TOWPATH_PUBLIC_URL", "https://towpath.example");
        let proxies = ("TOWPATH_HTTP_TRUSTED_PROXIES", "10.0.0.0/8");
        let files = [("TOWPATH_TLS_CERT", "a.pem"), ("TOWPATH_TLS_KEY", "b.pem")];
        assert!(is_in_clear(&[], "0.0.0.0:8400"));
        assert!(!is_in_clear(&[], "127.0.0.1:8400"));
        assert!(is_in_clear(&[https], "0.0.0.0:8400"), "no trusted proxy is named");
        assert!(is_in_clear(&[proxies], "0.0.0.0:8400"), "the proxy may not use TLS");
        assert!(!is_in_clear(&[https, proxies], "0.0.0.0:8400"));
        assert!(!is_in_clear(&files, "0.0.0.0:8400"));
    }

    #[test]
    fn roles_decide_the_defaults() {
        assert_eq!(mode(roles(&[Role::All])), Mode::Api);
        assert_eq!(mode(roles(&[Role::Scheduler, Role::Worker])), Mode::Worker);
        assert_eq!(mode(roles(&[Role::Scheduler])), Mode::Scheduler);
        assert_eq!(roles(&[Role::Api, Role::Worker, Role::Scheduler]), Roles::ALL);
    }
}
