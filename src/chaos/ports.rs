//! Ports for nodes that must know each other's before any of them listens.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use rand::Rng;

use super::HarnessError;

/// Below the range from which the system takes ports for outgoing connections (32768 on Linux): a port that is
/// released here is not taken by one of those before its node listens.
const PORT_MIN: u16 = 20_000;
const PORT_MAX: u16 = 32_000;
/// Most ports of a machine are free.
const TRIES_PER_PORT: usize = 100;

/// So many different free ports of the loopback address.
pub(super) fn free_addresses(wanted: usize) -> Result<Vec<SocketAddr>, HarnessError> {
    // All are held until the last is found, so that they differ.
    let mut held: Vec<TcpListener> = Vec::with_capacity(wanted);
    let mut last_error = io::Error::from(io::ErrorKind::AddrInUse);
    for _ in 0..wanted.saturating_mul(TRIES_PER_PORT) {
        if held.len() == wanted {
            break;
        }
        let port = rand::rng().random_range(PORT_MIN..=PORT_MAX);
        match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            Ok(listener) => held.push(listener),
            Err(error) => last_error = error,
        }
    }
    let addresses: Result<Vec<SocketAddr>, io::Error> =
        held.iter().map(TcpListener::local_addr).collect();
    let refuse = |source| HarnessError::Ports {
        wanted,
        from: PORT_MIN,
        to: PORT_MAX,
        source,
    };
    let addresses = addresses.map_err(refuse)?;
    if addresses.len() < wanted {
        return Err(refuse(last_error));
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn free_addresses_differ_and_can_be_listened_on() {
        let addresses = free_addresses(10).unwrap();

        let different: BTreeSet<_> = addresses.iter().collect();
        assert_eq!(different.len(), 10);
        for address in addresses {
            assert!((PORT_MIN..=PORT_MAX).contains(&address.port()));
            TcpListener::bind(address).unwrap();
        }
    }
}
