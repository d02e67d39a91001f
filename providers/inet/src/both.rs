//! Endpoints of all types in one fabric: over TCP sockets, and FI_EP_DGRAM over UDP sockets.
use crate::plug_in::InetPlugIn;
use crate::tcp::{self, InetLinks};
use crate::udp::domain::UdpFabric;
use core::ffi::CStr;
use ofi_provider::abi::{fi_ep_type, fi_provider};
use ofi_provider::api::{Fabric, Getinfo, NewDomain, getinfo_entry, open_fabric};
use ofi_provider::error::{Error, Result};
use ofi_provider::info::{InfoChain, InfoQuery, InfoRef};
use ofi_stream::objects::{StreamFabric, StreamPep};

/// A fabric whose domains are for endpoints of the type that their info names.
#[derive(Debug)]
struct InetFabric {
    datagrams: UdpFabric,
    connections: StreamFabric<InetLinks>,
}

impl Getinfo for InetFabric {
    /// Datagrams come first.
    fn getinfo(query: &InfoQuery<'_>) -> Result<InfoChain> {
        let answers = [UdpFabric::getinfo(query), StreamFabric::<InetLinks>::getinfo(query)];
        let mut chain = InfoChain::new();
        let mut refused = None;
        for answer in answers {
            match answer {
                Ok(infos) => chain.append(infos),
                Err(Error::NOMEM) => return Err(Error::NOMEM),
                Err(error) => refused = Some(error),
            }
        }
        match refused {
            Some(error) if chain.is_empty() => Err(error),
            _ => Ok(chain),
        }
    }
}

impl Fabric for InetFabric {
    type PassiveEp = StreamPep<InetLinks>;

    fn open(name: &CStr) -> Result<Self> {
        Ok(Self { datagrams: UdpFabric::open(name)?, connections: StreamFabric::open(name)? })
    }

    fn domain(&self, info: InfoRef<'_>, api_version: u32) -> Result<NewDomain> {
        match info.ep_type() == fi_ep_type::FI_EP_DGRAM {
            true => self.datagrams.domain(info, api_version),
            false => self.connections.domain(info, api_version),
        }
    }

    fn passive_ep(&self, info: InfoRef<'_>, api_version: u32) -> Result<Self::PassiveEp> {
        self.connections.passive_ep(info, api_version)
    }
}

/// Hands the plug-in to the core as a provider of endpoints of all types, in `fi_prov_ini`.
pub fn hand_out(plug_in: &'static InetPlugIn) -> *mut fi_provider {
    plug_in.is_this();
    let (getinfo, fabric) = (getinfo_entry::<InetFabric>, open_fabric::<InetFabric>);
    let provider = plug_in.provider.hand_out_with(None, getinfo, fabric);
    tcp::declare();
    provider
}
