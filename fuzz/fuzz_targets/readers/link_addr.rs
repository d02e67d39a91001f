//! Addresses of several endpoints together, as address vectors of lnx get them from peers.
use ofi_provider::link_addr::{LinkAddr, LinkLen};

pub fn run(bytes: &[u8]) {
    // As fi_av_insert reads them: no more bytes than the address is known to have.
    let mut known = 0;
    let len = loop {
        match LinkAddr::len_of(&bytes[..known]) {
            Ok(LinkLen::Exactly(len)) => break Some(len),
            Ok(LinkLen::AtLeast(more)) => {
                assert!(more > known);
                if more > bytes.len() {
                    break None;
                }
                known = more;
            }
            Err(_) => break None,
        }
    };
    let Ok(addr) = LinkAddr::read(bytes) else { return };
    assert_eq!(Some(addr.as_bytes().len()), len);
    assert_eq!(LinkAddr::read(addr.as_bytes()).as_ref(), Ok(&addr));
    let parts: Vec<_> =
        addr.parts().map(|(fabric, part)| (fabric.to_vec(), part.to_vec())).collect();
    let made = LinkAddr::new(addr.host(), addr.mark(), &parts).unwrap();
    assert_eq!((made.host(), made.mark()), (addr.host(), addr.mark()));
    assert!(made.parts().eq(addr.parts()));
    assert!(addr.to_string().starts_with("fi_lnx://"));
}
