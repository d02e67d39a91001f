//! Wrappers of libibverbs and librdmacm: only this module of the provider calls them. Objects close
//! when they are dropped, and each holds a reference to its parent.
//!
//! [`device`] has devices, protection domains and memory regions, [`cq`] completion queues, [`qp`]
//! queue pairs and requests, and [`cm`] connections.
mod cm;
mod cq;
mod device;
mod qp;
mod ret;

pub(crate) use cm::{Channel, CmEvent, CmId, CmKind};
pub(crate) use cq::{CompChannel, HwCq, WorkDone, bunch, status, status_text};
pub(crate) use device::{DeviceEvent, IbvRegion, Pd, VerbsDevice, access};
pub(crate) use qp::{Qp, QpSpec, Sge, Srq, UdAddressHandle, UdQp, Verb, WorkFlags, WorkRequest};
