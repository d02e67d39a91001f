//! Choice of the addresses of further sockets.
use std::net::{IpAddr, SocketAddr};

/// Returns the source and destination of each of `count` sockets: every local address in turn, the
/// one of the first socket last, each to the remote address with the longest common prefix.
pub(super) fn choose_routes(
    addrs: &[IpAddr],
    count: usize,
    first: IpAddr,
    remote: &[SocketAddr],
) -> Vec<(IpAddr, SocketAddr)> {
    let mut local = addrs.to_vec();
    match local.iter().position(|ip| *ip == first) {
        Some(at) => local.rotate_left(at + 1),
        None => local.push(first),
    }
    let mut routes = Vec::new();
    for index in 0..count {
        let from = local[index % local.len()];
        let common = |to: &SocketAddr| common_prefix(from, to.ip());
        let best = remote.iter().map(common).max().unwrap_or(None);
        let nearest: Vec<_> =
            remote.iter().filter(|to| best.is_some() && common(to) == best).collect();
        if let Some(to) = nearest.get(index / local.len() % nearest.len().max(1)) {
            routes.push((from, **to));
        }
    }
    routes
}

/// Returns the number of equal leading bits of two addresses of one family.
fn common_prefix(one: IpAddr, other: IpAddr) -> Option<u32> {
    match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => {
            Some((u32::from(one) ^ u32::from(other)).leading_zeros())
        }
        (IpAddr::V6(one), IpAddr::V6(other)) => {
            Some((u128::from(one) ^ u128::from(other)).leading_zeros())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_local_address_connects_to_its_nearest_remote_one() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let to = |text: &str| text.parse::<SocketAddr>().unwrap();
        let remote = [to("10.1.0.2:5"), to("10.2.0.2:6"), to("[fd00::2]:7")];
        let two = [ip("10.1.0.1"), ip("10.2.0.1")];
        let routes = choose_routes(&two, 1, ip("10.1.0.1"), &remote);
        assert_eq!(routes, [(ip("10.2.0.1"), remote[1])]);
        let routes = choose_routes(&two, 3, ip("10.1.0.1"), &remote);
        let expected = [("10.2.0.1", 1), ("10.1.0.1", 0), ("10.2.0.1", 1)];
        assert_eq!(routes, expected.map(|(from, at)| (ip(from), remote[at])));
        assert_eq!(choose_routes(&[], 2, ip("fd00::1"), &remote), [(ip("fd00::1"), remote[2]); 2]);
        assert_eq!(choose_routes(&[], 2, ip("10.9.9.9"), &[]), []);
    }
}
