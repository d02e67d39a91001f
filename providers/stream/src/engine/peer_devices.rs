//! Allocations of devices shared with the peer of a connection (FI_HMEM), and the buffer of the peer
//! being copied.
use super::device_export::{DeviceExports, DevicePlan};
use super::device_send::DeviceSend;
use crate::transport::ShmLink;
use ofi_provider::device::BouncePool;
use ofi_provider::device_sharing::MappedAllocation;
use std::collections::HashMap;
use std::sync::Arc;

/// Allocations shared with the peer of a connection.
#[derive(Debug, Default)]
pub(super) struct PeerDevices {
    exports: DeviceExports,
    /// Allocations of the peer mapped by this process, by number.
    pub(super) mapped: HashMap<u32, Arc<MappedAllocation>>,
    /// Buffer of the peer being copied.
    pub(super) fetch: Option<DeviceFetch>,
}

/// Way of the bytes of a peer's buffer.
#[derive(Debug)]
pub(super) enum FetchWay {
    /// To memory of a device: the copies are in the message's
    /// [`DeviceRecv`](super::device_recv::DeviceRecv).
    Direct,
    /// Through bounce buffers.
    Staged(Box<DeviceSend>),
    /// Nowhere.
    Dropped,
}

/// Buffer of a peer being copied.
#[derive(Debug)]
pub(super) struct DeviceFetch {
    pub(super) way: FetchWay,
    pub(super) len: usize,
    /// Bytes taken by the message's target.
    pub(super) done: usize,
    /// Allocation with the buffer, mapped until the end of the copies.
    _mapped: Arc<MappedAllocation>,
}

impl DeviceFetch {
    pub(super) fn new(way: FetchWay, len: usize, mapped: &Arc<MappedAllocation>) -> Self {
        Self { way, len, done: 0, _mapped: mapped.clone() }
    }
}

/// Decides once how the bytes of a message in memory of devices are sent over a link, if there are
/// at least `least`. `devices` are the allocations shared with its peer.
pub(super) fn plan<L: ShmLink>(
    devices: &mut Option<Box<PeerDevices>>,
    link: &L,
    send: &mut DeviceSend,
    pool: &BouncePool,
    least: usize,
) {
    if send.is_planned() {
        return;
    }
    let channel = link.device_channel().filter(|_| send.len() >= least && pool.shares());
    let plan = match (channel, send.parts()) {
        (Some(channel), Some(parts)) => {
            let exports = &mut devices.get_or_insert_default().exports;
            exports.plan(&parts, |number| channel.allocation_is_mapped(number))
        }
        _ => DevicePlan::COPIES,
    };
    let (DevicePlan::Copies(cells) | DevicePlan::Buffers(cells)) = plan;
    send.set_cells(cells);
}
