//! `struct sockaddr` bytes, as address vectors, infos and peers hand them in.
use ofi::info::addr;
use ofi::info::ib::IbAddr;

pub fn run(bytes: &[u8]) {
    if let Some(addr) = IbAddr::from_bytes(bytes) {
        assert_eq!(addr.to_bytes(), bytes[..IbAddr::LEN]);
        let text = IbAddr::from_text(&addr.to_string()).unwrap();
        assert_eq!((text.gid, text.pkey), (addr.gid, addr.pkey));
    }
    let Some(addr) = addr::from_sock(bytes) else { return };
    let sock = addr::to_sock(&addr);
    assert!(sock.as_bytes().len() <= bytes.len());
    assert_eq!(addr::from_sock(sock.as_bytes()), Some(addr));
    assert!(addr::format_takes(addr::format_of(&addr), &addr));
    let text = addr::from_string(&addr::to_string(&addr)).unwrap();
    assert_eq!((text.ip(), text.port()), (addr.ip(), addr.port()));
}
