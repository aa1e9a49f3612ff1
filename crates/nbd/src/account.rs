//! Accounts: whom a client's use of connections and memory counts to.

use std::fmt;
use std::net::IpAddr;

use forebay_rt::net::Stream;
use forebay_rt::sys::effective_uid;

/// Whom the use of shared resources counts to. Clients of one account share what it may have.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Account {
    /// The user that the server runs as, and root, on this machine.
    Owner,
    /// Another user of this machine.
    User(u32),
    /// Another machine. All addresses of an IPv6 network of 64 bits count as one.
    Host(IpAddr),
    /// Streams without a peer that could be told from others.
    Unknown,
}

impl Account {
    /// The account of the peer of an accepted stream.
    #[must_use]
    pub fn of(stream: &Stream) -> Self {
        match (stream.peer_uid(), stream.peer_ip()) {
            (Some(uid), _) if uid == 0 || uid == effective_uid() => Self::Owner,
            (Some(uid), _) => Self::User(uid),
            (None, Some(address)) => Self::of_host(address),
            (None, None) => Self::Unknown,
        }
    }

    fn of_host(address: IpAddr) -> Self {
        match address {
            IpAddr::V6(address) => {
                let network = u128::from(address) & !u128::from(u64::MAX);
                Self::Host(IpAddr::V6(network.into()))
            }
            IpAddr::V4(_) => Self::Host(address),
        }
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Owner => f.write_str("the owner"),
            Self::User(uid) => write!(f, "user {uid}"),
            Self::Host(IpAddr::V6(network)) => write!(f, "{network}/64"),
            Self::Host(address) => write!(f, "{address}"),
            Self::Unknown => f.write_str("an unknown client"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_an_ipv6_network_of_64_bits_are_one_account() {
        let of = |address: &str| Account::of_host(address.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:0:0:2"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("2001:db8::7").to_string(), "2001:db8::/64");
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    }
}
