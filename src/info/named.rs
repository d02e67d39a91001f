//! fi_getinfo for providers with names as addresses (FI_ADDR_STR), reaching endpoints of this host.
use crate::abi::{FI_ADDR_STR, FI_FORMAT_UNSPEC, FI_SOURCE};
use crate::error::{Error, Result};
use crate::info::check::{ProviderOffer, alter, check, fit_comm_caps};
use crate::info::owned::{InfoChain, InfoRef};
use crate::info::query::InfoQuery;
use crate::info::tostr;
use core::ffi::CStr;

/// Properties of a provider with names.
pub struct NameProvider<'a> {
    /// Name of the provider, also the name of its one fabric and domain.
    pub name: &'a CStr,
    /// Offers of the provider for each kind of endpoint, in the order of the answer.
    pub offers: &'a [ProviderOffer],
    /// Callback with a line for every reason for a missing info.
    pub report: &'a dyn Fn(&str),
}

/// Returns the infos of a provider with names (fi_getinfo(3)), one for each offer, without names
/// and version of the provider, added by the core. A node is an endpoint's name. A service behind
/// it makes another name, `node:service`, except `0`: it leaves the name open, as a port. Fails
/// with `-FI_ENODATA` if nothing matches, after calls of `report` with the reasons.
pub fn name_getinfo(prov: &NameProvider<'_>, query: &InfoQuery<'_>) -> Result<InfoChain> {
    let InfoQuery { version, node, service, flags, hints } = *query;
    let format = hints.map_or(FI_FORMAT_UNSPEC as u32, InfoRef::addr_format);
    if ![FI_FORMAT_UNSPEC, FI_ADDR_STR].iter().any(|taken| *taken as u32 == format) {
        (prov.report)(&format!(
            "refused: addr_format: wanted {}, have {}",
            tostr::addr_format(format),
            tostr::addr_format(FI_ADDR_STR as u32)
        ));
        return Err(Error::NODATA);
    }
    let of_hints = |addr: Option<&[u8]>| addr.map(<[u8]>::to_vec);
    let mut src = of_hints(hints.and_then(InfoRef::src_addr));
    let mut dest = of_hints(hints.and_then(InfoRef::dest_addr));
    if flags & FI_SOURCE != 0 && node.is_none() && service.is_none() {
        (prov.report)("refused: FI_SOURCE needs a node or a service");
        return Err(Error::INVAL);
    }
    let parts = [node, service.filter(|service| *service != c"0")];
    let parts = parts.into_iter().flatten().map(CStr::to_bytes).collect::<Vec<_>>();
    if !parts.is_empty() {
        let end = if flags & FI_SOURCE != 0 { &mut src } else { &mut dest };
        *end = Some([&parts.join(&b':')[..], b"\0"].concat());
    }
    let mut chain = InfoChain::new();
    for offer in prov.offers {
        let kind = tostr::ep_type(offer.most.ep().r#type.raw());
        let mismatches = hints.map_or(Vec::new(), |hints| check(version, offer, hints));
        for mismatch in &mismatches {
            (prov.report)(&format!("{kind} refused: {mismatch}"));
        }
        if !mismatches.is_empty() {
            continue;
        }
        let mut info = alter(version, offer, hints)?;
        if let Err(mismatch) = fit_comm_caps(&mut info, true, false, hints) {
            (prov.report)(&format!("{kind} refused: {mismatch}"));
            continue;
        }
        info.set_domain_name(prov.name)?;
        info.set_fabric_name(prov.name)?;
        info.set_addr_format(FI_ADDR_STR as u32);
        info.set_src_addr(src.as_deref())?;
        info.set_dest_addr(dest.as_deref())?;
        if let Some(hints) = hints {
            info.set_handle(hints.handle());
        }
        chain.push(info);
    }
    if chain.is_empty() { Err(Error::NODATA) } else { Ok(chain) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{FI_LOCAL_COMM, FI_MSG, FI_REMOTE_COMM, FI_SOCKADDR_IN, fi_ep_type};
    use crate::info::{API_VERSION, InfoBuf};
    use core::cell::RefCell;

    type Ends = [Option<Vec<u8>>; 2];

    fn ask(query: &InfoQuery<'_>) -> core::result::Result<Ends, Vec<String>> {
        let mut most = InfoBuf::new().unwrap();
        most.set_caps(FI_MSG | FI_LOCAL_COMM | FI_REMOTE_COMM);
        most.edit_ep(|ep| ep.r#type = fi_ep_type::FI_EP_RDM.into());
        let reported = RefCell::new(Vec::new());
        let offers = [ProviderOffer { most, tx_size: 256, rx_size: 256, costly_order: 0 }];
        let report = |line: &str| reported.borrow_mut().push(line.to_owned());
        let prov = NameProvider { name: c"named", offers: &offers, report: &report };
        let Ok(chain) = name_getinfo(&prov, query) else { return Err(reported.into_inner()) };
        let info = chain.iter().next().unwrap();
        assert_eq!((info.domain_name(), info.fabric_name()), (Some(c"named"), Some(c"named")));
        assert_eq!((info.addr_format(), info.caps() & FI_REMOTE_COMM), (FI_ADDR_STR as u32, 0));
        Ok([info.src_addr(), info.dest_addr()].map(|addr| addr.map(<[u8]>::to_vec)))
    }

    #[test]
    fn nodes_and_hints_name_the_ends() {
        let mut hints = InfoBuf::new().unwrap();
        let name = |text: &[u8]| Some(text.to_vec());
        let simple = InfoQuery::for_hints(API_VERSION, &hints);
        assert_eq!(ask(&simple), Ok([None, None]));
        let to = InfoQuery { node: Some(c"one"), ..simple };
        assert_eq!(ask(&to), Ok([None, name(b"one\0")]));
        let at = InfoQuery { service: Some(c"2"), flags: FI_SOURCE, ..to };
        assert_eq!(ask(&at), Ok([name(b"one:2\0"), None]));
        let anywhere = InfoQuery { node: None, service: Some(c"0"), ..at };
        assert_eq!(ask(&anywhere), Ok([None, None]));
        hints.set_src_addr(Some(b"three\0")).unwrap();
        let both = InfoQuery { node: Some(c"one"), ..InfoQuery::for_hints(API_VERSION, &hints) };
        assert_eq!(ask(&both), Ok([name(b"three\0"), name(b"one\0")]));
    }

    #[test]
    fn requests_unsuitable_for_names_are_refused_with_a_reason() {
        let mut hints = InfoBuf::new().unwrap();
        let nowhere = InfoQuery::for_hints(API_VERSION, &hints);
        assert!(
            ask(&InfoQuery { flags: FI_SOURCE, ..nowhere }).unwrap_err()[0].contains("FI_SOURCE")
        );
        hints.set_caps(FI_MSG | FI_REMOTE_COMM);
        let reported = ask(&InfoQuery::for_hints(API_VERSION, &hints)).unwrap_err();
        assert!(reported[0].contains("FI_REMOTE_COMM"), "{reported:?}");
        hints.set_caps(0);
        hints.set_addr_format(FI_SOCKADDR_IN as u32);
        let reported = ask(&InfoQuery::for_hints(API_VERSION, &hints)).unwrap_err();
        assert!(reported[0].contains("FI_ADDR_STR"), "{reported:?}");
    }
}
