//! Address strings, and node and service strings resembling them.
use ofi::abi::FI_NUMERICHOST;
use ofi::info::ib::IbAddr;
use ofi::info::{addr, resolve};
use std::ffi::CString;

pub fn run(bytes: &[u8]) {
    // As far as it is a text.
    let text = bytes.utf8_chunks().next().map_or("", |chunk| chunk.valid());
    if let Some(addr) = addr::from_string(text) {
        let written = addr::to_string(&addr);
        let again = addr::from_string(&written).unwrap();
        // The text form has no scope, which "%2" at the end of a host gives.
        assert_eq!((again.ip(), again.port()), (addr.ip(), addr.port()), "{text:?}: {written}");
        assert_eq!(addr::to_string(&again), written);
    }
    if let Some(addr) = IbAddr::from_text(text) {
        assert_eq!(IbAddr::from_text(&addr.to_string()), Some(addr), "{text:?}: {addr}");
    }
    // The rest is a service. It is numeric, to avoid a name lookup.
    let (node, service) = text.split_once(' ').unwrap_or((text, "0"));
    if let (true, Ok(node), Ok(service)) =
        (node.contains("://"), CString::new(node), CString::new(service))
    {
        let _ = resolve(Some(&node), Some(&service), FI_NUMERICHOST, 0);
    }
}
