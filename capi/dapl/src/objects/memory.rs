//! Protection zones, registered memory, and windows into it.
use crate::answer::*;
use crate::fabric::*;
use crate::handles::HandleTable;
use crate::layout::*;
use crate::store::{Handles, OfAdaptor};
use std::collections::HashMap;
use std::sync::Arc;

/// A protection zone.
pub(crate) struct DatPz {
    pub(crate) ia: Handle,
    uses: usize,
}

/// Registered memory.
pub(crate) struct DatLmr {
    pub(crate) ia: Handle,
    pub(crate) pz: Handle,
    pub(crate) address: u64,
    pub(crate) length: u64,
    pub(crate) privileges: u32,
    pub(crate) mem_type: u32,
    pub(crate) key: u32,
    /// Key for peers; 0 without remote access.
    pub(crate) remote_key: u32,
    region: FabricRegion,
    uses: usize,
}

/// A window into registered memory.
pub(crate) struct DatRmr {
    pub(crate) ia: Handle,
    pub(crate) pz: Handle,
    pub(crate) bound: Option<(Triplet, u32, u32)>,
    lmr: Handle,
    region: Option<FabricRegion>,
}

impl OfAdaptor for DatPz {
    fn ia(&self) -> Handle {
        self.ia
    }
}

impl OfAdaptor for DatLmr {
    fn ia(&self) -> Handle {
        self.ia
    }
}

impl OfAdaptor for DatRmr {
    fn ia(&self) -> Handle {
        self.ia
    }
}

/// Zones and memory of all adaptors.
#[derive(Default)]
pub(crate) struct DatMemory {
    pzs: Handles<DatPz>,
    lmrs: Handles<DatLmr>,
    rmrs: Handles<DatRmr>,
    /// Registered memory by keys.
    keys: HashMap<u32, Handle>,
    next_key: u32,
}

impl DatMemory {
    pub(crate) fn pz(&self, pz: Handle) -> Option<&DatPz> {
        self.pzs.get(pz)
    }

    pub(crate) fn lmr(&self, lmr: Handle) -> Option<&DatLmr> {
        self.lmrs.get(lmr)
    }

    pub(crate) fn rmr(&self, rmr: Handle) -> Option<&DatRmr> {
        self.rmrs.get(rmr)
    }

    /// Returns true if an adaptor has zones.
    pub(crate) fn has_of(&self, ia: Handle) -> bool {
        self.pzs.has_of(ia)
    }

    /// Closes the windows of an adaptor.
    pub(crate) fn close_windows_of(&mut self, handles: &mut HandleTable, ia: Handle) {
        self.rmrs.close_of(handles, ia);
    }

    /// Closes the regions and zones of an adaptor.
    pub(crate) fn close_of(&mut self, handles: &mut HandleTable, ia: Handle) {
        self.lmrs.close_of(handles, ia);
        self.pzs.close_of(handles, ia);
        self.keys.retain(|_, lmr| self.lmrs.contains(*lmr));
    }

    /// Returns the adaptor of a zone.
    pub(crate) fn ia_of_pz(&mut self, pz: Handle) -> DatResult<Handle> {
        Ok(self.pzs.find(pz, HANDLE_PZ)?.ia)
    }

    /// Returns the zone of a window.
    pub(crate) fn pz_of_rmr(&mut self, rmr: Handle) -> DatResult<Handle> {
        Ok(self.rmrs.find(rmr, HANDLE_RMR)?.pz)
    }

    pub(crate) fn pz_create(
        &mut self,
        handles: &mut HandleTable,
        (ia, provider): (Handle, usize),
    ) -> Handle {
        self.pzs.open(handles, (HandleKind::Pz, provider), DatPz { ia, uses: 0 })
    }

    pub(crate) fn pz_free(&mut self, handles: &mut HandleTable, pz: Handle) -> DatResult {
        if self.pzs.find(pz, HANDLE_PZ)?.uses > 0 {
            return error(INVALID_STATE, STATE_PZ_IN_USE);
        }
        self.pzs.close(handles, pz);
        Ok(())
    }

    pub(crate) fn use_pz(&mut self, ia: Handle, pz: Handle) -> DatResult {
        let found = self.pzs.find(pz, HANDLE_PZ)?;
        if found.ia != ia {
            return error(INVALID_HANDLE, HANDLE_PZ);
        }
        found.uses += 1;
        Ok(())
    }

    pub(crate) fn leave_pz(&mut self, pz: Handle) {
        if let Some(pz) = self.pzs.get_mut(pz) {
            pz.uses = pz.uses.saturating_sub(1);
        }
    }

    /// Registers memory. Returns a unique 32-bit key, and the key used by peers. They may differ: a
    /// device chooses the second, and two devices may choose the same.
    fn register(
        &mut self,
        domain: &Arc<FabricDomain>,
        address: u64,
        length: u64,
        privileges: u32,
    ) -> DatResult<(FabricRegion, u32, u32)> {
        use ofi::abi::{FI_READ, FI_RECV, FI_REMOTE_READ, FI_REMOTE_WRITE, FI_SEND, FI_WRITE};
        let mut access = FI_SEND | FI_WRITE;
        if privileges & PRIV_LOCAL_WRITE != 0 {
            access |= FI_RECV | FI_READ;
        }
        if privileges & PRIV_REMOTE_READ != 0 {
            access |= FI_REMOTE_READ;
        }
        if privileges & PRIV_REMOTE_WRITE != 0 {
            access |= FI_REMOTE_WRITE;
        }
        loop {
            self.next_key = self.next_key.wrapping_add(1).max(1);
            if !self.keys.contains_key(&self.next_key) {
                break;
            }
        }
        let region = FabricRegion::register(domain, address, length, access, self.next_key)
            .map_err(|code| match code {
                libc::EINVAL | libc::EFAULT => DatError(INVALID_PARAMETER | (ARG_1 + 2)),
                _ => DatError(INSUFFICIENT_RESOURCES | RESOURCE_MEMORY_REGION),
            })?;
        // a region that peers may not touch need not have a key for them
        let remote = privileges & (PRIV_REMOTE_READ | PRIV_REMOTE_WRITE) != 0;
        match u32::try_from(region.key()) {
            Ok(key) => Ok((region, self.next_key, key)),
            Err(_) if !remote => Ok((region, self.next_key, 0)),
            Err(_) => error(INTERNAL_ERROR, 0),
        }
    }

    #[allow(clippy::too_many_arguments, reason = "the call has them")]
    pub(crate) fn lmr_create(
        &mut self,
        handles: &mut HandleTable,
        (ia, provider, domain): (Handle, usize, &Arc<FabricDomain>),
        mem_type: u32,
        region: RegionDescription,
        length: u64,
        pz: Handle,
        privileges: u32,
        va_type: u32,
    ) -> DatResult<Handle> {
        let (mut address, mut length) = (region.first as u64, length);
        match mem_type {
            0 => {}
            1 => {
                let of = self.lmrs.find(region.first, HANDLE_LMR)?;
                (address, length) = (of.address, of.length);
            }
            2 => return error(MODEL_NOT_SUPPORTED, 0),
            _ => return bad_argument(2),
        }
        if va_type != 0 {
            return if va_type == 1 { error(MODEL_NOT_SUPPORTED, 0) } else { bad_argument(7) };
        }
        if privileges & !PRIV_ALL != 0 {
            return bad_argument(6);
        }
        if length == 0 || address == 0 || address.checked_add(length).is_none() {
            return bad_argument(if length == 0 { 4 } else { 3 });
        }
        self.use_pz(ia, pz)?;
        let made = self.register(domain, address, length, privileges);
        let (region, key, remote_key) = match made {
            Ok(made) => made,
            Err(error) => {
                self.leave_pz(pz);
                return Err(error);
            }
        };
        let uses = 0;
        let lmr =
            DatLmr { ia, pz, address, length, privileges, mem_type, key, remote_key, region, uses };
        let lmr = self.lmrs.open(handles, (HandleKind::Lmr, provider), lmr);
        self.keys.insert(key, lmr);
        Ok(lmr)
    }

    pub(crate) fn lmr_free(&mut self, handles: &mut HandleTable, lmr: Handle) -> DatResult {
        let found = self.lmrs.find(lmr, HANDLE_LMR)?;
        if found.uses > 0 {
            return error(INVALID_STATE, STATE_LMR_IN_USE);
        }
        let (key, pz) = (found.key, found.pz);
        self.keys.remove(&key);
        self.lmrs.close(handles, lmr);
        self.leave_pz(pz);
        Ok(())
    }

    /// The segments of an application as the provider takes them, and their length in sum.
    pub(crate) fn pieces(
        &self,
        (ia, pz): (Handle, Handle),
        iov: &[Triplet],
        privilege: u32,
    ) -> DatResult<(LocalPieces, u32)> {
        let (mut all, mut total) = (LocalPieces::default(), 0u32);
        let (write, subtypes) = (
            privilege == PRIV_LOCAL_WRITE,
            [(PROTECTION_READ, PRIVILEGES_READ), (PROTECTION_WRITE, PRIVILEGES_WRITE)],
        );
        let (protection, privileges) = subtypes[usize::from(write)];
        for segment in iov.iter().filter(|segment| segment.segment_length > 0) {
            let lmr = self.keys.get(&segment.context).and_then(|lmr| self.lmrs.get(*lmr));
            let Some(lmr) = lmr.filter(|lmr| lmr.ia == ia) else {
                return error(PRIVILEGES_VIOLATION, privileges);
            };
            if lmr.pz != pz {
                return error(PROTECTION_VIOLATION, protection);
            }
            // as with devices, the right to register memory includes reading it
            if write && lmr.privileges & privilege == 0 {
                return error(PRIVILEGES_VIOLATION, privileges);
            }
            let inside = segment.virtual_address.checked_sub(lmr.address).is_some_and(|offset| {
                offset <= lmr.length && u64::from(segment.segment_length) <= lmr.length - offset
            });
            if !inside {
                return bad_argument(3);
            }
            let Some(sum) = total.checked_add(segment.segment_length) else {
                return bad_argument(3);
            };
            total = sum;
            all.pieces[all.count] = LocalPiece {
                address: segment.virtual_address,
                length: segment.segment_length,
                descriptor: lmr.region.descriptor(),
            };
            all.count += 1;
        }
        Ok((all, total))
    }

    pub(crate) fn rmr_create(
        &mut self,
        handles: &mut HandleTable,
        pz: Handle,
        provider: impl FnOnce(Handle) -> usize,
    ) -> DatResult<Handle> {
        let ia = self.pzs.find(pz, HANDLE_PZ)?.ia;
        self.use_pz(ia, pz)?;
        let rmr = DatRmr { ia, pz, bound: None, lmr: 0, region: None };
        Ok(self.rmrs.open(handles, (HandleKind::Rmr, provider(ia)), rmr))
    }

    fn unbind(&mut self, rmr: Handle) {
        let Some(found) = self.rmrs.get_mut(rmr) else { return };
        found.region = None;
        found.bound = None;
        let lmr = std::mem::take(&mut found.lmr);
        if let Some(lmr) = self.lmrs.get_mut(lmr) {
            lmr.uses = lmr.uses.saturating_sub(1);
        }
    }

    pub(crate) fn rmr_free(&mut self, handles: &mut HandleTable, rmr: Handle) -> DatResult {
        let pz = self.rmrs.find(rmr, HANDLE_RMR)?.pz;
        self.unbind(rmr);
        self.rmrs.close(handles, rmr);
        self.leave_pz(pz);
        Ok(())
    }

    /// Makes a part of a region known under a key of its own, or no longer with a length of 0.
    /// Returns the key.
    pub(crate) fn bind(
        &mut self,
        rmr: Handle,
        lmr: Handle,
        triplet: Triplet,
        privileges: u32,
        domain: &Arc<FabricDomain>,
    ) -> DatResult<u32> {
        let pz = self.rmrs.find(rmr, HANDLE_RMR)?.pz;
        let mut context = 0;
        if triplet.segment_length == 0 {
            self.unbind(rmr);
        } else {
            let of = self.lmrs.find(lmr, HANDLE_LMR)?;
            if of.pz != pz {
                return error(PROTECTION_VIOLATION, PROTECTION_READ);
            }
            if privileges & PRIV_REMOTE_WRITE != 0 && of.privileges & PRIV_LOCAL_WRITE == 0 {
                return error(PRIVILEGES_VIOLATION, PRIVILEGES_WRITE);
            }
            let (length, at) = (u64::from(triplet.segment_length), triplet.virtual_address);
            let inside = at
                .checked_sub(of.address)
                .is_some_and(|offset| offset <= of.length && length <= of.length - offset);
            if !inside {
                return bad_argument(3);
            }
            let (region, _, key) = self.register(domain, at, length, privileges)?;
            self.unbind(rmr);
            self.lmrs.find(lmr, HANDLE_LMR)?.uses += 1;
            let found = self.rmrs.find(rmr, HANDLE_RMR)?;
            (found.lmr, found.region) = (lmr, Some(region));
            found.bound = Some((triplet, privileges, key));
            context = key;
        }
        Ok(context)
    }
}
