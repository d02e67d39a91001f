//! The memory of a request, in segments as the device takes them.
use super::request::UsedRegions;
use super::state::VerbsEngine;
use crate::sys::Sge;
use ofi_provider::buf::{IOV_LIMIT, Local, LocalSegment};
use ofi_provider::error::{Error, Result};

impl VerbsEngine {
    /// Fills `sges` with the non-empty segments. Returns their number, and the regions to be held
    /// until the operation is complete: memory without a descriptor is registered with this
    /// `right`, unless it is sent `inline`.
    #[inline(always)]
    pub(super) fn segments(
        &self,
        segments: Local<'_>,
        sges: &mut [Sge; IOV_LIMIT],
        inline: bool,
        right: u32,
    ) -> Result<(usize, UsedRegions)> {
        if let Some(LocalSegment { addr, len, desc }) = segments.only() {
            if len > 0 && (inline || desc != 0) {
                sges[0] = Sge { addr: addr as u64, length: len as u32, lkey: desc as u32 };
                return Ok((1, None));
            }
        }
        self.other_segments(segments, sges, inline, right)
    }

    /// Does the same as [`VerbsEngine::segments`], for more than one segment or without a
    /// descriptor.
    #[inline(never)]
    fn other_segments(
        &self,
        segments: Local<'_>,
        sges: &mut [Sge; IOV_LIMIT],
        inline: bool,
        right: u32,
    ) -> Result<(usize, UsedRegions)> {
        let (mut count, mut regions) = (0, Vec::new());
        for segment in segments.filter(|segment| segment.len > 0) {
            let lkey = match segment.desc {
                _ if inline => 0,
                0 => {
                    let (lkey, region) = self.memory.get(segment.addr, segment.len, right)?;
                    regions.extend(region);
                    lkey
                }
                desc => desc as u32,
            };
            let sge = sges.get_mut(count).ok_or(Error::INVAL)?;
            *sge = Sge { addr: segment.addr as u64, length: segment.len as u32, lkey };
            count += 1;
        }
        Ok((count, (!regions.is_empty()).then(|| regions.into_boxed_slice())))
    }
}
