//! How many connections one address has.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::client::network;

/// Counts connections by the address they come from.
#[derive(Clone, Default)]
pub(super) struct ConnectionCounts(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// One connection; no longer counted when dropped.
pub(super) struct ConnectionGuard {
    peers: ConnectionCounts,
    of: IpAddr,
}

impl ConnectionCounts {
    /// Counts one more from `address`, unless that has `most` already.
    pub(super) fn count(&self, address: IpAddr, most: usize) -> Option<ConnectionGuard> {
        let of = network(address);
        let mut open = self.0.lock();
        let count = open.entry(of).or_default();
        if *count >= most.max(1) {
            return None;
        }
        *count += 1;
        drop(open);
        Some(ConnectionGuard {
            peers: self.clone(),
            of,
        })
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        let mut open = self.peers.0.lock();
        if let Some(count) = open.get_mut(&self.of) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.of);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_counted_by_network() {
        let peers = ConnectionCounts::default();
        let count = |address: &str| peers.count(address.parse().unwrap(), 2);
        let held = [count("192.0.2.1").unwrap(), count("::ffff:192.0.2.1").unwrap()];
        assert!(count("192.0.2.1").is_none(), "two are the most");
        assert!(count("192.0.2.2").is_some());
        drop(held);
        assert!(count("192.0.2.1").is_some());
        let _held = [count("2001:db8::1").unwrap(), count("2001:db8::2").unwrap()];
        assert!(count("2001:db8::3").is_none(), "they are of one network");
        assert!(count("2001:db8:0:1::1").is_some());
        assert_eq!(peers.0.lock().len(), 1, "who has none is forgotten");
    }
}
