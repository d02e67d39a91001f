//! Views of, and ownership of, `struct fi_info`.
use crate::abi::{
    FI_DUP, fi_domain_attr, fi_ep_attr, fi_ep_type, fi_fabric_attr, fi_info, fi_rx_attr,
    fi_tx_attr, fid, fid_nic,
};
use crate::error::{Error, Result};
use crate::info::version::version;
use core::ffi::{CStr, c_char};
use core::fmt;
use core::marker::PhantomData;
use core::mem::{ManuallyDrop, offset_of, size_of};
use core::ptr::{self, NonNull};
use core::slice;

/// API version of the structures of a caller at its compilation.
///
/// The attribute structures only ever grew at their ends. An older caller's are shorter, and a read
/// beyond them would access other memory of the caller.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ApiLevel {
    /// Releases 1.0 to 1.4.
    V1_0,
    /// From 1.5.
    V1_1,
    /// From 1.7.
    V1_2,
    /// From 1.9.
    V1_3,
    /// From 1.20.
    V1_7,
    /// From 2.0.
    V1_8,
    /// From 2.5.
    V1_9,
    /// Version described by [`crate::abi`].
    V1_10,
}

impl ApiLevel {
    /// The generation of [`crate::abi`].
    pub const CURRENT: Self = Self::V1_10;

    /// Returns the oldest possible version of a library reporting this `fi_version`: the one a
    /// plug-in must assume of the core that loaded it.
    pub const fn of_release(fi_version: u32) -> Self {
        match fi_version {
            v if v < version(1, 5) => Self::V1_0,
            v if v < version(1, 7) => Self::V1_1,
            v if v < version(1, 9) => Self::V1_2,
            v if v < version(1, 20) => Self::V1_3,
            v if v < version(2, 0) => Self::V1_7,
            v if v < version(2, 5) => Self::V1_8,
            // 2.6 was released with 1.9, and says 2.6 with 1.10 after that.
            v if v < version(2, 7) => Self::V1_9,
            _ => Self::V1_10,
        }
    }

    const fn info(self) -> usize {
        match self {
            Self::V1_0 | Self::V1_1 => offset_of!(fi_info, nic),
            _ => size_of::<fi_info>(),
        }
    }

    const fn tx(self) -> usize {
        match self {
            Self::V1_0 | Self::V1_1 | Self::V1_2 => offset_of!(fi_tx_attr, tclass),
            _ => size_of::<fi_tx_attr>(),
        }
    }

    const fn ep(self) -> usize {
        match self {
            Self::V1_0 => offset_of!(fi_ep_attr, auth_key_size),
            Self::V1_10 => size_of::<fi_ep_attr>(),
            _ => offset_of!(fi_ep_attr, xpu_ctx),
        }
    }

    const fn domain(self) -> usize {
        match self {
            Self::V1_0 => offset_of!(fi_domain_attr, cntr_cnt),
            Self::V1_1 | Self::V1_2 => offset_of!(fi_domain_attr, tclass),
            Self::V1_3 => offset_of!(fi_domain_attr, max_ep_auth_key),
            Self::V1_7 => offset_of!(fi_domain_attr, max_group_id),
            Self::V1_8 => offset_of!(fi_domain_attr, max_cntr_value),
            Self::V1_9 => offset_of!(fi_domain_attr, max_xpu_ctx_cnt),
            Self::V1_10 => size_of::<fi_domain_attr>(),
        }
    }

    const fn fabric(self) -> usize {
        match self {
            // The version came to lie in what had been padding.
            Self::V1_0 => offset_of!(fi_fabric_attr, api_version),
            _ => size_of::<fi_fabric_attr>(),
        }
    }
}

/// A C caller's `fi_info`, of the current generation, borrowed for a call.
#[derive(Clone, Copy)]
pub struct InfoRef<'a>(&'a fi_info);

impl<'a> InfoRef<'a> {
    /// Returns the view of a caller's info. Fails with `-FI_EINVAL` for null.
    ///
    /// # Safety
    /// `info` is null, or points to an info of the version [`ApiLevel::CURRENT`] whose pointers are null
    /// or valid according to fi_getinfo(3), and neither it nor anything it points to changes for
    /// `'a`. An info of an older version goes through [`InfoBuf::from_level`].
    pub unsafe fn from_c(info: *const fi_info) -> Result<Self> {
        // SAFETY: by this function's contract.
        unsafe { info.as_ref() }.map(Self).ok_or(Error::INVAL)
    }

    /// The pointer C knows it by.
    pub fn as_ptr(self) -> *const fi_info {
        self.0
    }

    /// The next info of the list.
    pub fn next(self) -> Option<Self> {
        // SAFETY: the rest of a valid list is a valid list.
        unsafe { self.0.next.as_ref() }.map(Self)
    }

    /// This info and those behind it.
    pub fn iter(self) -> impl Iterator<Item = Self> {
        core::iter::successors(Some(self), |info| info.next())
    }

    /// `caps`: supported or requested capabilities of the endpoint.
    pub fn caps(self) -> u64 {
        self.0.caps
    }

    /// `mode`: requirements to the application, or the ones it accepts.
    pub fn mode(self) -> u64 {
        self.0.mode
    }

    /// `addr_format`, `FI_SOCKADDR_IN` and so on; 0 is unspecified.
    pub fn addr_format(self) -> u32 {
        self.0.addr_format
    }

    /// The source address, in the format [`addr_format`](Self::addr_format).
    pub fn src_addr(self) -> Option<&'a [u8]> {
        bytes(self.0.src_addr.cast(), self.0.src_addrlen)
    }

    /// The destination address, in the same format.
    pub fn dest_addr(self) -> Option<&'a [u8]> {
        bytes(self.0.dest_addr.cast(), self.0.dest_addrlen)
    }

    /// A connection request, or an endpoint to take over; may be null.
    pub fn handle(self) -> *mut fid {
        self.0.handle
    }

    /// The transmit attributes.
    pub fn tx(self) -> Option<&'a fi_tx_attr> {
        // SAFETY: valid or null by `from_c`'s contract; so are those below.
        unsafe { self.0.tx_attr.as_ref() }
    }

    /// The receive attributes.
    pub fn rx(self) -> Option<&'a fi_rx_attr> {
        // SAFETY: as in `tx`.
        unsafe { self.0.rx_attr.as_ref() }
    }

    /// The endpoint attributes.
    pub fn ep(self) -> Option<&'a fi_ep_attr> {
        // SAFETY: as in `tx`.
        unsafe { self.0.ep_attr.as_ref() }
    }

    /// The domain attributes.
    pub fn domain(self) -> Option<&'a fi_domain_attr> {
        // SAFETY: as in `tx`.
        unsafe { self.0.domain_attr.as_ref() }
    }

    /// The fabric attributes.
    pub fn fabric(self) -> Option<&'a fi_fabric_attr> {
        // SAFETY: as in `tx`.
        unsafe { self.0.fabric_attr.as_ref() }
    }

    /// The network interface card.
    pub fn nic(self) -> Option<&'a fid_nic> {
        // SAFETY: as in `tx`.
        unsafe { self.0.nic.as_ref() }
    }

    /// The endpoint type as C wrote it, `FI_EP_UNSPEC` without attributes.
    /// Compare it with `fi_ep_type` values: it may be none of them.
    pub fn ep_type(self) -> crate::abi::c_enum<fi_ep_type> {
        self.ep().map(|ep| ep.r#type).unwrap_or_default()
    }

    /// -FI_EINVAL unless the info is for endpoints of this type.
    pub fn must_be(self, ep_type: fi_ep_type) -> Result {
        if self.ep_type() == ep_type { Ok(()) } else { Err(Error::INVAL) }
    }

    /// The name of the domain.
    pub fn domain_name(self) -> Option<&'a CStr> {
        self.domain().and_then(|domain| string(domain.name))
    }

    /// The name of the fabric.
    pub fn fabric_name(self) -> Option<&'a CStr> {
        self.fabric().and_then(|fabric| string(fabric.name))
    }

    /// The provider's name, layers joined by `;`.
    pub fn prov_name(self) -> Option<&'a CStr> {
        self.fabric().and_then(|fabric| string(fabric.prov_name))
    }

    /// The version the application asked for with fi_getinfo, 0 if unknown.
    pub fn api_version(self) -> u32 {
        self.fabric().map_or(0, |fabric| fabric.api_version)
    }

    /// The endpoint's authorization key.
    pub fn ep_auth_key(self) -> Option<&'a [u8]> {
        self.ep().and_then(|ep| bytes(ep.auth_key, ep.auth_key_size))
    }

    /// The domain's authorization key.
    pub fn domain_auth_key(self) -> Option<&'a [u8]> {
        self.domain().and_then(|domain| bytes(domain.auth_key, domain.auth_key_size))
    }

    /// A deep copy of this one info, without those behind it.
    pub fn to_owned(self) -> Result<InfoBuf> {
        // SAFETY: `self` is a valid info of the current generation.
        unsafe { InfoBuf::from_level(self.0, ApiLevel::CURRENT) }
    }
}

impl fmt::Debug for InfoRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("fi_info")
            .field("prov", &self.prov_name())
            .field("fabric", &self.fabric_name())
            .field("domain", &self.domain_name())
            .field("ep_type", &self.ep_type())
            .field("caps", &format_args!("{:#x}", self.caps()))
            .finish_non_exhaustive()
    }
}

fn bytes<'a>(start: *const u8, len: usize) -> Option<&'a [u8]> {
    if start.is_null() || len == 0 || len > isize::MAX as usize {
        return None;
    }
    // SAFETY: a private helper of `InfoRef`, whose contract makes an address of
    // its info valid for the length that stands beside it.
    Some(unsafe { slice::from_raw_parts(start, len) })
}

fn string<'a>(start: *const c_char) -> Option<&'a CStr> {
    if start.is_null() {
        return None;
    }
    // SAFETY: as in `bytes`; names are C strings.
    Some(unsafe { CStr::from_ptr(start) })
}

/// `fi_info` owned by Rust, with all attribute structures present.
///
/// The memory belongs to C's allocator: [`into_raw`](Self::into_raw) passes it to any
/// `fi_freeinfo`. It always owns its names and addresses.
pub struct InfoBuf {
    info: NonNull<fi_info>,
    owns: PhantomData<fi_info>,
}

// SAFETY: an `InfoBuf` is the only owner of plain memory; the fids and the nic
// it may refer to are objects that the API lets any thread use.
unsafe impl Send for InfoBuf {}
// SAFETY: as above; shared access only reads.
unsafe impl Sync for InfoBuf {}

impl InfoBuf {
    /// Returns an info of zeros. As hints it accepts everything but modes.
    pub fn new() -> Result<Self> {
        // SAFETY: null is what asks for an empty info.
        unsafe { Self::from_level(ptr::null(), ApiLevel::CURRENT) }
    }

    /// Returns a deep copy of an info, possibly of an older version; missing parts become zero.
    /// Null gives an empty info.
    ///
    /// # Safety
    /// As [`InfoRef::from_c`], but of the version `level`.
    pub unsafe fn from_level(info: *const fi_info, level: ApiLevel) -> Result<Self> {
        // SAFETY: by this function's contract.
        let copy = unsafe { dup_raw(info, level) }?;
        // SAFETY: the copy is current, complete in itself and ours alone.
        unsafe { Self::from_raw(copy.as_ptr()) }
    }

    /// Takes over one info from C and adds missing attribute structures. Infos behind it are cut
    /// off and stay with the caller.
    ///
    /// # Safety
    /// `info` is null or came from `fi_dupinfo` or [`InfoBuf::into_raw`], is of the current
    /// version, and is not freed or changed by other code.
    pub unsafe fn from_raw(info: *mut fi_info) -> Result<Self> {
        let info = NonNull::new(info).ok_or(Error::INVAL)?;
        let buf = Self { info, owns: PhantomData };
        // SAFETY: ours alone by this function's contract.
        unsafe {
            let info = &mut *info.as_ptr();
            info.next = ptr::null_mut();
            fill(&mut info.tx_attr)?;
            fill(&mut info.rx_attr)?;
            fill(&mut info.ep_attr)?;
            fill(&mut info.domain_attr)?;
            fill(&mut info.fabric_attr)?;
        }
        Ok(buf)
    }

    /// Passes the info to C; `fi_freeinfo` frees it.
    pub fn into_raw(self) -> *mut fi_info {
        ManuallyDrop::new(self).info.as_ptr()
    }

    /// Returns a read-only view of the info.
    pub fn as_ref(&self) -> InfoRef<'_> {
        // SAFETY: valid, current, and borrowed from its only owner.
        InfoRef(unsafe { self.info.as_ref() })
    }

    /// The pointer C would know it by.
    pub fn as_ptr(&self) -> *const fi_info {
        self.info.as_ptr()
    }

    fn raw(&mut self) -> &mut fi_info {
        // SAFETY: valid and borrowed from its only owner.
        unsafe { self.info.as_mut() }
    }

    /// Sets `caps`.
    pub fn set_caps(&mut self, caps: u64) {
        self.raw().caps = caps;
    }

    /// Sets `mode`.
    pub fn set_mode(&mut self, mode: u64) {
        self.raw().mode = mode;
    }

    /// Sets `addr_format`; the addresses are the caller's to keep in step.
    pub fn set_addr_format(&mut self, format: u32) {
        self.raw().addr_format = format;
    }

    /// Sets `handle`, not owned by the info.
    pub fn set_handle(&mut self, handle: *mut fid) {
        self.raw().handle = handle;
    }

    /// Copies the source address; `None` removes it.
    pub fn set_src_addr(&mut self, addr: Option<&[u8]>) -> Result {
        let info = self.raw();
        replace_bytes(&mut info.src_addr, &mut info.src_addrlen, addr)
    }

    /// Copies the destination address; `None` removes it.
    pub fn set_dest_addr(&mut self, addr: Option<&[u8]>) -> Result {
        let info = self.raw();
        replace_bytes(&mut info.dest_addr, &mut info.dest_addrlen, addr)
    }

    /// Copies the authorization keys of the endpoint and of the domain; `None`
    /// removes one.
    pub fn set_auth_keys(&mut self, ep: Option<&[u8]>, domain: Option<&[u8]>) -> Result {
        let info = self.raw();
        // SAFETY: an `InfoBuf` has all attributes and owns their keys.
        let attrs = unsafe { (&mut *info.ep_attr, &mut *info.domain_attr) };
        replace_bytes(&mut attrs.0.auth_key, &mut attrs.0.auth_key_size, ep)?;
        replace_bytes(&mut attrs.1.auth_key, &mut attrs.1.auth_key_size, domain)
    }

    /// Copies the domain's name.
    pub fn set_domain_name(&mut self, name: &CStr) -> Result {
        // SAFETY: an `InfoBuf` has all attributes and owns their names.
        unsafe { replace_string(&mut (*self.raw().domain_attr).name, name) }
    }

    /// Copies the fabric's name.
    pub fn set_fabric_name(&mut self, name: &CStr) -> Result {
        // SAFETY: as in `set_domain_name`.
        unsafe { replace_string(&mut (*self.raw().fabric_attr).name, name) }
    }

    /// Copies the provider's name.
    pub fn set_prov_name(&mut self, name: &CStr) -> Result {
        // SAFETY: as in `set_domain_name`.
        unsafe { replace_string(&mut (*self.raw().fabric_attr).prov_name, name) }
    }

    /// Sets the provider's version and the version the application asked for.
    pub fn set_versions(&mut self, prov_version: u32, api_version: u32) {
        // SAFETY: as in `set_domain_name`.
        let fabric = unsafe { &mut *self.raw().fabric_attr };
        fabric.prov_version = prov_version;
        fabric.api_version = api_version;
    }

    /// The transmit attributes, to change.
    pub fn tx_mut(&mut self) -> &mut fi_tx_attr {
        // SAFETY: present in every `InfoBuf`, and nothing in it is owned.
        unsafe { &mut *self.raw().tx_attr }
    }

    /// The receive attributes, to change.
    pub fn rx_mut(&mut self) -> &mut fi_rx_attr {
        // SAFETY: as in `tx_mut`.
        unsafe { &mut *self.raw().rx_attr }
    }

    /// Changes endpoint attributes, all but the authorization key.
    pub fn edit_ep(&mut self, edit: impl FnOnce(&mut fi_ep_attr)) {
        // SAFETY: present in every `InfoBuf`.
        let attr = unsafe { &mut *self.raw().ep_attr };
        let mut new = *attr;
        edit(&mut new);
        // Everything owned by the info is freed with it, so no foreign pointer may replace it.
        (new.auth_key, new.auth_key_size) = (attr.auth_key, attr.auth_key_size);
        *attr = new;
    }

    /// Changes domain attributes, all but the name and the authorization key.
    pub fn edit_domain(&mut self, edit: impl FnOnce(&mut fi_domain_attr)) {
        // SAFETY: present in every `InfoBuf`.
        let attr = unsafe { &mut *self.raw().domain_attr };
        let mut new = *attr;
        edit(&mut new);
        new.name = attr.name;
        (new.auth_key, new.auth_key_size) = (attr.auth_key, attr.auth_key_size);
        *attr = new;
    }

    /// Sets the open fabric of the info, not owned by it.
    pub fn set_fabric(&mut self, fabric: *mut crate::abi::fid_fabric) {
        // SAFETY: as in `set_domain_name`.
        unsafe { (*self.raw().fabric_attr).fabric = fabric }
    }

    /// Replaces the card of the info.
    ///
    /// # Safety
    /// The card is owned by the caller, and handed over.
    pub(super) unsafe fn replace_nic(&mut self, nic: *mut fid_nic) {
        let old = core::mem::replace(&mut self.raw().nic, nic);
        // SAFETY: owned by the info, and not in use any more.
        unsafe { close_nic(old) };
    }

    /// Copies the card of another info, if it has one.
    pub fn copy_nic(&mut self, of: InfoRef<'_>) -> Result {
        // SAFETY: the nic is live while its info is.
        let copy = unsafe { dup_nic(of.0.nic) }?;
        // SAFETY: the copy is the caller's own.
        unsafe { self.replace_nic(copy) };
        Ok(())
    }

    /// `caps`, as [`InfoRef::caps`].
    pub fn caps(&self) -> u64 {
        self.as_ref().caps()
    }

    /// `mode`, as [`InfoRef::mode`].
    pub fn mode(&self) -> u64 {
        self.as_ref().mode()
    }

    /// The transmit attributes.
    pub fn tx(&self) -> &fi_tx_attr {
        // SAFETY: present in every `InfoBuf`; so are those below.
        unsafe { &*self.info.as_ref().tx_attr }
    }

    /// The receive attributes.
    pub fn rx(&self) -> &fi_rx_attr {
        // SAFETY: as in `tx`.
        unsafe { &*self.info.as_ref().rx_attr }
    }

    /// The endpoint attributes.
    pub fn ep(&self) -> &fi_ep_attr {
        // SAFETY: as in `tx`.
        unsafe { &*self.info.as_ref().ep_attr }
    }

    /// The domain attributes.
    pub fn domain(&self) -> &fi_domain_attr {
        // SAFETY: as in `tx`.
        unsafe { &*self.info.as_ref().domain_attr }
    }

    /// The fabric attributes.
    pub fn fabric(&self) -> &fi_fabric_attr {
        // SAFETY: as in `tx`.
        unsafe { &*self.info.as_ref().fabric_attr }
    }
}

impl Drop for InfoBuf {
    fn drop(&mut self) {
        // SAFETY: the only owner; `next` is null in every `InfoBuf`.
        unsafe { free_raw(self.info.as_ptr()) }
    }
}

impl fmt::Debug for InfoBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_ref().fmt(f)
    }
}

/// Infos of a getinfo answer, best first.
#[derive(Debug, Default)]
pub struct InfoChain(Vec<InfoBuf>);

impl InfoChain {
    /// A list without infos.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes over a list from C.
    ///
    /// # Safety
    /// As [`InfoBuf::from_raw`], for every info of the list; null is the empty list.
    pub unsafe fn from_raw(mut list: *mut fi_info) -> Result<Self> {
        let mut chain = Self::new();
        while !list.is_null() {
            // SAFETY: a valid list that is ours by this function's contract.
            let next = unsafe { (*list).next };
            // SAFETY: see above; the rest of the list is stored in `next`.
            match unsafe { InfoBuf::from_raw(list) } {
                Ok(info) => chain.push(info),
                Err(error) => {
                    // SAFETY: the untaken rest has no other owner.
                    unsafe { free_raw(next) };
                    return Err(error);
                }
            }
            list = next;
        }
        Ok(chain)
    }

    /// Adds an info at the end.
    pub fn push(&mut self, info: InfoBuf) {
        self.0.push(info);
    }

    /// Adds all infos of another chain at the end.
    pub fn append(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }

    /// Keeps the infos accepted by `keep`.
    pub fn retain(&mut self, keep: impl FnMut(&InfoBuf) -> bool) {
        self.0.retain(keep);
    }

    /// Returns the number of infos.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The infos in order.
    pub fn iter(&self) -> impl Iterator<Item = InfoRef<'_>> {
        self.0.iter().map(InfoBuf::as_ref)
    }

    /// The infos in order, to change.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut InfoBuf> {
        self.0.iter_mut()
    }

    /// Returns the infos as a list freed by C with `fi_freeinfo`; null if empty.
    pub fn into_raw(self) -> *mut fi_info {
        let mut list = ptr::null_mut();
        for mut info in self.0.into_iter().rev() {
            info.raw().next = list;
            list = info.into_raw();
        }
        list
    }
}

impl IntoIterator for InfoChain {
    type Item = InfoBuf;
    type IntoIter = std::vec::IntoIter<InfoBuf>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl FromIterator<InfoBuf> for InfoChain {
    fn from_iter<I: IntoIterator<Item = InfoBuf>>(infos: I) -> Self {
        Self(infos.into_iter().collect())
    }
}

/// A zeroed `T` from C's allocator.
pub(super) fn zeroed<T>() -> Result<NonNull<T>> {
    // SAFETY: no precondition; the answer is checked.
    NonNull::new(unsafe { libc::calloc(1, size_of::<T>()) }.cast()).ok_or(Error::NOMEM)
}

/// Allocates a missing structure, zeroed.
///
/// # Safety
/// All bytes zero is a value of `T`.
unsafe fn fill<T>(slot: &mut *mut T) -> Result {
    if slot.is_null() {
        *slot = zeroed()?.as_ptr();
    }
    Ok(())
}

pub(super) fn copy_bytes(bytes: &[u8]) -> Result<*mut u8> {
    // SAFETY: malloc has no precondition, and its answer is checked.
    let copy = unsafe { libc::malloc(bytes.len().max(1)) }.cast::<u8>();
    if copy.is_null() {
        return Err(Error::NOMEM);
    }
    // SAFETY: `copy` is new and as long as `bytes`.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), copy, bytes.len()) };
    Ok(copy)
}

fn replace_bytes<T>(at: &mut *mut T, len: &mut usize, bytes: Option<&[u8]>) -> Result {
    let bytes = bytes.filter(|bytes| !bytes.is_empty());
    let new = bytes.map(copy_bytes).transpose()?.unwrap_or(ptr::null_mut());
    // SAFETY: only `InfoBuf` calls this, whose addresses and keys come from C's malloc.
    unsafe { libc::free(at.cast()) };
    *at = new.cast();
    *len = bytes.map_or(0, <[u8]>::len);
    Ok(())
}

/// # Safety
/// `at` is null or a string from C's malloc without other references.
unsafe fn replace_string(at: &mut *mut c_char, string: &CStr) -> Result {
    let new = copy_bytes(string.to_bytes_with_nul())?;
    // SAFETY: by this function's contract.
    unsafe { libc::free(at.cast()) };
    *at = new.cast();
    Ok(())
}

/// A copy of the first `size` bytes of `*from`, the rest zero; null stays null.
///
/// # Safety
/// `from` is null or valid for `size` bytes, and zero bytes are a value of `T`.
unsafe fn copy_prefix<T>(from: *const T, size: usize) -> Result<*mut T> {
    if from.is_null() {
        return Ok(ptr::null_mut());
    }
    let copy = zeroed::<T>()?.as_ptr();
    // SAFETY: `size` is at most the size of `T`, and `from` has that much.
    unsafe {
        ptr::copy_nonoverlapping(from.cast::<u8>(), copy.cast::<u8>(), size.min(size_of::<T>()));
    }
    Ok(copy)
}

/// Replaces a pointer shared by a shallow copy and its original by a copy.
fn own_bytes<T>(at: &mut *mut T, len: usize) -> Result {
    let shared = core::mem::replace(at, ptr::null_mut());
    if let Some(bytes) = bytes(shared.cast(), len) {
        *at = copy_bytes(bytes)?.cast();
    }
    Ok(())
}

fn own_string(at: &mut *mut c_char) -> Result {
    let shared = core::mem::replace(at, ptr::null_mut());
    if let Some(string) = string(shared) {
        *at = copy_bytes(string.to_bytes_with_nul())?.cast();
    }
    Ok(())
}

/// Returns a deep copy of one info, as `fi_dupinfo` makes it. Attribute structures missing in the
/// original stay absent; null gives an info with all of them, zeroed.
///
/// # Safety
/// `info` is null or points to an info of the version `level` whose pointers are null or valid.
pub unsafe fn dup_raw(info: *const fi_info, level: ApiLevel) -> Result<NonNull<fi_info>> {
    let copy = zeroed::<fi_info>()?;
    // SAFETY: new, zeroed and ours.
    let to = unsafe { &mut *copy.as_ptr() };
    // SAFETY: by this function's contract, and `to` stays free of shared
    // pointers, so it can be freed at any point.
    let done = unsafe { if info.is_null() { fill_all(to) } else { dup_into(to, info, level) } };
    if let Err(error) = done {
        // SAFETY: what is in it is its own.
        unsafe { free_raw(copy.as_ptr()) };
        return Err(error);
    }
    Ok(copy)
}

fn fill_all(to: &mut fi_info) -> Result {
    // SAFETY: plain C structures, for which zero is what calloc gives.
    unsafe {
        fill(&mut to.tx_attr)?;
        fill(&mut to.rx_attr)?;
        fill(&mut to.ep_attr)?;
        fill(&mut to.domain_attr)?;
        fill(&mut to.fabric_attr)
    }
}

/// # Safety
/// As [`dup_raw`], and `info` is not null.
unsafe fn dup_into(to: &mut fi_info, info: *const fi_info, level: ApiLevel) -> Result {
    // SAFETY: `info` has the fields of its generation, all of which had these.
    let from = unsafe {
        let mut from = core::mem::zeroed::<fi_info>();
        ptr::copy_nonoverlapping(info.cast::<u8>(), (&raw mut from).cast::<u8>(), level.info());
        from
    };
    to.caps = from.caps;
    to.mode = from.mode;
    to.addr_format = from.addr_format;
    to.handle = from.handle;
    if let Some(addr) = bytes(from.src_addr.cast(), from.src_addrlen) {
        replace_bytes(&mut to.src_addr, &mut to.src_addrlen, Some(addr))?;
    }
    if let Some(addr) = bytes(from.dest_addr.cast(), from.dest_addrlen) {
        replace_bytes(&mut to.dest_addr, &mut to.dest_addrlen, Some(addr))?;
    }
    // SAFETY: the attribute structures have the sizes of their generation, and
    // nothing that fails stands between sharing a pointer and taking a copy of
    // all of them: see `unshare_*`.
    unsafe {
        to.tx_attr = copy_prefix(from.tx_attr, level.tx())?;
        to.rx_attr = copy_prefix(from.rx_attr, size_of::<fi_rx_attr>())?;
        to.ep_attr = copy_prefix(from.ep_attr, level.ep())?;
        if let Some(ep) = to.ep_attr.as_mut() {
            own_bytes(&mut ep.auth_key, ep.auth_key_size)?;
        }
        let domain = copy_prefix(from.domain_attr, level.domain())?;
        to.domain_attr = domain;
        if let Some(domain) = domain.as_mut() {
            let name = core::mem::replace(&mut domain.name, ptr::null_mut());
            own_bytes(&mut domain.auth_key, domain.auth_key_size)?;
            domain.name = name;
            own_string(&mut domain.name)?;
        }
        let fabric = copy_prefix(from.fabric_attr, level.fabric())?;
        to.fabric_attr = fabric;
        if let Some(fabric) = fabric.as_mut() {
            let name = core::mem::replace(&mut fabric.name, ptr::null_mut());
            own_string(&mut fabric.prov_name)?;
            fabric.name = name;
            own_string(&mut fabric.name)?;
        }
        to.nic = dup_nic(from.nic)?;
    }
    Ok(())
}

/// Copies a nic by its provider, alone able to do so. A nic that cannot be copied is left out of
/// the copy: two infos sharing it would free it twice.
///
/// # Safety
/// `nic` is null or a live nic.
unsafe fn dup_nic(nic: *mut fid_nic) -> Result<*mut fid_nic> {
    let mut copy: *mut fid_nic = ptr::null_mut();
    if nic.is_null() {
        return Ok(copy);
    }
    // SAFETY: the operations of a live fid, or none; FI_DUP of a nic answers a nic.
    unsafe {
        let Some(control) = (*nic).fid.ops.as_ref().and_then(|ops| ops.control) else {
            return Ok(copy);
        };
        match Error::check(control(&raw mut (*nic).fid, FI_DUP, (&raw mut copy).cast())) {
            Ok(_) => Ok(copy),
            Err(Error::NOSYS) => Ok(ptr::null_mut()),
            Err(error) => Err(error),
        }
    }
}

/// Returns a nic to its provider.
///
/// # Safety
/// `nic` is null or a live nic not in use any more.
unsafe fn close_nic(nic: *mut fid_nic) {
    // SAFETY: by this function's contract.
    unsafe {
        if let Some(nic) = nic.as_mut() {
            if let Some(close) = nic.fid.ops.as_ref().and_then(|ops| ops.close) {
                close(&raw mut nic.fid);
            }
        }
    }
}

/// Frees a list of infos, as `fi_freeinfo` does; null is the empty list.
///
/// # Safety
/// `info` is null or came from `fi_getinfo`, `fi_dupinfo`, [`dup_raw`] or [`InfoBuf::into_raw`],
/// and is not in use any more.
pub unsafe fn free_raw(mut info: *mut fi_info) {
    while !info.is_null() {
        // SAFETY: a list of infos from C's malloc, each freed once: `next` is
        // read before, and what it points to is freed before itself.
        unsafe {
            let this = &mut *info;
            let next = this.next;
            libc::free(this.src_addr);
            libc::free(this.dest_addr);
            libc::free(this.tx_attr.cast());
            libc::free(this.rx_attr.cast());
            if let Some(ep) = this.ep_attr.as_mut() {
                libc::free(ep.auth_key.cast());
                libc::free(this.ep_attr.cast());
            }
            if let Some(domain) = this.domain_attr.as_mut() {
                libc::free(domain.auth_key.cast());
                libc::free(domain.name.cast());
                libc::free(this.domain_attr.cast());
            }
            if let Some(fabric) = this.fabric_attr.as_mut() {
                libc::free(fabric.name.cast());
                libc::free(fabric.prov_name.cast());
                libc::free(this.fabric_attr.cast());
            }
            close_nic(this.nic);
            libc::free(info.cast());
            info = next;
        }
    }
}

#[cfg(test)]
mod tests;
