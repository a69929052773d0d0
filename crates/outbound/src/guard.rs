//! Which addresses may be called.

mod address;
mod allow_list;
mod call;
mod client;

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;

pub use address::{Kind, kind};
pub use allow_list::{AllowEntry, ParseAllowed};
pub use call::{Call, CallError, Reply};
pub use client::GuardedConnector;
pub(crate) use client::refusal;

/// Time limit for establishing a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// An answer may be silent for this long.
const SILENCE_LIMIT: Duration = Duration::from_secs(30);
/// One request, its body included.
const REQUEST_LIMIT: Duration = Duration::from_secs(300);

/// The scheme of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// Refused unless the address is listed.
    Http,
    /// Encrypted, or the caller decides about plain text.
    Https,
}

/// Who limits the time of a call.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum TimeLimit {
    Client,
    Caller,
}

/// What may be called beside public addresses.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// This machine itself: for development.
    pub loopback: bool,
    /// What the operator listed.
    pub allow: Vec<AllowEntry>,
}

/// An address that may not be called.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressRefusal {
    /// An address of this machine, which the caller excludes.
    #[error("{host} is this machine, which this call may not use")]
    ThisMachine {
        /// As given by the user.
        host: String,
    },
    /// Not a public address, and not listed.
    #[error("{host} is a {kind} address; an operator can allow it in outbound.allow")]
    Address {
        /// As given by the user. The resolved address is not shown: it would reveal the internal network.
        host: String,
        /// What sort of address.
        kind: Kind,
    },
    /// Plain http to an address that is not listed.
    #[error("{host} must be called over https; an operator can allow it in outbound.allow")]
    Plain {
        /// As the user gave it.
        host: String,
    },
    /// The name has no address.
    #[error("{host} cannot be resolved")]
    Unresolved {
        /// As the user gave it.
        host: String,
    },
    /// Not an address at all.
    #[error("{0:?} is not an http or https address")]
    Malformed(String),
}

/// Checks addresses and creates clients that enforce the checks. Clones share the clients.
#[derive(Clone)]
pub struct Guard(Arc<GuardState>);

struct GuardState {
    policy: Policy,
    /// Refuses this machine, whatever the policy allows.
    denies_loopback: bool,
    /// The same guard with [`GuardState::denies_loopback`], so that its clients are kept.
    without_loopback: OnceLock<Guard>,
    /// Rules may depend on scheme and port, which a resolver does not get.
    clients: Mutex<HashMap<(Scheme, u16, TimeLimit), reqwest::Client>>,
    runtime: Handle,
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Guard").field(&self.0.policy).finish()
    }
}

impl Guard {
    /// A guard for `policy`. Calls run on the current runtime.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self(Arc::new(GuardState {
            policy,
            denies_loopback: false,
            without_loopback: OnceLock::new(),
            clients: Mutex::default(),
            runtime: Handle::current(),
        }))
    }

    /// The same guard, for calls that must not reach this machine even if the policy allows it.
    #[must_use]
    pub fn without_loopback(&self) -> Self {
        if self.0.denies_loopback {
            return self.clone();
        }
        let stricter = self.0.without_loopback.get_or_init(|| {
            Self(Arc::new(GuardState {
                policy: self.0.policy.clone(),
                denies_loopback: true,
                without_loopback: OnceLock::new(),
                clients: Mutex::default(),
                runtime: self.0.runtime.clone(),
            }))
        });
        stricter.clone()
    }

    fn runtime(&self) -> &Handle {
        &self.0.runtime
    }

    /// Checks one address of `host`.
    pub fn check(&self, host: &str, address: SocketAddr, scheme: Scheme) -> Result<(), AddressRefusal> {
        let ip = address::unwrapped(address.ip());
        let sort = kind(ip);
        if self.0.denies_loopback && sort == Kind::Loopback {
            return Err(AddressRefusal::ThisMachine { host: host.to_owned() });
        }
        let listed = self
            .0
            .policy
            .allow
            .iter()
            .any(|entry| entry.covers(host, ip, address.port(), sort))
            || (self.0.policy.loopback && sort == Kind::Loopback);
        if listed {
            return Ok(());
        }
        if sort != Kind::Public {
            return Err(AddressRefusal::Address {
                host: host.to_owned(),
                kind: sort,
            });
        }
        if scheme == Scheme::Http {
            return Err(AddressRefusal::Plain { host: host.to_owned() });
        }
        Ok(())
    }

    /// Resolves `host` once and checks every address: a single refused address refuses the name, since the client may
    /// connect to any of them.
    pub async fn resolve(&self, host: &str, port: u16, scheme: Scheme) -> Result<Vec<SocketAddr>, AddressRefusal> {
        let unresolved = || AddressRefusal::Unresolved { host: host.to_owned() };
        let addresses: Vec<SocketAddr> = tokio::net::lookup_host((host, port))
            .await
            .map_err(|_| unresolved())?
            .collect();
        if addresses.is_empty() {
            return Err(unresolved());
        }
        addresses
            .iter()
            .try_for_each(|address| self.check(host, *address, scheme))?;
        Ok(addresses)
    }

    /// Checks a URL without connecting.
    pub async fn check_url(&self, text: &str) -> Result<(), AddressRefusal> {
        let target = client::Target::parse(text)?;
        match target.literal {
            Some(ip) => self.check(&target.host, SocketAddr::new(ip, target.port), target.scheme),
            None => self.resolve(&target.host, target.port, target.scheme).await.map(drop),
        }
    }

    /// A client for calls to `port`, which resolves names through this guard.
    fn client(&self, scheme: Scheme, port: u16) -> Result<reqwest::Client, reqwest::Error> {
        self.cached_client(scheme, port, TimeLimit::Client)
    }

    /// The same for calls with their own time limit: a model may take minutes until its first token.
    fn client_without_timeout(&self, scheme: Scheme, port: u16) -> Result<reqwest::Client, reqwest::Error> {
        self.cached_client(scheme, port, TimeLimit::Caller)
    }

    fn cached_client(
        &self,
        scheme: Scheme,
        port: u16,
        time_limit: TimeLimit,
    ) -> Result<reqwest::Client, reqwest::Error> {
        let mut clients = self.0.clients.lock();
        if let Some(client) = clients.get(&(scheme, port, time_limit)) {
            return Ok(client.clone());
        }
        let builder = reqwest::Client::builder();
        let builder = match time_limit {
            TimeLimit::Client => builder.read_timeout(SILENCE_LIMIT).timeout(REQUEST_LIMIT),
            TimeLimit::Caller => builder,
        };
        let client = builder
            .dns_resolver(Arc::new(client::Resolver::new(self.clone(), scheme, port)))
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .connect_timeout(CONNECT_LIMIT)
            .user_agent(concat!("towpath/", env!("CARGO_PKG_VERSION")))
            .build()?;
        // Users may choose any port, but rarely use this many at once.
        if clients.len() >= 64 {
            clients.clear();
        }
        clients.insert((scheme, port, time_limit), client.clone());
        Ok(client)
    }
}

/// The host as in a URL: lower case, without brackets and trailing dot.
fn host_name(host: &str) -> String {
    host.trim_matches(['[', ']']).trim_end_matches('.').to_ascii_lowercase()
}

/// For tables of tests and of people.
impl Policy {
    /// For development: this machine may be called.
    #[must_use]
    pub const fn development() -> Self {
        Self {
            loopback: true,
            allow: Vec::new(),
        }
    }

    /// For everything else: public addresses and what is listed.
    #[must_use]
    pub const fn with_allow_list(allow: Vec<AllowEntry>) -> Self {
        Self { loopback: false, allow }
    }
}

/// Compares addresses without ports, for rules without one.
fn same(ip: IpAddr, other: IpAddr) -> bool {
    address::unwrapped(ip) == address::unwrapped(other)
}

#[cfg(test)]
mod tests;
