//! Conversion of Rust traits to C ops tables.
//!
//! A provider implements [`Fabric`], [`Domain`], [`Endpoint`] (with [`Msg`], [`Tagged`], [`Rma`],
//! [`Atomic`] and [`Cm`]) and [`PassiveEp`]. The tables here are made from such an implementation
//! by monomorphisation. A call goes directly to the provider's method, after the checks common to
//! all providers: null pointers, flags, state, buffer capacity. A call without an implementation
//! returns -FI_ENOSYS.
//!
//! Objects are reference-counted: fi_close of a fabric, domain, queue or vector in use returns
//! -FI_EBUSY. Closing twice is an error of the caller and not detected here: after fi_close the
//! memory is freed.
mod atomic;
mod bindings;
mod collective;
mod connreq;
mod domain;
mod domain_fid;
mod ep;
mod fabric;
mod fabric_fid;
mod group_send;
mod imported;
mod join;
mod mc;
mod multicast;
mod new_domain;
mod opened;
mod peer_transfer;
mod pep;
mod rma;
mod scalable;
mod sep;
mod settings;
mod srx_fids;
mod stx;
mod traits;
mod trigger;
mod unsupported;

pub use crate::attr::{ContextAttr, RxAttr, TxAttr};
pub use crate::mcast::GroupRole;
pub use crate::operation::{
    AtomicOp, FastSend, ReadOp, RecvOp, RemoteSegment, RemoteSegments, SendOp, WriteOp,
};
pub use crate::reserved::{MULTICAST_ADDR, is_group};
pub use bindings::Bindings;
pub use connreq::{ConnRequest, EndpointRequest, request_of_endpoint, take_request};
pub use domain_fid::DomainFid;
pub use ep::EpFid;
pub use fabric::{getinfo_entry, open_fabric};
pub use fabric_fid::FabricFid;
pub use new_domain::NewDomain;
pub use pep::{ConnReqReporter, NoPassiveEp, PepFid, passive_name};
pub use settings::{DomainSettings, domain_key, endpoint_key, local_addr, refuse_keys};
pub use traits::{
    Atomic, Cm, Domain, Endpoint, Fabric, Getinfo, Msg, PassiveEp, Reject, Rma, Tagged, destination,
};
