//! The proxies of running sandboxes: what each may call, and what it sent and received.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use towpath_domain::sandbox::{ProxyConfig, ProxyHeader, ProxyRule, ProxySecrets};
use towpath_domain::{BoxId, Rejection, Secret};
use towpath_outbound::{AddressRefusal, AllowEntry, Guard, Policy as AddressPolicy, Scheme};
use towpath_sandbox::proxy::{
    Access, HeaderRule, HostPattern, PathPattern, Policy, Resolver, check_header, secret_value,
};
use towpath_sandbox::{BoxProxy, Error, Generation, ProxySettings, Traffic};
use towpath_store::sandboxes::boxes::SandboxBox;
use towpath_store::sandboxes::network::{self, BoxNetwork, BoxTraffic};
use towpath_store::sealing::Sealer;
use towpath_store::{self as store, Store};

use super::{SandboxHost, driver_generation};
use crate::metric;

/// Names that are resolved at a time, each of which may occupy a thread.
const MAX_LOOKUPS: usize = 64;

/// The proxies of this process.
#[derive(Debug)]
pub(super) struct BoxNetworks {
    resolver: Arc<GuardedResolver>,
    /// Made for the first sandbox: reading the certificates of the machine takes a while.
    settings: OnceLock<ProxySettings>,
    proxies: Mutex<HashMap<BoxId, RunningProxy>>,
    /// Of proxies that ended since traffic was last written. Emptied with each write.
    ended: Mutex<HashMap<BoxId, Traffic>>,
}

#[derive(Debug)]
struct RunningProxy {
    generation: Generation,
    /// Of the configuration in the database.
    version: i64,
    /// Whether no change of it was missed.
    is_current: bool,
    proxy: BoxProxy,
}

impl BoxNetworks {
    /// Sandboxes may call public addresses, and these.
    pub(super) fn new(allow: Vec<AllowEntry>) -> Self {
        Self {
            resolver: Arc::new(GuardedResolver {
                guard: Guard::new(AddressPolicy::with_allow_list(allow)),
                lookups: Arc::new(Semaphore::new(MAX_LOOKUPS)),
            }),
            settings: OnceLock::new(),
            proxies: Mutex::default(),
            ended: Mutex::default(),
        }
    }

    fn settings(&self) -> io::Result<ProxySettings> {
        if let Some(known) = self.settings.get() {
            return Ok(known.clone());
        }
        let mut roots = rustls::RootCertStore::empty();
        // A certificate that cannot be read is as if it were not there.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let made = ProxySettings::new(self.resolver.clone(), roots)?;
        Ok(self.settings.get_or_init(|| made).clone())
    }
}

impl SandboxHost {
    /// Serves the proxy of a running sandbox from now on, if this process does not yet.
    pub async fn ensure_proxy(&self, row: &SandboxBox, store: &Store, sealer: &Sealer) -> Result<(), Error> {
        if self.has_proxy(row.id, row.generation) {
            return Ok(());
        }
        let generation = driver_generation(row.generation);
        let Some(handle) = self.handle(row).await? else {
            return Ok(());
        };
        let Some(endpoint) = self.driver.open_proxy(&handle).await? else {
            return Ok(());
        };
        let settings = self.networks.settings().map_err(|source| Error::Io {
            what: "the certificates of this machine".to_owned(),
            source,
        })?;
        let (version, policy) = match read_network(store, row).await? {
            Some(found) => (found.version, stored_policy(&found, sealer)),
            None => (0, Policy::default()),
        };
        {
            let mut proxies = self.networks.proxies.lock();
            let is_there = |known: &RunningProxy| known.generation >= generation;
            if !proxies.get(&row.id).is_some_and(is_there) {
                let running = RunningProxy {
                    generation,
                    version,
                    is_current: false,
                    proxy: BoxProxy::start(settings, endpoint, policy)?,
                };
                if let Some(before) = proxies.insert(row.id, running) {
                    self.add_ended(row.id, &before);
                }
            }
        }
        // A change since the configuration was read did not find the proxy.
        if let Some(found) = read_network(store, row).await? {
            self.set_network(&found, sealer);
        }
        if let Some(running) = self.networks.proxies.lock().get_mut(&row.id) {
            running.is_current = true;
        }
        Ok(())
    }

    /// Whether this process serves the proxy of this life of a sandbox.
    pub(crate) fn has_proxy(&self, id: BoxId, generation: i64) -> bool {
        let generation = driver_generation(generation);
        let proxies = self.networks.proxies.lock();
        let is_served = |known: &RunningProxy| known.generation == generation && known.is_current;
        proxies.get(&id).is_some_and(is_served)
    }

    /// Applies a stored configuration to a running sandbox, for new connections. One that cannot be applied closes the
    /// network.
    pub fn set_network(&self, row: &BoxNetwork, sealer: &Sealer) {
        self.set_policy(row.id, row.version, stored_policy(row, sealer));
    }

    fn set_policy(&self, id: BoxId, version: i64, policy: Policy) {
        if let Some(running) = self.networks.proxies.lock().get_mut(&id)
            && running.version < version
        {
            running.version = version;
            running.proxy.set_policy(policy);
        }
    }

    /// Ends the connections of a sandbox that has stopped.
    pub(crate) fn end_proxy(&self, id: BoxId) {
        let ended = self.networks.proxies.lock().remove(&id);
        if let Some(ended) = ended {
            self.add_ended(id, &ended);
        }
    }

    /// The lives of sandboxes whose proxies this process serves.
    pub(crate) fn served_lives(&self) -> Vec<(BoxId, Generation)> {
        let proxies = self.networks.proxies.lock();
        proxies.iter().map(|(id, running)| (*id, running.generation)).collect()
    }

    /// Ends the connections of a life that is over, unless a later one has begun.
    pub(crate) fn end_proxy_of(&self, id: BoxId, generation: Generation) {
        let is_served = self
            .networks
            .proxies
            .lock()
            .get(&id)
            .is_some_and(|running| running.generation == generation);
        if is_served {
            self.end_proxy(id);
        }
    }

    fn add_ended(&self, id: BoxId, ended: &RunningProxy) {
        self.restore_traffic(id, ended.proxy.take_traffic());
    }

    fn restore_traffic(&self, id: BoxId, traffic: Traffic) {
        let mut ended = self.networks.ended.lock();
        add(ended.entry(id).or_default(), traffic);
    }

    /// Writes the traffic since the last call.
    pub(crate) async fn write_traffic(&self, store: &Store) -> store::Result<()> {
        let mut counted = std::mem::take(&mut *self.networks.ended.lock());
        for (id, running) in &*self.networks.proxies.lock() {
            add(counted.entry(*id).or_default(), running.proxy.take_traffic());
        }
        let mut rows: Vec<BoxTraffic> = Vec::new();
        for (id, traffic) in counted {
            metrics::counter!(metric::NETWORK_CONNECTIONS).increment(traffic.connections);
            metrics::counter!(metric::NETWORK_REFUSED).increment(traffic.refused);
            for (direction, bytes) in [("sent", traffic.sent_bytes), ("received", traffic.received_bytes)] {
                metrics::counter!(metric::NETWORK_BYTES, "direction" => direction).increment(bytes);
            }
            if traffic.sent_bytes + traffic.received_bytes > 0 {
                rows.push(BoxTraffic {
                    id,
                    sent_bytes: i64::try_from(traffic.sent_bytes).unwrap_or(i64::MAX),
                    received_bytes: i64::try_from(traffic.received_bytes).unwrap_or(i64::MAX),
                });
            }
        }
        // The same order everywhere, so that writers do not deadlock.
        rows.sort_unstable_by_key(|row| row.id);
        let mut left = &rows[..];
        while !left.is_empty() {
            let (page, rest) = left.split_at(left.len().min(100));
            let written = store.write(async |tx| network::add_traffic(tx, page).await).await;
            if let Err(error) = written {
                for row in left {
                    // Counted in the metrics already.
                    let traffic = Traffic {
                        sent_bytes: row.sent_bytes.unsigned_abs(),
                        received_bytes: row.received_bytes.unsigned_abs(),
                        ..Traffic::default()
                    };
                    self.restore_traffic(row.id, traffic);
                }
                return Err(error);
            }
            left = rest;
        }
        Ok(())
    }
}

async fn read_network(store: &Store, row: &SandboxBox) -> Result<Option<BoxNetwork>, Error> {
    let (tenant, id) = (row.tenant_id, row.id);
    let found = store.read(async |tx| network::find(tx, tenant, id).await).await;
    found.map_err(|error| Error::Io {
        what: "the network of the sandbox".to_owned(),
        source: io::Error::other(error),
    })
}

/// What a stored configuration allows: nothing if it cannot be applied.
fn stored_policy(row: &BoxNetwork, sealer: &Sealer) -> Policy {
    let compiled = row.config().map_err(|error| error.to_string()).and_then(|config| {
        let secrets = row.secrets(sealer).map_err(|error| error.to_string())?;
        compile(&config, &secrets).map_err(|rejection| rejection.field)
    });
    compiled.unwrap_or_else(|reason| {
        tracing::warn!(sandbox.id = %row.id, reason, "the network of a sandbox stays closed");
        Policy::default()
    })
}

fn add(sum: &mut Traffic, traffic: Traffic) {
    sum.sent_bytes += traffic.sent_bytes;
    sum.received_bytes += traffic.received_bytes;
    sum.connections += traffic.connections;
    sum.refused += traffic.refused;
}

/// Turns a configuration into what the proxy decides by. The error names the field and contains no secret.
pub fn compile(config: &ProxyConfig, secrets: &ProxySecrets) -> Result<Policy, Rejection> {
    let access = match &config.access_control {
        None => Access::Rules,
        Some(access) if access.allow_list.is_empty() => {
            Access::Deny(hosts("proxy_config.access_control.deny_list", &access.deny_list)?)
        }
        Some(access) => Access::Allow(hosts("proxy_config.access_control.allow_list", &access.allow_list)?),
    };
    let mut policy = Policy {
        access,
        ..Policy::default()
    };
    for (index, rule) in config.rules.iter().enumerate() {
        let compiled = compile_rule(&format!("proxy_config.rules.{index}"), rule, secrets)?;
        if !rule.enabled {
            continue;
        }
        if rule.is_attribution() {
            policy.attribution = compiled.headers;
        } else {
            policy.rules.push(compiled);
        }
    }
    Ok(policy)
}

fn compile_rule(field: &str, rule: &ProxyRule, secrets: &ProxySecrets) -> Result<HeaderRule, Rejection> {
    let hosts = hosts(&format!("{field}.match_hosts"), &rule.match_hosts)?;
    let mut paths = Vec::with_capacity(rule.match_paths.len());
    for (index, path) in rule.match_paths.iter().enumerate() {
        let path = PathPattern::parse(path);
        paths.push(path.map_err(|why| Rejection::invalid(format!("{field}.match_paths.{index}"), why))?);
    }
    let mut match_headers = Vec::with_capacity(rule.match_headers.len());
    for (index, header) in rule.match_headers.iter().enumerate() {
        let invalid = || {
            let text = "expected a header and its value, as in \"authorization: Bearer account\"";
            Rejection::invalid(format!("{field}.match_headers.{index}"), text)
        };
        let (name, value) = header.split_once(':').ok_or_else(invalid)?;
        let name = check_header(name.trim()).map_err(|_| invalid())?;
        match_headers.push((name, secret_value(value.trim()).map_err(|_| invalid())?));
    }
    let mut headers = Vec::with_capacity(rule.headers.len());
    for (index, header) in rule.headers.iter().enumerate() {
        let field = format!("{field}.headers.{index}");
        let name = check_header(&header.name).map_err(|why| Rejection::invalid(format!("{field}.name"), why))?;
        let invalid = |why| Rejection::invalid(format!("{field}.value"), why);
        let value = header_value(rule, header, secrets).ok_or_else(|| invalid("expected the value of the header"))?;
        headers.push((name, secret_value(value).map_err(invalid)?));
    }
    Ok(HeaderRule {
        hosts,
        port: rule.match_port,
        paths,
        match_headers,
        headers,
    })
}

fn header_value<'a>(rule: &ProxyRule, header: &'a ProxyHeader, secrets: &'a ProxySecrets) -> Option<&'a str> {
    let secret = || secrets.get(&rule.name, &header.name).map(Secret::reveal);
    header.value.as_deref().or_else(secret)
}

fn hosts(field: &str, texts: &[String]) -> Result<Vec<HostPattern>, Rejection> {
    let mut patterns = Vec::with_capacity(texts.len());
    for (index, text) in texts.iter().enumerate() {
        let pattern = HostPattern::parse(text);
        patterns.push(pattern.map_err(|why| Rejection::invalid(format!("{field}.{index}"), why))?);
    }
    Ok(patterns)
}

/// Resolves names as the operator allows.
#[derive(Debug)]
struct GuardedResolver {
    guard: Guard,
    lookups: Arc<Semaphore>,
}

#[async_trait]
impl Resolver for GuardedResolver {
    async fn resolve(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
        let closed = || "names are not resolved any more".to_owned();
        let permit = Arc::clone(&self.lookups).acquire_owned().await.map_err(|_| closed())?;
        let (guard, host) = (self.guard.clone(), host.to_owned());
        // Its thread is busy to the end, even if nobody waits any more.
        let looked_up = tokio::spawn(async move {
            let resolved = guard.resolve(&host, port, Scheme::Https).await;
            drop(permit);
            resolved
        });
        let resolved = looked_up.await.map_err(|_| closed())?;
        resolved.map_err(|refusal| match refusal {
            AddressRefusal::Address { host, kind } => {
                format!("{host} is a {kind} address; an operator can allow it in sandboxes.network_allow")
            }
            other => other.to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use towpath_domain::sandbox::StoredProxy;
    use towpath_sandbox::proxy::{Scheme, Target};

    use super::*;

    fn compiled(sent: &Value) -> Result<Policy, Rejection> {
        let (config, secrets) = ProxyConfig::parse(sent, &StoredProxy::default())?;
        compile(&config, &secrets)
    }

    fn allows(policy: &Policy, host: &str) -> bool {
        let target = Target::parse(host, Scheme::Https).unwrap();
        policy.check(&target, Scheme::Https).is_ok()
    }

    #[test]
    fn the_network_is_closed_unless_a_configuration_opens_it() {
        let rule = json!({"name": "api", "match_hosts": ["api.example.com"],
                          "headers": [{"name": "X-Key", "type": "opaque", "value": "secret"}]});
        let off = json!({"name": "off", "enabled": false, "match_hosts": ["off.example.com"],
                         "headers": [{"name": "X-Key", "type": "plaintext", "value": "a"}]});
        for (sent, open, closed) in [
            (json!({}), vec![], vec!["example.com"]),
            (
                json!({"rules": [rule, off]}),
                vec!["api.example.com"],
                vec!["example.com", "off.example.com"],
            ),
            (
                json!({"rules": [rule], "access_control": {"allow_list": ["*.example.org"]}}),
                vec!["a.example.org"],
                vec!["api.example.com"],
            ),
            (
                json!({"access_control": {"deny_list": ["evil.example.com"]}}),
                vec!["example.com"],
                vec!["evil.example.com"],
            ),
        ] {
            let policy = compiled(&sent).unwrap();
            for host in open {
                assert!(allows(&policy, host), "{sent} {host}");
            }
            for host in closed {
                assert!(!allows(&policy, host), "{sent} {host}");
            }
        }
    }

    #[test]
    fn what_cannot_be_applied_is_named() {
        let rule = |changes: &Value| {
            let mut rule = json!({"name": "a", "match_hosts": ["b"],
                                  "headers": [{"name": "x-a", "type": "opaque", "value": "hunter2\n"}]});
            rule.as_object_mut()
                .unwrap()
                .extend(changes.as_object().unwrap().clone());
            json!({"rules": [rule]})
        };
        for (sent, field) in [
            (rule(&json!({})), "proxy_config.rules.0.headers.0.value"),
            (
                rule(&json!({"match_hosts": ["https://b"]})),
                "proxy_config.rules.0.match_hosts.0",
            ),
            (
                rule(&json!({"match_paths": ["b"]})),
                "proxy_config.rules.0.match_paths.0",
            ),
            (
                rule(&json!({"match_headers": ["b"]})),
                "proxy_config.rules.0.match_headers.0",
            ),
            (
                rule(&json!({"headers": [{"name": "Host", "type": "plaintext", "value": "b"}]})),
                "proxy_config.rules.0.headers.0.name",
            ),
            (
                json!({"access_control": {"allow_list": ["a", "~("]}}),
                "proxy_config.access_control.allow_list.1",
            ),
            (
                json!({"access_control": {"deny_list": ["a b"]}}),
                "proxy_config.access_control.deny_list.0",
            ),
        ] {
            let refused = compiled(&sent).unwrap_err();
            assert_eq!(refused.field, field);
            assert!(!refused.message.contains("hunter2"));
        }
    }

    #[tokio::test]
    async fn inner_addresses_are_refused_in_every_spelling() {
        let networks = BoxNetworks::new(Vec::new());
        for host in [
            "127.0.0.1",
            "localhost",
            "2130706433",
            "0x7f.1",
            "0",
            "10.0.0.1",
            "192.168.0.1",
            "169.254.169.254",
            "100.100.100.200",
            "::1",
            "::ffff:169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "fd00:ec2::254",
            "fe80::1",
        ] {
            let refused = networks.resolver.resolve(host, 443).await;
            assert!(refused.is_err(), "{host}: {refused:?}");
        }
        let opened = BoxNetworks::new(vec!["127.0.0.1:8443".parse().unwrap()]);
        opened.resolver.resolve("127.0.0.1", 8443).await.unwrap();
        assert!(opened.resolver.resolve("127.0.0.1", 443).await.is_err());
    }
}
