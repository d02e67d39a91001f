//! Address vectors (fi_av(3)), for addresses of any format.
//!
//! FI_AV_MAP and FI_AV_TABLE are the same: an fi_addr_t is an index. Inserting an address again
//! returns its existing index and counts the insertions. The address is deleted after the same
//! number of removals.
//!
//! A named vector is shared by the processes opening the name: its addresses are in a
//! [`SharedAddrTable`], and its records have the same indices here. A process copies records to its
//! own table when it looks up an unknown index or address, so known peers cost no more than those
//! of other vectors.
use crate::abi::{
    self, FI_ADDR_NOTAVAIL, FI_CLASS_AV, fi_addr_t, fi_av_attr, fi_av_type, fi_ops, fi_ops_av, fid,
    fid_av,
};
use crate::addr::{self, Addr, AddrList};
use crate::addr_table::SharedAddrTable;
pub use crate::av_table::AvObserverHandle;
use crate::av_table::{AvEntry, AvTable};
use crate::boundary::{ffi_guard, ffi_guard_if_memory};
use crate::cq::Context;
use crate::eq::{DomainEq, Eq, EqEvent, FidPtr};
use crate::error::{Error, Result};
use crate::fid::{FidObject, enosys_stub};
use crate::object::{Base, Object, Parent, fid_ops};
use crate::peer::AvOwner;
use crate::sys::has_more_rights;
use core::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

/// Permitted kinds of vectors of a domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AvSharing {
    /// One process's.
    Never,
    /// Several processes', by a name (FI_SHARED_AV).
    ByName,
}

/// Value of `map_addr` of a shared vector if the application leaves it open: a number equal in each
/// process, because an fi_addr_t is an index regardless of the vector's address. No memory is
/// there.
const MAP_ADDR: usize = 4096;

/// An address vector, as C and providers share it.
#[repr(C)]
pub struct Av {
    c: fid_av,
    format: u32,
    table: Mutex<AvTable>,
    /// Held during the insertion or removal of an address with its reports to listeners, to keep
    /// the order of changes. Taken before all other locks.
    event_lock: Mutex<()>,
    eq: OnceLock<Arc<Eq>>,
    /// Event queue of the domain, for a vector bound to none.
    default_eq: DomainEq,
    events: bool,
    /// Number of the highest bits of an fi_addr_t naming a peer's receive context (fi_rx_addr).
    rx_ctx_bits: u32,
    /// Table of a vector shared by processes.
    shared: Option<SharedAddrTable>,
    /// Vector of another provider, if this one was opened over it with FI_PEER (fi_peer(3)).
    owner: Option<AvOwner>,
    base: Base,
}

// SAFETY: the C part is written once, in `open`; the rest is thread-safe by itself.
unsafe impl Sync for Av {}
// SAFETY: the C part is written once, in `open`; the rest is thread-safe by itself.
unsafe impl Send for Av {}
// SAFETY: repr(C) with the C struct first; made only by `open`, in an `Arc`.
unsafe impl FidObject<fid_av> for Av {}

impl std::fmt::Debug for Av {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Av({} addresses)", self.table().entries.len())
    }
}

impl Av {
    /// The format of the vector's addresses: FI_SOCKADDR_IN, FI_ADDR_STR …
    pub(crate) fn format(&self) -> u32 {
        self.format
    }

    /// Opens a vector (fi_av_open) for addresses of `format` (FI_SOCKADDR_*). On success
    /// `attr.type` is the kind of the vector, if it was left open, and `attr.map_addr` of a shared
    /// one is not null.
    ///
    /// # Safety
    /// With FI_PEER `context` is null or a `struct fi_peer_av_context` (fi_peer(3)).
    pub unsafe fn open(
        domain: Parent,
        format: u32,
        sharing: AvSharing,
        attr: Option<&mut fi_av_attr>,
        mut context: *mut c_void,
    ) -> Result<Arc<Self>> {
        let (mut events, mut user_ids, mut rx_ctx_bits) = (false, false, 0);
        let (mut owner, mut shared) = (None, None);
        if let Some(attr) = attr {
            if !attr.name.is_null() && sharing == AvSharing::Never {
                return Err(Error::NOSYS);
            }
            const ALLOWED: u64 = abi::FI_EVENT
                | abi::FI_READ
                | abi::FI_SYMMETRIC
                | abi::FI_PEER
                | abi::FI_AV_USER_ID;
            if attr.flags & !ALLOWED != 0 {
                return Err(Error::BADFLAGS);
            }
            if attr.flags & abi::FI_PEER != 0 {
                // SAFETY: by this function's contract.
                let of = unsafe { AvOwner::new(context) }?;
                if attr.r#type == fi_av_type::FI_AV_UNSPEC {
                    attr.r#type = of.query()?.r#type;
                }
                // With FI_PEER the context was only for opening.
                context = std::ptr::null_mut();
                owner = Some(of);
            }
            if attr.r#type.raw() > fi_av_type::FI_AV_TABLE as u32 {
                return Err(Error::INVAL);
            }
            rx_ctx_bits = match u32::try_from(attr.rx_ctx_bits) {
                Ok(bits @ ..=32) => bits,
                _ => return Err(Error::INVAL),
            };
            if attr.r#type == fi_av_type::FI_AV_UNSPEC {
                attr.r#type = fi_av_type::FI_AV_TABLE.into();
            }
            let read_only = attr.flags & abi::FI_READ != 0;
            if !attr.name.is_null() {
                // Tables are of IP addresses, and of processes that have the rights of their callers alone.
                if !is_ip(format) {
                    return Err(Error::NOSYS);
                }
                if has_more_rights() {
                    return Err(Error::ACCES);
                }
                // SAFETY: the application gives a C string.
                let name = unsafe { CStr::from_ptr(attr.name) };
                shared = Some(SharedAddrTable::open(name, format, read_only)?);
                if attr.map_addr.is_null() {
                    attr.map_addr = std::ptr::without_provenance_mut(MAP_ADDR);
                }
            } else if read_only {
                return Err(Error::INVAL);
            }
            events = attr.flags & abi::FI_EVENT != 0;
            user_ids = attr.flags & abi::FI_AV_USER_ID != 0;
        }
        let mut table = AvTable { user_ids, ..AvTable::default() };
        if let Some(shared) = &shared {
            table.catch_up(shared);
        }
        Ok(Arc::new(Self {
            c: fid_av { fid: Self::fid(context), ops: (&raw const AV_OPS).cast_mut() },
            format,
            table: Mutex::new(table),
            event_lock: Mutex::new(()),
            eq: OnceLock::new(),
            default_eq: DomainEq::default(),
            events,
            rx_ctx_bits,
            shared,
            owner,
            base: Base::new(domain),
        }))
    }

    /// The vector, just opened, with these calls instead of [`AV_OPS`].
    pub(crate) fn with_ops(mut self: Arc<Self>, ops: &'static fi_ops_av) -> Arc<Self> {
        if let Some(av) = Arc::get_mut(&mut self) {
            av.c.ops = std::ptr::from_ref(ops).cast_mut();
        }
        self
    }

    /// Sets the domain's queue as the default for events of the vector, just opened.
    pub(crate) fn with_default_eq(mut self: Arc<Self>, eq: DomainEq) -> Arc<Self> {
        if let Some(av) = Arc::get_mut(&mut self) {
            av.default_eq = eq;
        }
        self
    }

    /// Returns the queue for events of the vector.
    fn event_queue(&self) -> Result<&Arc<Eq>> {
        self.eq.get().or_else(|| self.default_eq.get()).ok_or(Error::NOEQ)
    }

    fn event_lock(&self) -> MutexGuard<'_, ()> {
        self.event_lock.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn table(&self) -> MutexGuard<'_, AvTable> {
        self.table.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Returns the address of a local endpoint in the owner's vector, FI_ADDR_NOTAVAIL without an
    /// owner (fi_peer(3)).
    pub fn owner_addr(&self, ep: FidPtr) -> fi_addr_t {
        self.owner.map_or(FI_ADDR_NOTAVAIL, |owner| owner.ep_addr(ep.0.cast()))
    }

    /// Returns the number of addresses in the owner's vector, 0 without an owner.
    pub(crate) fn owner_count(&self) -> u64 {
        let attr = self.owner.and_then(|owner| owner.query().ok());
        attr.map_or(0, |attr| attr.count as u64)
    }

    /// Adds a listener for insertions and removals.
    pub fn listen(&self, listener: Weak<dyn AvObserverHandle>) {
        let mut table = self.table();
        table.listeners.retain(|known| known.strong_count() != 0);
        table.listeners.push(listener);
    }

    /// Splits a destination into the index of a peer, and the index of a receive context there
    /// (fi_rx_addr).
    pub fn split(&self, dest: fi_addr_t) -> (fi_addr_t, usize) {
        match self.rx_ctx_bits {
            0 => (dest, 0),
            bits => (dest & (u64::MAX >> bits), (dest >> (u64::BITS - bits)) as usize),
        }
    }

    /// Returns the address of `index`. Fails with -FI_EINVAL if it has none, or is being removed:
    /// otherwise a caller could use it for the index of another address later.
    pub fn get(&self, index: fi_addr_t) -> Result<Addr> {
        let index = u32::try_from(index).map_err(|_| Error::INVAL)?;
        let mut table = self.table();
        if let Some(shared) = &self.shared {
            return table.look_up(shared, index).ok_or(Error::INVAL);
        }
        table.addr(index).cloned().ok_or(Error::INVAL)
    }

    /// Reports addresses inserted by other processes to listeners. Their indices are known without
    /// it at the first send to or message from them. It names peers with messages before their
    /// insertion.
    fn observe_others(&self) {
        if let Some(shared) = &self.shared {
            let _events = self.event_lock();
            self.table().catch_up(shared);
            self.notify_pending();
        }
    }

    /// Reports pending insertions to listeners; `event_lock` is held.
    fn notify_pending(&self) {
        let mut table = self.table();
        let unnotified = std::mem::take(&mut table.unnotified);
        let named = |index: u32| Some((u64::from(index), table.addr(index)?.clone()));
        let all: Vec<_> = unnotified.into_iter().filter_map(named).collect();
        let listeners = if all.is_empty() { Vec::new() } else { table.listeners.clone() };
        drop(table);
        for listener in listeners.iter().filter_map(Weak::upgrade) {
            all.iter().for_each(|(index, addr)| listener.inserted(*index, addr));
        }
    }

    /// Returns true if addresses are IP addresses, and not those of RDMA devices, names or several
    /// addresses.
    fn is_ip(&self) -> bool {
        is_ip(self.format)
    }

    /// The indices of all addresses in the vector, in order.
    pub fn indices(&self) -> Vec<fi_addr_t> {
        let mut table = self.table();
        let mut there = None;
        if let Some(shared) = &self.shared {
            table.catch_up(shared);
            there = Some(shared.since(0));
        }
        // Other processes may have removed some.
        let is_there = |index: u32, addr: &Addr| {
            let at = |addrs: &Vec<Option<Addr>>| addrs.get(index as usize)?.clone();
            there.as_ref().is_none_or(|addrs| at(addrs).is_some_and(|now| now == *addr))
        };
        let entries = table.entries.iter();
        let named =
            entries.filter(|(index, entry)| entry.uses > 0 && is_there(*index, &entry.addr));
        named.map(|(index, _)| u64::from(index)).collect()
    }

    /// Returns the number of addresses in the vector, at least of those used by this process.
    pub fn count(&self) -> usize {
        self.table().entries.len()
    }

    /// The index of an address, FI_ADDR_NOTAVAIL when it was not inserted.
    pub fn find(&self, addr: Addr) -> fi_addr_t {
        let (addr, mut table) = (addr.identity(), self.table());
        let mut index = table.index.get(&addr).copied();
        if let (None, Some(shared)) = (index, &self.shared) {
            table.catch_up(shared);
            index = table.index.get(&addr).copied();
        }
        index.map_or(FI_ADDR_NOTAVAIL, u64::from)
    }

    /// Returns the address reported by completions for `index`: itself, or the one chosen by the
    /// application (fi_av_set_user_id).
    pub fn id_of(&self, index: fi_addr_t) -> fi_addr_t {
        let slot = u32::try_from(index).ok();
        let table = self.table();
        slot.and_then(|slot| table.entries.get(slot)).map_or(FI_ADDR_NOTAVAIL, |entry| entry.id)
    }

    /// Returns true if the application declared `index` unable to accept connections because of a
    /// firewall (FI_FIREWALL_ADDR).
    pub fn is_behind_firewall(&self, index: fi_addr_t) -> bool {
        let slot = u32::try_from(index).ok();
        let table = self.table();
        slot.and_then(|slot| table.entries.get(slot)).is_some_and(|entry| entry.behind_firewall)
    }

    /// Marks `index` as unable to accept connections while it is in the vector.
    fn set_behind_firewall(&self, index: fi_addr_t) {
        let mut table = self.table();
        if let Some(entry) = u32::try_from(index).ok().and_then(|n| table.entries.get_mut(n)) {
            entry.behind_firewall = true;
        }
    }

    /// Sets the address reported by completions for `index`.
    fn set_id(&self, index: fi_addr_t, id: fi_addr_t) -> Result {
        let _events = self.event_lock();
        self.identify(self.table(), index, id)
    }

    /// Sets the id of an address, and notifies listeners without the table's lock; `event_lock` is
    /// held.
    fn identify(
        &self,
        mut table: MutexGuard<'_, AvTable>,
        index: fi_addr_t,
        id: fi_addr_t,
    ) -> Result {
        let slot = u32::try_from(index).map_err(|_| Error::INVAL)?;
        table.entries.get_mut(slot).ok_or(Error::INVAL)?.id = id;
        let listeners = table.listeners.clone();
        drop(table);
        listeners.iter().filter_map(Weak::upgrade).for_each(|l| l.identified(index, id));
        Ok(())
    }

    /// Inserts an address; returns its index.
    pub fn insert(&self, addr: Addr) -> Result<fi_addr_t> {
        self.insert_as(addr, None)
    }

    /// [`insert`](Self::insert), with `id` reported by completions if given. A listener of the
    /// insertion querying it ([`id_of`](Self::id_of)) never gets the index instead, because the
    /// application may use this number for another peer.
    fn insert_as(&self, addr: Addr, id: Option<fi_addr_t>) -> Result<fi_addr_t> {
        if !addr.is_reachable() {
            return Err(Error::INVAL);
        }
        let addr = addr.identity();
        let _events = self.event_lock();
        if let Some(shared) = &self.shared {
            return self.insert_shared(shared, &addr, id);
        }
        let mut table = self.table();
        if let Some(&index) = table.index.get(&addr) {
            table.entries[index].uses += 1;
            let index = u64::from(index);
            if let Some(id) = id {
                self.identify(table, index, id)?;
            }
            return Ok(index);
        }
        table.make_space()?;
        let index = table.entries.insert(AvEntry {
            addr: addr.clone(),
            uses: 1,
            id: 0,
            behind_firewall: false,
        });
        table.entries[index].id = id.unwrap_or(table.default_id(index));
        table.index.insert(addr.clone(), index);
        let listeners = table.listeners.clone();
        drop(table);
        let index = u64::from(index);
        // Listeners are called without the table's lock, because endpoints look addresses up
        // under their own locks.
        for listener in listeners.iter().filter_map(Weak::upgrade) {
            listener.inserted(index, &addr);
        }
        Ok(index)
    }

    /// Inserts an address in a table shared by processes: it has its index in all of them. `event_lock`
    /// is held.
    fn insert_shared(
        &self,
        shared: &SharedAddrTable,
        addr: &Addr,
        id: Option<fi_addr_t>,
    ) -> Result<fi_addr_t> {
        let writer = shared.write()?;
        let mut table = self.table();
        table.catch_up(shared);
        let mut gone = None;
        let index = match table.index.get(addr).copied() {
            Some(index) if writer.use_again(index, addr)? => index,
            old => {
                let next = table.entries.slots() as u32;
                writer.append(next, addr)?;
                // Another process removed the address, and it comes again by another index.
                gone = old.and_then(|old| Some((old, table.retire(old)?)));
                table.catch_up(shared);
                if table.addr(next) != Some(addr) {
                    return Err(Error::IO);
                }
                next
            }
        };
        drop(writer);
        if let Some((old, addr)) = gone {
            let listeners = table.listeners.clone();
            drop(table);
            for listener in listeners.iter().filter_map(Weak::upgrade) {
                listener.removed(u64::from(old), &addr);
            }
            table = self.table();
        }
        let index = u64::from(index);
        match id {
            Some(id) => self.identify(table, index, id)?,
            None => drop(table),
        }
        self.notify_pending();
        Ok(index)
    }

    /// Removes an index once from a table shared by processes. An index of such a table is never
    /// reused. `event_lock` is held.
    fn remove_shared(&self, shared: &SharedAddrTable, index: u32) -> Result {
        let writer = shared.write()?;
        let mut table = self.table();
        table.catch_up(shared);
        table.addr(index).ok_or(Error::INVAL)?;
        if writer.release(index)? > 0 {
            return Ok(());
        }
        drop(writer);
        let addr = table.retire(index).ok_or(Error::INVAL)?;
        let listeners = table.listeners.clone();
        drop(table);
        for listener in listeners.iter().filter_map(Weak::upgrade) {
            listener.removed(u64::from(index), &addr);
        }
        Ok(())
    }

    /// Removes an index once; its address goes when it was removed as often as it was inserted.
    fn remove(&self, index: fi_addr_t) -> Result {
        let slot = u32::try_from(index).map_err(|_| Error::INVAL)?;
        let _events = self.event_lock();
        if let Some(shared) = &self.shared {
            return self.remove_shared(shared, slot);
        }
        let mut table = self.table();
        let entry = table.entries.get_mut(slot).ok_or(Error::INVAL)?;
        // Zero uses: another thread is removing the index already.
        entry.uses = entry.uses.checked_sub(1).ok_or(Error::INVAL)?;
        if entry.uses > 0 {
            return Ok(());
        }
        let addr = entry.addr.clone();
        table.index.remove(&addr);
        let listeners = table.listeners.clone();
        drop(table);
        for listener in listeners.iter().filter_map(Weak::upgrade) {
            listener.removed(index, &addr);
        }
        // The slot is freed last, so that the index is not given away while endpoints still use
        // it.
        self.table().entries.remove(slot);
        Ok(())
    }

    /// Inserts `addrs` and reports as requested by the call: each index in `out`, the number of
    /// successes as the result, or as an event if the vector was opened with FI_EVENT.
    ///
    /// # Safety
    /// `out` is null or has space for all of `addrs`; with FI_SYNC_ERR `context` points to as many
    /// ints.
    unsafe fn insert_all(
        &self,
        addrs: impl Iterator<Item = Result<Addr>>,
        out: *mut fi_addr_t,
        flags: u64,
        context: *mut c_void,
    ) -> Result<c_int> {
        const ALLOWED: u64 =
            abi::FI_MORE | abi::FI_SYNC_ERR | abi::FI_AV_USER_ID | abi::FI_FIREWALL_ADDR;
        if flags & !ALLOWED != 0 {
            return Err(Error::BADFLAGS);
        }
        let named = flags & abi::FI_AV_USER_ID != 0;
        if named && out.is_null() {
            return Err(Error::INVAL);
        }
        let sync = flags & abi::FI_SYNC_ERR != 0;
        if sync && context.is_null() {
            return Err(Error::INVAL);
        }
        let eq = if self.events { Some(self.event_queue()?) } else { None };
        let fid = FidPtr((&raw const self.c.fid).cast_mut());
        let mut inserted = 0;
        for (index, addr) in addrs.enumerate() {
            // SAFETY: by this function's contract.
            let id = if named { Some(unsafe { out.add(index).read() }) } else { None };
            let result = addr.and_then(|addr| {
                let index = self.insert_as(addr, id)?;
                if flags & abi::FI_FIREWALL_ADDR != 0 {
                    self.set_behind_firewall(index);
                }
                Ok(index)
            });
            // SAFETY: by this function's contract.
            unsafe {
                if !out.is_null() {
                    out.add(index).write(*result.as_ref().unwrap_or(&FI_ADDR_NOTAVAIL));
                }
                if sync {
                    let code = result.as_ref().err().map_or(0, |error| error.code());
                    context.cast::<c_int>().add(index).write(code);
                }
            }
            match (result, eq) {
                (Ok(_), _) => inserted += 1,
                (Err(error), Some(eq)) if !sync => {
                    eq.write(EqEvent::Error(crate::eq::EventError {
                        fid,
                        context: Context(context),
                        data: index as u64,
                        error,
                        prov_errno: error.code(),
                        err_data: Vec::new(),
                    }))
                }
                (Err(_), _) => {}
            }
        }
        match eq {
            None => Ok(inserted),
            Some(eq) => {
                eq.write(EqEvent::Done {
                    event: abi::FI_AV_COMPLETE as u32,
                    fid,
                    context: Context(context),
                    data: inserted as u64,
                });
                // An asynchronous insertion was started; the event has the count.
                Ok(0)
            }
        }
    }
}

/// Returns true if addresses of a format are IP addresses.
fn is_ip(format: u32) -> bool {
    let others = [abi::FI_ADDR_IB_UD, abi::FI_SOCKADDR_IB, abi::FI_ADDR_STR, abi::FI_FORMAT_UNSPEC];
    !others.iter().any(|other| *other as u32 == format)
}

/// Returns `name` with its last number increased by `by`, for the node names of fi_av_insertsym. An
/// IPv4 address counts as a number.
fn nth_name(name: &str, by: usize) -> Result<String> {
    if let Ok(ip) = name.parse::<std::net::Ipv4Addr>() {
        let by = u32::try_from(by).map_err(|_| Error::INVAL)?;
        let ip = u32::from(ip).checked_add(by).ok_or(Error::INVAL)?;
        return Ok(std::net::Ipv4Addr::from(ip).to_string());
    }
    let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
    let (stem, number) = name.split_at(name.len() - digits);
    if number.is_empty() {
        return if by == 0 { Ok(name.to_owned()) } else { Err(Error::INVAL) };
    }
    let value = number.parse::<usize>().map_err(|_| Error::INVAL)?;
    let value = value.checked_add(by).ok_or(Error::INVAL)?;
    Ok(format!("{stem}{value:0digits$}"))
}

/// Returns a C string of the caller.
///
/// # Safety
/// `text` is null or a C string outliving the result.
unsafe fn text<'a>(text: *const c_char) -> Result<Option<&'a str>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: by this function's contract.
    unsafe { CStr::from_ptr(text) }.to_str().map(Some).map_err(|_| Error::INVAL)
}

static FID_OPS: fi_ops = fi_ops { bind: Some(bind), ..fid_ops::<Av, _>() };

impl Object<fid_av> for Av {
    const CLASS: c_int = FI_CLASS_AV;
    const CLOSE: &'static str = "fi_close(av)";

    fn table() -> &'static fi_ops {
        &FID_OPS
    }

    fn base(&self) -> &Base {
        &self.base
    }

    fn closed(this: &mut Arc<Self>, fid: *mut fid) {
        if let Some(eq) = this.eq.get() {
            eq.forget(FidPtr(fid));
            eq.remove_user();
        }
    }
}

/// The calls of an address vector, without sets.
pub(crate) static AV_OPS: fi_ops_av = fi_ops_av {
    size: size_of::<fi_ops_av>(),
    insert: Some(insert),
    insertsvc: Some(insertsvc),
    insertsym: Some(insertsym),
    remove: Some(remove),
    lookup: Some(lookup),
    straddr: Some(straddr),
    av_set: enosys_stub(),
    insert_auth_key: enosys_stub(),
    lookup_auth_key: enosys_stub(),
    set_user_id: Some(set_user_id),
    lookup2: Some(lookup2),
};

// SAFETY of the entry points below: each is reachable only through the ops table
// of a vector that `open` made and `close` has not taken back, or with null.

unsafe extern "C" fn bind(fid: *mut fid, bfid: *mut fid, flags: u64) -> c_int {
    ffi_guard_if_memory("fi_av_bind", || {
        if bfid.is_null() {
            return Err(Error::INVAL);
        }
        if flags != 0 {
            return Err(Error::BADFLAGS);
        }
        // SAFETY: see above; the application binds an open event queue.
        let (av, eq) = unsafe { (Av::from_c(fid.cast())?, Eq::from_fid(bfid)?) };
        eq.add_user();
        av.eq.set(eq).map_err(|eq| {
            eq.remove_user();
            Error::INVAL
        })
    })
}

unsafe extern "C" fn insert(
    av: *mut fid_av,
    addrs: *const c_void,
    count: usize,
    out: *mut fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    ffi_guard_if_memory("fi_av_insert", || -> Result<c_int> {
        // SAFETY: see above.
        let av = unsafe { Av::from_c(av) }?;
        if count == 0 {
            return Ok(0);
        }
        if addrs.is_null() || count > c_int::MAX as usize {
            return Err(Error::INVAL);
        }
        // SAFETY: the caller gives `count` addresses of the vector's format.
        let addrs = unsafe { AddrList::new(av.format, addrs, count) };
        // SAFETY: `out` and `context` are the caller's, for `count` entries.
        unsafe { av.insert_all(addrs, out, flags, context) }
    })
}

unsafe extern "C" fn insertsvc(
    av: *mut fid_av,
    node: *const c_char,
    service: *const c_char,
    out: *mut fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    ffi_guard_if_memory("fi_av_insertsvc", || -> Result<c_int> {
        // SAFETY: see above; the names are C strings of the caller's.
        let (av, node, service) = unsafe { (Av::from_c(av)?, text(node)?, text(service)?) };
        if !av.is_ip() {
            // No name service knows queue pairs, ports of theirs, or names of endpoints.
            return Err(Error::NOSYS);
        }
        let first = match (node, service) {
            (Some(node), Some(service)) => addr::resolve(node, service, av.format).map(Addr::Ip),
            // An address string (FI_ADDR_STR) has the port as well.
            (Some(node), None) => {
                let addr = Addr::from_hints(node.as_bytes(), abi::FI_ADDR_STR as u32)?;
                if addr.is_of(av.format) { Ok(addr) } else { Err(Error::INVAL) }
            }
            (None, _) => return Err(Error::INVAL),
        };
        // SAFETY: `out` and `context` are the caller's, for one entry.
        unsafe { av.insert_all(std::iter::once(first), out, flags, context) }
    })
}

unsafe extern "C" fn insertsym(
    av: *mut fid_av,
    node: *const c_char,
    nodes: usize,
    service: *const c_char,
    services: usize,
    out: *mut fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    ffi_guard_if_memory("fi_av_insertsym", || -> Result<c_int> {
        // SAFETY: see above; the names are C strings of the caller's.
        let (av, node, service) = unsafe { (Av::from_c(av)?, text(node)?, text(service)?) };
        if !av.is_ip() {
            // No name service knows queue pairs, ports of theirs, or names of endpoints.
            return Err(Error::NOSYS);
        }
        let (Some(node), Some(service)) = (node, service) else { return Err(Error::INVAL) };
        let count = nodes.checked_mul(services).ok_or(Error::INVAL)?;
        if count > c_int::MAX as usize {
            return Err(Error::INVAL);
        }
        let addrs = (0..count).map(|n| {
            let node = nth_name(node, n / services)?;
            let service = nth_name(service, n % services)?;
            addr::resolve(&node, &service, av.format).map(Addr::Ip)
        });
        // SAFETY: `out` and `context` are the caller's, for `count` entries.
        unsafe { av.insert_all(addrs, out, flags, context) }
    })
}

unsafe extern "C" fn remove(
    av: *mut fid_av,
    addrs: *mut fi_addr_t,
    count: usize,
    flags: u64,
) -> c_int {
    ffi_guard("fi_av_remove", || {
        // SAFETY: see above.
        let av = unsafe { Av::from_c(av) }?;
        if flags != 0 {
            return Err(Error::BADFLAGS);
        }
        if addrs.is_null() && count > 0 {
            return Err(Error::INVAL);
        }
        let mut result = Ok(());
        for index in 0..count {
            // SAFETY: the caller gives `count` addresses.
            let removed = av.remove(unsafe { *addrs.add(index) });
            result = result.and(removed);
        }
        result
    })
}

unsafe fn copy_addr(
    av: *mut fid_av,
    index: fi_addr_t,
    buf: *mut c_void,
    len: *mut usize,
) -> Result {
    // SAFETY: as for the entry points.
    let av = unsafe { Av::from_c(av) }?;
    if len.is_null() {
        return Err(Error::INVAL);
    }
    av.observe_others();
    let bytes = av.get(index)?.to_bytes();
    // SAFETY: the caller's buffer has `*len` bytes.
    unsafe { crate::scoped_buf::copy_out(&bytes, buf, len) };
    Ok(())
}

unsafe extern "C" fn lookup(
    av: *mut fid_av,
    index: fi_addr_t,
    buf: *mut c_void,
    len: *mut usize,
) -> c_int {
    // SAFETY: see above.
    ffi_guard("fi_av_lookup", || unsafe { copy_addr(av, index, buf, len) })
}

unsafe extern "C" fn lookup2(
    av: *mut fid_av,
    index: fi_addr_t,
    buf: *mut c_void,
    len: *mut usize,
    flags: u64,
    _ctx: *mut abi::fid_xpu_ctx,
) -> c_int {
    ffi_guard("fi_av_lookup2", || {
        if flags != 0 {
            return Err(Error::BADFLAGS);
        }
        // SAFETY: see above.
        unsafe { copy_addr(av, index, buf, len) }
    })
}

unsafe extern "C" fn straddr(
    av: *mut fid_av,
    addr: *const c_void,
    buf: *mut c_char,
    len: *mut usize,
) -> *const c_char {
    if buf.is_null() || len.is_null() {
        return std::ptr::null();
    }
    // SAFETY: `addr` is an address of the vector's format; `buf` has `*len` bytes.
    unsafe {
        let text = match Av::from_c(av) {
            Ok(av) if !av.is_ip() && !addr.is_null() => addr::string_or_bytes(av.format, addr)
                .ok()
                .map(|bytes| match Addr::read(av.format, bytes) {
                    Ok(Addr::Link(link)) => link.to_string(),
                    _ => ofi::info::tostr::address(av.format, Some(bytes)),
                }),
            _ => addr::from_ptr(addr).ok().map(|addr| addr::to_text(&addr)),
        };
        let Some(text) = text else { return std::ptr::null() };
        let mut text = text.into_bytes();
        text.push(0);
        let capacity = *len;
        // `*len` becomes what was needed; cut text ends in a NUL too.
        if !crate::scoped_buf::copy_out(&text, buf.cast(), len) && capacity > 0 {
            buf.add(capacity - 1).write(0);
        }
        buf
    }
}

unsafe extern "C" fn set_user_id(
    av: *mut fid_av,
    addr: fi_addr_t,
    id: fi_addr_t,
    flags: u64,
) -> c_int {
    ffi_guard("fi_av_set_user_id", || {
        if flags != 0 {
            return Err(Error::BADFLAGS);
        }
        // SAFETY: see above.
        let av = unsafe { Av::from_c(av) }?;
        // Only a vector opened with FI_AV_USER_ID has ids.
        if av.table().user_ids { av.set_id(addr, id) } else { Err(Error::NOSYS) }
    })
}

#[cfg(test)]
mod tests;
