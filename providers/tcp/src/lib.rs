//! The tcp provider: FI_EP_MSG and FI_EP_RDM endpoints over TCP sockets, implemented by `ofi_inet`.
#![cfg_attr(not(test), forbid(unsafe_code))]
pub mod provider;

use ofi_inet::InetPlugIn;
use ofi_provider::av::AvSharing;
use ofi_provider::param;
use provider::TCP;
use std::ffi::CString;

static PLUG_IN: InetPlugIn = InetPlugIn {
    provider: &TCP,
    offered: |_| {},
    scalable: false,
    after_reads: false,
    datagrams: false,
    sharing: AvSharing::Never,
    segments: ofi_provider::buf::IOV_LIMIT,
    region_segments: 1,
    note: None,
};

ofi_provider::plug_in!({
    let name = param::string(&TCP, c"prov_name", c"another name for this provider, for tests");
    let name = name.filter(|name| !name.is_empty()).and_then(|name| CString::new(name).ok());
    ofi_inet::tcp::provider_entry(&PLUG_IN, name)
});
