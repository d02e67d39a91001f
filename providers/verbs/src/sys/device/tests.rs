//! Unit tests of `device`.
use super::*;

#[test]
fn kernels_with_copies_of_pinned_pages_on_fork_are_recognized() {
    for release in ["5.12.0", "5.15.0-91-generic", "6.1.0-43-amd64", "10.0"] {
        assert!(copies_on_fork(release), "{release}");
    }
    for release in ["4.18.0-553.el8.x86_64", "5.11.22", "5", "", "none.5.12"] {
        assert!(!copies_on_fork(release), "{release}");
    }
    assert!(kernel().contains('.'));
}

/// Returns a table of GIDs of port 1: addresses with their type, by index.
fn gid_table(entries: &[(&str, bool)]) -> Vec<Gid> {
    let entry = |(index, (addr, is_roce_v2)): (usize, &(&str, bool))| {
        let addr: Ipv6Addr = addr.parse().unwrap();
        Gid { port: 1, index: index as u32, gid: addr.octets(), is_roce_v2: *is_roce_v2 }
    };
    entries.iter().enumerate().map(entry).collect()
}

#[test]
fn datagrams_use_the_first_ipv4_gid_of_roce_v2() {
    // The order of mlx5: version 1 and version 2 of each address.
    let mlx5 = [
        ("fe80::1", false),
        ("fe80::1", true),
        ("2001:db8::1", false),
        ("2001:db8::1", true),
        ("::ffff:192.0.2.1", false),
        ("::ffff:192.0.2.1", true),
        ("::ffff:198.51.100.1", true),
    ];
    assert_eq!(datagram_gid(&gid_table(&mlx5), 1), 5);
    assert_eq!(datagram_gid(&gid_table(&mlx5[..4]), 1), 3, "a global IPv6 address");
    assert_eq!(datagram_gid(&gid_table(&mlx5[..2]), 1), 0, "only a link-local address");
    assert_eq!(datagram_gid(&gid_table(&[("::ffff:192.0.2.1", false)]), 1), 0, "RoCE v1 only");
    assert_eq!(datagram_gid(&[], 1), 0);
    // The table has gaps, and entries of other ports.
    let mut table = gid_table(&mlx5);
    table[5].port = 2;
    table.swap(0, 6);
    assert_eq!((datagram_gid(&table, 1), datagram_gid(&table, 2)), (6, 5));
}
