//! Core providers found with fi_getinfo(3).
use super::call::code;
use crate::abi::{self, fi_info};
use crate::error::{Error, Result};
use crate::info::{
    ApiLevel, CORE_PROV_ONLY, GETINFO_HIDDEN, GETINFO_INTERNAL, InfoBuf, InfoChain, InfoQuery,
    InfoRef, dup_raw,
};
use crate::stack::on_own_stack;
use core::ffi::CStr;
use std::ptr;

/// Returns the core providers matching the query (fi_getinfo(3)). Fails with -FI_ENODATA if there
/// is none.
pub fn getinfo(query: &InfoQuery<'_>) -> Result<InfoChain> {
    find(query, CORE_PROV_ONLY)
}

/// Returns the providers matching the query: core and utility providers, including ones hidden from
/// applications by the user (FI_PROVIDER).
pub fn getinfo_any(query: &InfoQuery<'_>) -> Result<InfoChain> {
    find(query, GETINFO_HIDDEN)
}

/// Calls fi_getinfo(3) with these flags in addition to those of the query.
fn find(query: &InfoQuery<'_>, more: u64) -> Result<InfoChain> {
    let InfoQuery { version, node, service, flags, hints } = *query;
    let text = |text: Option<&CStr>| text.map_or(ptr::null(), CStr::as_ptr);
    let flags = flags | GETINFO_INTERNAL | more;
    let mut list: *mut fi_info = ptr::null_mut();
    // SAFETY: the strings and hints live for the call. We are linked to the
    // function as of FABRIC_1.3, which reads the fields of that generation only,
    // and whose answer has no others.
    unsafe {
        let (node, service) = (text(node), text(service));
        let hints = hints.map_or(ptr::null(), InfoRef::as_ptr);
        let list_at = &mut list;
        code(on_own_stack(|| abi::fi_getinfo(version, node, service, flags, hints, list_at)))?;
        let mut chain = InfoChain::new();
        let mut result = Ok(());
        let mut next = list;
        while let Some(info) = next.as_ref() {
            match InfoBuf::from_level(info, ApiLevel::V1_3) {
                Ok(copy) => chain.push(copy),
                Err(error) => result = Err(error),
            }
            next = info.next;
        }
        abi::fi_freeinfo(list);
        result.map(|()| chain)
    }
}

/// Returns the core provider's info with the domain of a utility provider's info: the first one if that
/// has no domain name. Queries of providers are not filtered by names, and a datagram device may have no
/// address before its endpoint is enabled.
pub fn with_domain_of(cores: InfoChain, info: InfoRef<'_>) -> Option<InfoBuf> {
    let wanted = info.domain_name();
    cores.into_iter().find(|core| wanted.is_none() || core.as_ref().domain_name() == wanted)
}

/// Returns a copy of an info created by a core provider, such as the one of a connection request.
///
/// # Safety
/// `info` is null or belongs to the library that loaded this plug-in.
pub(super) unsafe fn copy_info(info: *const fi_info) -> Result<InfoBuf> {
    if info.is_null() {
        return Err(Error::INVAL);
    }
    // SAFETY: by this function's contract; no library makes infos older than its
    // release says.
    unsafe {
        let copy = dup_raw(info, ApiLevel::of_release(abi::fi_version()).min(ApiLevel::V1_3));
        InfoBuf::from_raw(copy?.as_ptr())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_is_found_by_the_domain_of_a_utility_provider() {
        let named = |name: Option<&CStr>| {
            let mut info = InfoBuf::new().unwrap();
            if let Some(name) = name {
                info.set_domain_name(name).unwrap();
            }
            info
        };
        let found = |wanted: Option<&CStr>| {
            let mut cores = InfoChain::new();
            cores.push(named(Some(c"rxe0-dgram")));
            cores.push(named(Some(c"rxe1-dgram")));
            let core = with_domain_of(cores, named(wanted).as_ref());
            core.map(|core| core.as_ref().domain_name().unwrap().to_owned())
        };
        assert_eq!(found(Some(c"rxe1-dgram")).as_deref(), Some(c"rxe1-dgram"));
        assert_eq!(found(None).as_deref(), Some(c"rxe0-dgram"));
        assert_eq!(found(Some(c"rxe2-dgram")), None);
    }
}
