//! Ports for nodes that must know each other's before any of them listens.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};

use rand::Rng;

use super::HarnessError;

/// Below the range from which the system takes ports for outgoing connections (32768 on Linux): a port that is
/// claimed here is not taken by one of those before its node listens.
const PORT_MIN: u16 = 20_000;
const PORT_MAX: u16 = 32_000;
/// Most ports of a machine are free.
const TRIES_PER_PORT: usize = 100;

/// A TCP port of the loopback address that no other harness on this machine chooses as long as this lives.
///
/// A node is told its ports before it listens on them, and frees them while it is down. So what claims a port is
/// something else that only one can have: the UDP port of the same number.
#[derive(Debug)]
pub struct ClaimedPort {
    address: SocketAddr,
    _claim: UdpSocket,
}

impl ClaimedPort {
    /// Claims so many different ports on which nobody listens.
    ///
    /// # Errors
    /// [`HarnessError`] where there are not enough.
    pub fn claim(wanted: usize) -> Result<Vec<Self>, HarnessError> {
        let mut claimed = Vec::with_capacity(wanted);
        let mut last_error = io::Error::from(io::ErrorKind::AddrInUse);
        for _ in 0..wanted.saturating_mul(TRIES_PER_PORT) {
            if claimed.len() == wanted {
                break;
            }
            match Self::try_claim(rand::rng().random_range(PORT_MIN..=PORT_MAX)) {
                Ok(port) => claimed.push(port),
                Err(error) => last_error = error,
            }
        }
        if claimed.len() < wanted {
            return Err(HarnessError::Ports {
                wanted,
                from: PORT_MIN,
                to: PORT_MAX,
                source: last_error,
            });
        }
        Ok(claimed)
    }

    /// Claims the two of one node.
    ///
    /// # Errors
    /// [`HarnessError`] where there are not enough.
    pub(super) fn claim_two() -> Result<(Self, Self), HarnessError> {
        let mut claimed = Self::claim(2)?.into_iter();
        #[expect(clippy::expect_used, reason = "fewer than asked for are an error")]
        let mut next = || claimed.next().expect("two ports");
        Ok((next(), next()))
    }

    fn try_claim(port: u16) -> io::Result<Self> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let claim = UdpSocket::bind(address)?;
        // Something that is no node of a harness may listen there.
        TcpListener::bind(address)?;
        Ok(Self {
            address,
            _claim: claim,
        })
    }

    /// Where a node can listen.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn claimed_ports_differ_and_can_be_listened_on() {
        let claimed = ClaimedPort::claim(10).unwrap();

        let addresses: BTreeSet<_> = claimed.iter().map(ClaimedPort::address).collect();
        assert_eq!(addresses.len(), 10);
        for address in addresses {
            assert!((PORT_MIN..=PORT_MAX).contains(&address.port()));
            TcpListener::bind(address).unwrap();
        }
    }

    #[test]
    fn a_port_is_not_claimed_twice_although_nobody_listens_on_it() {
        let [claimed] = <[_; 1]>::try_from(ClaimedPort::claim(1).unwrap()).unwrap();
        let port = claimed.address().port();

        let refused = ClaimedPort::try_claim(port).unwrap_err();

        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
        drop(claimed);
        ClaimedPort::try_claim(port).unwrap();
    }

    #[test]
    fn a_port_on_which_somebody_listens_is_not_claimed() {
        let [claimed] = <[_; 1]>::try_from(ClaimedPort::claim(1).unwrap()).unwrap();
        let address = claimed.address();
        drop(claimed);
        let _listener = TcpListener::bind(address).unwrap();

        let refused = ClaimedPort::try_claim(address.port()).unwrap_err();

        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
    }
}
