//! Admission of peers to connect (FI_TCP_PEERS, fi_tcp(7)).
use crate::plug_in::{provider, variable};
use ipnet::IpNet;
use ofi_provider::error::{Error, Result};
use std::net::IpAddr;

/// Peers permitted to connect.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct PeerAcl {
    /// The networks calls are taken from; if empty, from everywhere.
    networks: Vec<IpNet>,
    /// Only peers in the endpoint's address vector may connect (`av`).
    only_known: bool,
    /// Invalid part of the user's text: then no peer may connect, and no domain is opened.
    wrong: Option<String>,
}

impl PeerAcl {
    /// Parses FI_TCP_PEERS: `any`, or a comma-separated list of `av`, addresses and networks.
    pub(crate) fn parse(text: &str) -> Self {
        let mut admission = Self::default();
        let words: Vec<_> =
            text.split(',').map(str::trim).filter(|word| !word.is_empty()).collect();
        for word in &words {
            match *word {
                "any" if words.len() == 1 => {}
                "av" => admission.only_known = true,
                word => match word.parse().or_else(|_| word.parse::<IpAddr>().map(IpNet::from)) {
                    Ok(network) => admission.networks.push(network),
                    Err(_) => admission.wrong = Some(word.to_owned()),
                },
            }
        }
        if words.is_empty() {
            admission.wrong = Some(text.to_owned());
        }
        admission
    }

    /// Checks the user's text. Fails with -FI_EINVAL and a log line if it is invalid: it is meant
    /// to reject peers, and the peers are not known.
    pub(crate) fn check(&self) -> Result {
        let Some(word) = &self.wrong else { return Ok(()) };
        ofi_provider::log!(
            provider(),
            WARN,
            DOMAIN,
            "{}: \"{word}\" is neither \"any\", \"av\", an address nor a network \
             (192.0.2.0/24); no domain is opened",
            variable(c"peers")
        );
        Err(Error::INVAL)
    }

    /// Returns true if a connection from this address is accepted; otherwise logs a line.
    pub(crate) fn admits(&self, source: IpAddr) -> bool {
        let source = source.to_canonical();
        let open = self.networks.is_empty() || self.networks.iter().any(|n| n.contains(&source));
        let admitted = open && self.wrong.is_none();
        if !admitted {
            ofi_provider::log_sparsely!(
                provider(),
                WARN,
                EP_CTRL,
                "refusing the connection of {source}: it is in none of the networks of {}",
                variable(c"peers")
            );
        }
        admitted
    }

    /// Returns true if reliable datagram endpoints accept only peers in their address vector.
    pub(crate) fn only_known(&self) -> bool {
        self.only_known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admits(text: &str, source: &str) -> bool {
        PeerAcl::parse(text).admits(source.parse().unwrap())
    }

    #[test]
    fn every_address_is_admitted_unless_networks_are_given() {
        assert_eq!(PeerAcl::parse("any"), PeerAcl::default());
        assert!(admits("any", "203.0.113.9") && admits("av", "203.0.113.9"));
        assert!(!admits("192.0.2.0/24", "203.0.113.9"));
        assert!(admits("192.0.2.0/24, 203.0.113.9", "203.0.113.9"));
        assert!(admits("192.0.2.0/24", "::ffff:192.0.2.7"), "IPv4 through an IPv6 socket");
        assert!(admits("2001:db8::/32", "2001:db8::1") && !admits("2001:db8::/32", "2001:db9::1"));
    }

    #[test]
    fn av_setting_admits_only_known_peers() {
        assert!(PeerAcl::parse("av").only_known());
        assert!(PeerAcl::parse("av,10.0.0.0/8").only_known());
        assert!(!PeerAcl::parse("10.0.0.0/8").only_known());
    }

    #[test]
    fn malformed_setting_admits_no_address() {
        for text in ["", ",", "all", "any,av", "10.0.0.0/33", "10.0.0", "av,localhost"] {
            let admission = PeerAcl::parse(text);
            assert_eq!(admission.check(), Err(Error::INVAL), "{text}");
            assert!(!admission.admits([127, 0, 0, 1].into()), "{text}");
        }
    }
}
