//! Which addresses may be called.

mod address;
mod allow;
mod call;
mod client;

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;

pub use address::{Kind, kind};
pub use allow::{Allowed, ParseAllowed};
pub use call::{Call, CallError, Reply};
pub use client::GuardedConnector;
pub(crate) use client::refusal;

/// A connection that is not there by now is not worth waiting for.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// An answer may be silent for this long.
const SILENCE_LIMIT: Duration = Duration::from_secs(30);
/// One request, its body included.
const REQUEST_LIMIT: Duration = Duration::from_secs(300);

/// What may be called beside public addresses.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// This machine itself: for development.
    pub loopback: bool,
    /// What the operator listed.
    pub allow: Vec<Allowed>,
}

/// An address that may not be called.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Not a public address, and not listed.
    #[error("{host} is a {kind} address; an operator can list it in outbound.allow")]
    Address {
        /// As the user gave it. The address behind a name is not told: it would map the inner network.
        host: String,
        /// What sort of address.
        kind: Kind,
    },
    /// Plain http to an address that is not listed.
    #[error("{host} must be called by https; an operator can list it in outbound.allow")]
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

/// Judges addresses and makes clients that obey. Clones share the clients.
#[derive(Clone)]
pub struct Guard(Arc<Inner>);

struct Inner {
    policy: Policy,
    /// One per (plain, port, patient): rules can hang on the first two, and a resolver learns neither.
    clients: Mutex<HashMap<(bool, u16, bool), reqwest::Client>>,
    runtime: Handle,
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Guard").field(&self.0.policy).finish()
    }
}

impl Guard {
    /// A guard that follows `policy`. Calls are made on the runtime this is called on.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self(Arc::new(Inner {
            policy,
            clients: Mutex::default(),
            runtime: Handle::current(),
        }))
    }

    fn runtime(&self) -> &Handle {
        &self.0.runtime
    }

    /// Judges one address that `host` stands for. `plain` says that the call would be http.
    ///
    /// # Errors
    /// Why it may not be called.
    pub fn check(&self, host: &str, address: SocketAddr, plain: bool) -> Result<(), Refused> {
        let ip = address::unwrapped(address.ip());
        let sort = kind(ip);
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
            return Err(Refused::Address {
                host: host.to_owned(),
                kind: sort,
            });
        }
        if plain {
            return Err(Refused::Plain { host: host.to_owned() });
        }
        Ok(())
    }

    /// Resolves `host` once and judges every address: one that is refused refuses the name, because which of several
    /// addresses is called in the end is up to nobody here.
    ///
    /// # Errors
    /// Why it may not be called.
    pub async fn resolve(&self, host: &str, port: u16, plain: bool) -> Result<Vec<SocketAddr>, Refused> {
        let unresolved = || Refused::Unresolved { host: host.to_owned() };
        let addresses: Vec<SocketAddr> = tokio::net::lookup_host((host, port))
            .await
            .map_err(|_| unresolved())?
            .collect();
        if addresses.is_empty() {
            return Err(unresolved());
        }
        addresses
            .iter()
            .try_for_each(|address| self.check(host, *address, plain))?;
        Ok(addresses)
    }

    /// Judges an address given as a URL, as far as that goes without connecting.
    ///
    /// # Errors
    /// Why it may not be called.
    pub async fn check_url(&self, text: &str) -> Result<(), Refused> {
        let target = client::Target::parse(text)?;
        match target.literal {
            Some(ip) => self.check(&target.host, SocketAddr::new(ip, target.port), target.plain),
            None => self.resolve(&target.host, target.port, target.plain).await.map(drop),
        }
    }

    /// A client for calls to `port`, which resolves through this guard.
    fn client(&self, plain: bool, port: u16) -> Result<reqwest::Client, reqwest::Error> {
        self.client_of(plain, port, false)
    }

    /// The same for calls with a time limit of their own: a model may think for minutes before its first word.
    fn patient_client(&self, plain: bool, port: u16) -> Result<reqwest::Client, reqwest::Error> {
        self.client_of(plain, port, true)
    }

    fn client_of(&self, plain: bool, port: u16, patient: bool) -> Result<reqwest::Client, reqwest::Error> {
        let mut clients = self.0.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = clients.get(&(plain, port, patient)) {
            return Ok(client.clone());
        }
        let builder = reqwest::Client::builder();
        let builder = if patient {
            builder
        } else {
            builder.read_timeout(SILENCE_LIMIT).timeout(REQUEST_LIMIT)
        };
        let client = builder
            .dns_resolver(Arc::new(client::Resolver::new(self.clone(), plain, port)))
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .connect_timeout(CONNECT_LIMIT)
            .user_agent(concat!("towpath/", env!("CARGO_PKG_VERSION")))
            .build()?;
        // A rule may name any port; nobody has this many destinations on different ones for long.
        if clients.len() >= 64 {
            clients.clear();
        }
        clients.insert((plain, port, patient), client.clone());
        Ok(client)
    }
}

/// As an address of a URL is written: without brackets, lower case, without a dot at the end.
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
    pub const fn listed(allow: Vec<Allowed>) -> Self {
        Self { loopback: false, allow }
    }
}

/// An address without a port, as rules that name none compare it.
fn same(ip: IpAddr, other: IpAddr) -> bool {
    address::unwrapped(ip) == address::unwrapped(other)
}

#[cfg(test)]
mod tests;
