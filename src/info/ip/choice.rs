//! Choice of interfaces by the user: `FI_TCP_IFACE` and the like.
use super::list::InterfaceAddr;
use std::net::IpAddr;

/// Interfaces chosen by the user: names, beginnings of names and networks. By default all.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct InterfaceChoice {
    /// Name of the environment variable, for messages.
    variable: String,
    /// Words of the list, in its order.
    words: Vec<Word>,
    /// Upstream's order of interfaces applies.
    original: bool,
    /// First malformed word.
    malformed: Option<String>,
}

/// Word of a list.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Word {
    text: String,
    pattern: Pattern,
    /// Excludes its interfaces.
    excludes: bool,
}

/// Pattern for addresses of interfaces.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Pattern {
    Name(String),
    Prefix(String),
    Network(Network),
}

/// Network of addresses with a common prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Network {
    ip: IpAddr,
    prefix: u32,
}

impl Network {
    /// Parses `192.0.2.0/24`, `2001:db8::/32`, or an address, standing for itself alone.
    fn parse(text: &str) -> Option<Self> {
        let (ip, prefix) = match text.split_once('/') {
            Some((ip, prefix)) => (ip, Some(prefix)),
            None => (text, None),
        };
        let ip: IpAddr = ip.parse().ok()?;
        let max = if ip.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            // A sign is not part of a number.
            Some(text) if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse().ok()?,
            Some(_) => return None,
            None => max,
        };
        (prefix <= max).then_some(Self { ip, prefix })
    }

    fn contains(&self, ip: IpAddr) -> bool {
        let bits = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => (u128::from(u32::from(ip)) << 96, true),
            IpAddr::V6(ip) => (u128::from(ip), false),
        };
        let ((own, own_family), (other, family)) = (bits(self.ip), bits(ip));
        let differing = (own ^ other).leading_zeros();
        own_family == family && differing >= self.prefix
    }
}

impl Pattern {
    /// Parses a word. Fails if it is neither a name of an interface, a beginning of one, nor a
    /// network.
    fn parse(text: &str) -> Option<Self> {
        // Maximum bytes of a name in Linux, with the label of an address.
        const MAX_NAME: usize = libc::IFNAMSIZ - 1;
        if let Some(network) = Network::parse(text) {
            return Some(Self::Network(network));
        }
        let name = text.strip_suffix('*').unwrap_or(text);
        let is_name = |c: char| !c.is_whitespace() && !c.is_control() && !"/*^".contains(c);
        if text.is_empty() || name.len() > MAX_NAME || !name.chars().all(is_name) {
            return None;
        }
        let pattern = if name == text { Self::Name } else { Self::Prefix };
        Some(pattern(name.to_owned()))
    }

    fn matches(&self, addr: &InterfaceAddr) -> bool {
        match self {
            Self::Name(name) => *name == addr.name || *name == addr.interface(),
            Self::Prefix(prefix) => addr.name.starts_with(prefix.as_str()),
            Self::Network(network) => network.contains(addr.addr.ip()),
        }
    }
}

impl InterfaceChoice {
    /// Parses the value of an environment variable. A malformed word is an error of
    /// [`check`](Self::check).
    ///
    /// The value is a list of words with commas: a name, a beginning of names (`eth*`), or a
    /// network (`192.0.2.0/24`). `^` excludes the interfaces of its word and of all words after it.
    /// The word `original` restores the order of upstream libfabric. A blank value is no choice.
    pub fn parse(variable: String, text: &str) -> Self {
        let mut choice = Self { variable, ..Self::default() };
        let mut excludes = false;
        for text in text.split(',').map(str::trim).filter(|text| !text.is_empty()) {
            let word = match text.strip_prefix('^') {
                Some(word) => {
                    excludes = true;
                    word.trim_start()
                }
                None => text,
            };
            if word == ORIGINAL && word == text {
                choice.original = true;
                continue;
            }
            match Pattern::parse(word) {
                Some(pattern) => {
                    choice.words.push(Word { text: word.to_owned(), pattern, excludes });
                }
                None if choice.malformed.is_none() => choice.malformed = Some(text.to_owned()),
                None => {}
            }
        }
        choice
    }

    /// Fails with a message if a word is malformed.
    pub(super) fn check(&self) -> Result<(), String> {
        let Some(word) = &self.malformed else { return Ok(()) };
        Err(format!(
            "{}: \"{word}\" is neither the name of an interface, a beginning of names (eth*), nor a \
             network (192.0.2.0/24, 2001:db8::/32); no interface is used",
            self.variable
        ))
    }

    /// Returns true if upstream's order of interfaces applies.
    pub(super) fn is_original(&self) -> bool {
        self.original
    }

    /// Returns the name of the environment variable.
    pub(super) fn variable(&self) -> &str {
        &self.variable
    }

    /// Returns the position of the first word including an address, the same for all addresses
    /// if no word includes any. Returns `None` if the address is not chosen.
    pub(super) fn position(&self, addr: &InterfaceAddr) -> Option<usize> {
        let mut matches = self.words.iter().filter(|word| word.pattern.matches(addr));
        if matches.clone().any(|word| word.excludes) {
            return None;
        }
        if !self.includes() {
            return addr.is_usual().then_some(0);
        }
        let first = matches.next()?;
        self.words.iter().position(|word| core::ptr::eq(word, first))
    }

    /// Returns true if the user named interfaces to use.
    pub(super) fn includes(&self) -> bool {
        self.words.iter().any(|word| !word.excludes)
    }

    /// Returns the words matching none of these addresses.
    pub(super) fn unmatched<'a>(
        &'a self,
        addrs: &'a [InterfaceAddr],
    ) -> impl Iterator<Item = &'a str> {
        let matched = |word: &&Word| !addrs.iter().any(|addr| word.pattern.matches(addr));
        self.words.iter().filter(|word| !word.excludes).filter(matched).map(|word| &*word.text)
    }
}

/// Word for the order of upstream libfabric.
const ORIGINAL: &str = "original";

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(name: &str, ip: &str) -> InterfaceAddr {
        InterfaceAddr::for_test(name, ip)
    }

    fn host() -> Vec<InterfaceAddr> {
        let mut tunnel = addr("tun0", "100.64.0.1");
        tunnel.is_point_to_point = true;
        vec![
            addr("lo", "127.0.0.1"),
            addr("lo", "::1"),
            addr("eth0", "10.1.0.5"),
            addr("eth0", "2001:db8::5"),
            addr("eth1", "10.2.0.5"),
            addr("eth1:1", "10.3.0.5"),
            addr("docker0", "172.17.0.1"),
            tunnel,
        ]
    }

    /// Returns the chosen addresses by position.
    fn chosen(text: &str) -> Vec<String> {
        let (choice, host) = (InterfaceChoice::parse("FI_TCP_IFACE".into(), text), host());
        assert_eq!(choice.check(), Ok(()), "{text}");
        let mut chosen: Vec<_> =
            host.iter().filter_map(|addr| Some((choice.position(addr)?, addr))).collect();
        chosen.sort_by_key(|(position, _)| *position);
        chosen.iter().map(|(_, addr)| addr.addr.ip().to_string()).collect()
    }

    #[test]
    fn names_prefixes_and_networks_choose_interfaces_in_their_order() {
        assert_eq!(chosen("eth0"), ["10.1.0.5", "2001:db8::5"]);
        assert_eq!(chosen("eth1, eth0"), ["10.2.0.5", "10.3.0.5", "10.1.0.5", "2001:db8::5"]);
        assert_eq!(chosen("eth1:1"), ["10.3.0.5"]);
        assert_eq!(chosen("eth*").len(), 4);
        assert_eq!(chosen("*").len(), host().len());
        assert_eq!(chosen("10.2.0.0/15"), ["10.2.0.5", "10.3.0.5"]);
        assert_eq!(chosen("2001:db8::/32,10.1.0.5"), ["2001:db8::5", "10.1.0.5"]);
        assert_eq!(chosen("0.0.0.0/0,^127.0.0.0/8,^172.16.0.0/12").len(), 4);
        assert_eq!(chosen("eth0,docker0"), ["10.1.0.5", "2001:db8::5", "172.17.0.1"]);
    }

    #[test]
    fn caret_excludes_its_word_and_those_after_it() {
        // Without named interfaces the usual ones remain: not the tunnel.
        let rest = chosen("^docker0,eth1");
        assert_eq!(rest, ["127.0.0.1", "::1", "10.1.0.5", "2001:db8::5"]);
        assert_eq!(chosen("^docker0,^eth1"), rest);
        assert_eq!(chosen("eth*,^eth1"), ["10.1.0.5", "2001:db8::5"]);
        assert_eq!(chosen("eth0,^::/0"), ["10.1.0.5"]);
        assert!(chosen("^*").is_empty() && chosen("eth0,^eth0").is_empty());
    }

    #[test]
    fn blank_value_and_the_word_original_choose_the_usual_interfaces() {
        for text in ["", " , ", "original", "original,^eth9"] {
            assert_eq!(chosen(text).len(), host().len() - 1, "{text}");
        }
        let choice = |text| InterfaceChoice::parse(String::new(), text);
        assert!(choice("original").is_original() && choice("eth0,original").is_original());
        assert!(!choice("eth0").is_original() && !choice("^original").is_original());
    }

    #[test]
    fn malformed_words_are_named_with_their_variable() {
        for text in [
            "10.0.0.0/33",
            "10.0.0.0/",
            "10.0.0/8",
            "2001:db8::/129",
            "1.2.3.4/+8",
            "^",
            "e*0",
            "a b",
            "^^eth0",
            "eth0/24",
            "a-name-of-20-letters",
        ] {
            let choice = InterfaceChoice::parse("FI_UDP_IFACE".into(), &format!("eth0,{text},e*1"));
            let message = choice.check().unwrap_err();
            assert!(
                message.starts_with(&format!("FI_UDP_IFACE: \"{text}\" is neither")),
                "{message}"
            );
        }
    }

    #[test]
    fn words_without_an_interface_are_reported() {
        let (choice, host) = (InterfaceChoice::parse("".into(), "eth9,eth0,192.0.2.0/24"), host());
        assert_eq!(choice.unmatched(&host).collect::<Vec<_>>(), ["eth9", "192.0.2.0/24"]);
    }
}
