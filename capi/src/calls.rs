//! The inline calls of C, as linkable functions.
//!
//! A language with bindings to symbols cannot use the inlines of the headers, so the library has
//! every one of them again under the same name, in the node `FABRIC_OFI_1.0`. The simple ones come
//! from the list used for the headers ([`ofi::calls!`]). The rest is written out below, with the
//! behaviour of its inline in `capi/headers`.
//!
//! Unlike an inline, a function checks before the jump: a null object returns `-FI_EINVAL`, a
//! missing call `-FI_ENOSYS` (no such table, a table too short for the slot, an empty slot).
//! Results without an error code are 0 or null instead.
//!
//! Nothing here can panic; a panic in a provider of this library has been caught at the provider's
//! own boundary.
use core::ffi::{c_char, c_int, c_void};
use core::mem::{MaybeUninit, offset_of};
use core::ptr::null_mut;
use libc::{iovec, ssize_t};
use ofi::abi::*;
use ofi::error::Error;

/// Return value of an impossible call.
trait Refuses {
    fn from_error(error: Error) -> Self;
}
impl Refuses for c_int {
    fn from_error(error: Error) -> Self {
        error.to_ret()
    }
}
impl Refuses for ssize_t {
    fn from_error(error: Error) -> Self {
        error.to_ret() as ssize_t
    }
}
impl Refuses for u64 {
    fn from_error(_: Error) -> Self {
        0
    }
}
impl Refuses for *const c_char {
    fn from_error(_: Error) -> Self {
        core::ptr::null()
    }
}
impl Refuses for () {
    fn from_error(_: Error) -> Self {}
}

/// The call in a slot of an object's table; leaves the function when there is no
/// such call.
macro_rules! slot {
    ($object:expr, $($table:ident).+, $slot:ident) => {{
        let object = $object;
        if object.is_null() {
            return Refuses::from_error(Error::INVAL);
        }
        // SAFETY: the caller of an API call passes a live object of its type.
        let table = unsafe { (*object).$($table).+ };
        if table.is_null() {
            return Refuses::from_error(Error::NOSYS);
        }
        // SAFETY: a provider's table lives as long as its object, and is as long
        // as its first field says.
        let size = unsafe { (*table).size };
        // SAFETY: only the address of the slot is taken.
        let slot = unsafe { &raw const (*table).$slot };
        if size < slot.addr() - table.addr() + size_of::<usize>() {
            return Refuses::from_error(Error::NOSYS);
        }
        // SAFETY: the slot lies within the table, by its size.
        match unsafe { slot.read() } {
            Some(call) => call,
            None => return Refuses::from_error(Error::NOSYS),
        }
    }};
}

/// Exports functions of this module, under their own names.
macro_rules! exported {
    ($($name:ident),+ $(,)?) => {
        versioned! { $($name { "@@FABRIC_OFI_1.0" => $name })+ }
    };
}

/// Defines and exports the calls of the list.
macro_rules! direct_calls {
    ($($header:ident {$(
        $name:ident($first:ident: $first_type:ty $(, $arg:ident: $type:ty)* $(,)?) $(-> $result:ty)?
            => $object:ident.$($table:ident).+, $slot:ident $(, $guarded:ident)?;
    )*})*) => {$($(
        unsafe extern "C-unwind" fn $name($first: $first_type $(, $arg: $type)*) $(-> $result)? {
            // A thread that is cancelled in the call leaves through here.
            type Call = unsafe extern "C-unwind" fn(*mut $object $(, $type)*) $(-> $result)?;
            let call = slot!($first.cast::<$object>(), $($table).+, $slot);
            // SAFETY: the slot's own contract is the call's, which the caller keeps;
            // a fid is the first field of every object; the two kinds of function are
            // called in the same way.
            #[allow(clippy::missing_transmute_annotations, reason = "some take the object as a fid")]
            unsafe {
                let call = core::mem::transmute::<_, Call>(call);
                call($first.cast() $(, $arg)*)
            }
        }
        exported!($name);
    )*)*};
}
ofi::calls!(direct_calls);

/// Defines and exports the written-out calls.
macro_rules! calls {
    ($(unsafe fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $result:ty)? $body:block)+) => {
        $(unsafe extern "C" fn $name($($arg: $type),*) $(-> $result)? $body)+
        exported!($($name),+);
    };
}

/// Calls `fi_control` with a command's structure, or null.
unsafe fn control<T>(fid: *mut fid, command: c_int, arg: *mut T) -> c_int {
    // SAFETY: the caller pairs the command with its structure.
    unsafe { fi_control(fid, command, arg.cast()) }
}

// fabric.h
calls! {
    unsafe fn fi_tc_dscp_set(dscp: u8) -> u32 {
        FI_TC_DSCP as u32 | u32::from(dscp)
    }
    unsafe fn fi_tc_dscp_get(tclass: u32) -> u8 {
        if tclass & FI_TC_DSCP as u32 != 0 { tclass as u8 } else { 0 }
    }
    unsafe fn fi_allocinfo() -> *mut fi_info {
        // SAFETY: null asks for an empty info.
        unsafe { fi_dupinfo(null_mut()) }
    }
    unsafe fn fi_alias(fid: *mut fid, alias_fid: *mut *mut fid, flags: u64) -> c_int {
        let mut alias = fi_alias { fid: alias_fid, flags };
        // SAFETY: FI_ALIAS takes a fi_alias; `fid` is the caller's promise.
        unsafe { control(fid, FI_ALIAS, &raw mut alias) }
    }
    unsafe fn fi_get_val(fid: *mut fid, name: c_int, val: *mut c_void) -> c_int {
        let mut var = fi_fid_var { name, val };
        // SAFETY: FI_GET_VAL takes a fi_fid_var; the rest is the caller's promise.
        unsafe { control(fid, FI_GET_VAL, &raw mut var) }
    }
    unsafe fn fi_set_val(fid: *mut fid, name: c_int, val: *mut c_void) -> c_int {
        let mut var = fi_fid_var { name, val };
        // SAFETY: FI_SET_VAL takes a fi_fid_var; the rest is the caller's promise.
        unsafe { control(fid, FI_SET_VAL, &raw mut var) }
    }
}

// fi_eq.h
calls! {
    unsafe fn fi_cq_readerr(cq: *mut fid_cq, buf: *mut fi_cq_err_entry, flags: u64) -> ssize_t {
        let readerr = slot!(cq, ops, readerr);
        if buf.is_null() {
            return Refuses::from_error(Error::INVAL);
        }
        // SAFETY: the entry is the caller's; a provider older than the field
        // leaves it as it is set here.
        unsafe { (*buf).src_addr = FI_ADDR_NOTAVAIL };
        // SAFETY: the call's contract is the slot's.
        unsafe { readerr(cq, buf, flags) }
    }
}

// fi_domain.h
calls! {
    unsafe fn fi_domain2(
        fabric: *mut fid_fabric,
        info: *mut fi_info,
        domain: *mut *mut fid_domain,
        flags: u64,
        context: *mut c_void,
    ) -> c_int {
        if flags == 0 {
            // SAFETY: without flags the two calls are one.
            return unsafe { fi_domain(fabric, info, domain, context) };
        }
        let domain2 = slot!(fabric, ops, domain2);
        // SAFETY: the call's contract is the slot's.
        unsafe { domain2(fabric, info, domain, flags, context) }
    }
    unsafe fn fi_hmem_ze_device(driver_index: c_int, device_index: c_int) -> c_int {
        driver_index.wrapping_shl(16) | device_index
    }
    unsafe fn fi_mr_desc(mr: *mut fid_mr) -> *mut c_void {
        // SAFETY: null or a live memory region, by the call's contract.
        unsafe { mr.as_ref() }.map_or(null_mut(), |mr| mr.mem_desc)
    }
    unsafe fn fi_mr_key(mr: *mut fid_mr) -> u64 {
        // SAFETY: null or a live memory region, by the call's contract.
        unsafe { mr.as_ref() }.map_or(FI_KEY_NOTAVAIL, |mr| mr.key)
    }
    unsafe fn fi_mr_raw_attr(
        mr: *mut fid_mr,
        base_addr: *mut u64,
        raw_key: *mut u8,
        key_size: *mut usize,
        flags: u64,
    ) -> c_int {
        let mut attr = fi_mr_raw_attr { flags, base_addr, raw_key, key_size };
        // SAFETY: FI_GET_RAW_MR takes a fi_mr_raw_attr; the rest is the caller's promise.
        unsafe { control(mr.cast(), FI_GET_RAW_MR, &raw mut attr) }
    }
    unsafe fn fi_mr_map_raw(
        domain: *mut fid_domain,
        base_addr: u64,
        raw_key: *mut u8,
        key_size: usize,
        key: *mut u64,
        flags: u64,
    ) -> c_int {
        let mut map = fi_mr_map_raw { flags, base_addr, raw_key, key_size, key };
        // SAFETY: FI_MAP_RAW_MR takes a fi_mr_map_raw; the rest is the caller's promise.
        unsafe { control(domain.cast(), FI_MAP_RAW_MR, &raw mut map) }
    }
    unsafe fn fi_mr_unmap_key(domain: *mut fid_domain, key: u64) -> c_int {
        let mut key = key;
        // SAFETY: FI_UNMAP_KEY takes a key.
        unsafe { control(domain.cast(), FI_UNMAP_KEY, &raw mut key) }
    }
    unsafe fn fi_mr_refresh(
        mr: *mut fid_mr,
        iov: *const iovec,
        count: usize,
        flags: u64,
    ) -> c_int {
        // SAFETY: all zeros is a fi_mr_modify: null pointers and numbers.
        let mut modify: fi_mr_modify = unsafe { MaybeUninit::zeroed().assume_init() };
        modify.flags = flags;
        modify.attr.mr_iov = iov;
        modify.attr.iov_count = count;
        // SAFETY: FI_REFRESH takes a fi_mr_modify; the rest is the caller's promise.
        unsafe { control(mr.cast(), FI_REFRESH, &raw mut modify) }
    }
    unsafe fn fi_mr_enable(mr: *mut fid_mr) -> c_int {
        // SAFETY: FI_ENABLE takes nothing.
        unsafe { fi_control(mr.cast(), FI_ENABLE, null_mut()) }
    }
    unsafe fn fi_mr_get_xpu_desc(
        mr: *mut fid_mr,
        buf: *mut c_void,
        len: *mut usize,
        flags: u64,
        ctx: *mut fid_xpu_ctx,
    ) -> c_int {
        let mut desc = fi_mr_xpu_desc { buf, len, flags, ctx };
        // SAFETY: FI_GET_MR_XPU_DESC takes a fi_mr_xpu_desc; the rest is the caller's promise.
        unsafe { control(mr.cast(), FI_GET_MR_XPU_DESC, &raw mut desc) }
    }
    unsafe fn fi_rx_addr(fi_addr: fi_addr_t, rx_index: c_int, rx_ctx_bits: c_int) -> fi_addr_t {
        // No context bits leave no room for an index: only index 0 exists then.
        let shift = u32::try_from(64 - i64::from(rx_ctx_bits)).unwrap_or(64);
        (rx_index as u64).checked_shl(shift).unwrap_or(0) | fi_addr
    }
    unsafe fn fi_group_addr(fi_addr: fi_addr_t, group_id: u32) -> fi_addr_t {
        u64::from(group_id) << 32 | fi_addr
    }
}

// fi_endpoint.h
calls! {
    unsafe fn fi_endpoint2(
        domain: *mut fid_domain,
        info: *mut fi_info,
        ep: *mut *mut fid_ep,
        flags: u64,
        context: *mut c_void,
    ) -> c_int {
        if flags == 0 {
            // SAFETY: without flags the two calls are one.
            return unsafe { fi_endpoint(domain, info, ep, context) };
        }
        let endpoint2 = slot!(domain, ops, endpoint2);
        // SAFETY: the call's contract is the slot's.
        unsafe { endpoint2(domain, info, ep, flags, context) }
    }
    unsafe fn fi_enable(ep: *mut fid_ep) -> c_int {
        // SAFETY: FI_ENABLE takes nothing.
        unsafe { fi_control(ep.cast(), FI_ENABLE, null_mut()) }
    }
    unsafe fn fi_ep_alias(ep: *mut fid_ep, alias_ep: *mut *mut fid_ep, flags: u64) -> c_int {
        let mut alias = null_mut();
        // SAFETY: the call's contract is fi_alias's.
        let ret = unsafe { fi_alias(ep.cast(), &raw mut alias, flags) };
        if ret == 0 {
            // SAFETY: the caller wants the alias there; an endpoint's alias is an
            // endpoint, and the fid comes first in it.
            unsafe { *alias_ep = alias.cast() };
        }
        ret
    }
}

// fi_cm.h
calls! {
    unsafe fn fi_mc_addr(mc: *mut fid_mc) -> fi_addr_t {
        // SAFETY: null or a live multicast group, by the call's contract.
        unsafe { mc.as_ref() }.map_or(FI_ADDR_NOTAVAIL, |mc| mc.fi_addr)
    }
}

// fi_tagged.h
calls! {
    unsafe fn fi_tag_mpi(tag: c_int, payload_id: u8) -> u64 {
        u64::from(payload_id) << 32 | u64::from(tag as u32)
    }
}

// fi_collective.h
calls! {
    unsafe fn fi_join_collective(
        ep: *mut fid_ep,
        coll_addr: fi_addr_t,
        set: *const fid_av_set,
        flags: u64,
        mc: *mut *mut fid_mc,
        context: *mut c_void,
    ) -> c_int {
        let addr = fi_collective_addr { set, coll_addr };
        // SAFETY: with FI_COLLECTIVE the address is a fi_collective_addr.
        unsafe { fi_join(ep, (&raw const addr).cast(), flags | FI_COLLECTIVE, mc, context) }
    }
    unsafe fn fi_barrier2(
        ep: *mut fid_ep,
        coll_addr: fi_addr_t,
        flags: u64,
        context: *mut c_void,
    ) -> ssize_t {
        if flags == 0 {
            // SAFETY: without flags the two calls are one.
            return unsafe { fi_barrier(ep, coll_addr, context) };
        }
        let barrier2 = slot!(ep, collective, barrier2);
        // SAFETY: the call's contract is the slot's.
        unsafe { barrier2(ep, coll_addr, flags, context) }
    }
}

// fi_ext.h
calls! {
    unsafe fn fi_export_fid(
        fid: *mut fid,
        flags: u64,
        expfid: *mut *mut fid,
        context: *mut c_void,
    ) -> c_int {
        let mut export = fi_fid_export { fid: expfid, flags, context };
        // SAFETY: FI_EXPORT_FID takes a fi_fid_export; the rest is the caller's promise.
        unsafe { control(fid, FI_EXPORT_FID, &raw mut export) }
    }
    unsafe fn fi_import(
        version: u32,
        name: *const c_char,
        attr: *mut c_void,
        attr_len: usize,
        flags: u64,
        fid: *mut fid,
        context: *mut c_void,
    ) -> c_int {
        let mut target = null_mut();
        // SAFETY: the call's contract is fi_open's.
        let ret =
            unsafe { fi_open(version, name, attr, attr_len, flags, &raw mut target, context) };
        if ret != 0 {
            return ret;
        }
        // SAFETY: fi_open made the target; the caller's fid is its promise.
        let ret = unsafe { fi_import_fid(target, fid, flags) };
        // SAFETY: what fi_open made is closed once, and used no more.
        unsafe { fi_close(target) };
        ret
    }
    unsafe fn fi_import_log(version: u32, flags: u64, log_fid: *mut fid_logging) -> c_int {
        if log_fid.is_null() {
            return Refuses::from_error(Error::INVAL);
        }
        // SAFETY: a log object of the caller's, by the call's contract.
        unsafe { (*log_fid).fid.fclass = FI_CLASS_LOG as usize };
        let (name, fid) = (c"logging".as_ptr(), log_fid.cast());
        // SAFETY: the name is a C string, there are no attributes, and the fid is
        // the caller's.
        unsafe { fi_import(version, name, null_mut(), 0, flags, fid, log_fid.cast()) }
    }
}

/// Callback of a provider for a profiled event, fi_profile(3).
type ProfileCallback = unsafe extern "C" fn(
    *mut fid_profile,
    *mut fi_profile_desc,
    *mut c_void,
    usize,
    *mut c_void,
) -> c_int;

// fi_profile.h
calls! {
    unsafe fn fi_profile_read_u64(
        prof_fid: *mut fid_profile,
        var_id: u32,
        data: *mut u64,
    ) -> ssize_t {
        let read_var = slot!(prof_fid, ops, read_var);
        let mut size = size_of::<u64>();
        // SAFETY: the size is that of what `data` points to.
        unsafe { read_var(prof_fid, var_id, data.cast(), &raw mut size) }
    }
    unsafe fn fi_profile_register_callback(
        prof_fid: *mut fid_profile,
        event_id: u32,
        callback: Option<ProfileCallback>,
        context: *mut c_void,
    ) -> c_int {
        let reg_callback = slot!(prof_fid, ops, reg_callback);
        // SAFETY: the call's contract is the slot's.
        unsafe { reg_callback(prof_fid, event_id, callback, context) }
    }
    unsafe fn fi_profile_open(
        fid: *mut fid,
        flags: u64,
        prof_fid: *mut *mut fid_profile,
        context: *mut c_void,
    ) -> c_int {
        let (name, mut ops) = (c"fi_profile_ops".as_ptr(), null_mut::<c_void>());
        // SAFETY: the call's contract is fi_open_ops's.
        let ret = unsafe { fi_open_ops(fid, name, flags, &raw mut ops, context) };
        if ret == 0 {
            let object = ops.wrapping_byte_sub(offset_of!(fid_profile, ops));
            // SAFETY: the caller wants the object there, whose `ops` field the
            // provider answered with.
            unsafe { *prof_fid = object.cast() };
        }
        ret
    }
}

// providers/fi_prov.h
calls! {
    unsafe fn fi_param_get_str(
        provider: *mut fi_provider,
        param_name: *const c_char,
        value: *mut *mut c_char,
    ) -> c_int {
        // SAFETY: the call's contract is fi_param_get's for a string.
        unsafe { fi_param_get(provider, param_name, value.cast()) }
    }
    unsafe fn fi_param_get_int(
        provider: *mut fi_provider,
        param_name: *const c_char,
        value: *mut c_int,
    ) -> c_int {
        // SAFETY: the call's contract is fi_param_get's for an integer.
        unsafe { fi_param_get(provider, param_name, value.cast()) }
    }
    unsafe fn fi_param_get_bool(
        provider: *mut fi_provider,
        param_name: *const c_char,
        value: *mut c_int,
    ) -> c_int {
        // SAFETY: the call's contract is fi_param_get's for a truth value.
        unsafe { fi_param_get(provider, param_name, value.cast()) }
    }
    unsafe fn fi_param_get_size_t(
        provider: *mut fi_provider,
        param_name: *const c_char,
        value: *mut usize,
    ) -> c_int {
        // SAFETY: the call's contract is fi_param_get's for a size.
        unsafe { fi_param_get(provider, param_name, value.cast()) }
    }
}
