//! Tables of calls unsupported by an endpoint, permanently or before it is enabled.
use crate::abi::{
    FI_ENOSYS, FI_EOPBADSTATE, fi_ops_atomic, fi_ops_cm, fi_ops_collective, fi_ops_ep, fi_ops_msg,
    fi_ops_rma, fi_ops_tagged,
};
use crate::fid::Slot;

/// Defines tables with all calls returning one error code.
macro_rules! unsupported {
    ($($(#[$doc:meta])* $table:ident: $ops:ident = $code:ident, $slots:tt;)+) => {
        $(unsupported!(@ $(#[$doc])* $table $ops $code $slots);)+
    };
    (@ $(#[$doc:meta])* $table:ident $ops:ident $code:ident [$($slot:ident)+]) => {
        $(#[$doc])*
        pub(crate) static $table: $ops = $ops {
            size: size_of::<$ops>(),
            $($slot: <_ as Slot<{ $code }>>::REFUSING,)+
        };
    };
}

unsupported! {
    /// Table of an object representing something shared: it has no calls.
    NO_EP: fi_ops_ep = FI_ENOSYS,
        [cancel getopt setopt tx_ctx rx_ctx rx_size_left tx_size_left export_xpu];
    /// Names and connections of such an object.
    NO_CM: fi_ops_cm = FI_ENOSYS,
        [setname getname getpeer connect listen accept reject shutdown join];
    /// Message calls not in the endpoint's capabilities.
    NO_MSG: fi_ops_msg = FI_ENOSYS,
        [recv recvv recvmsg send sendv sendmsg inject senddata injectdata];
    /// Tagged message calls not in the endpoint's capabilities.
    NO_TAGGED: fi_ops_tagged = FI_ENOSYS,
        [recv recvv recvmsg send sendv sendmsg inject senddata injectdata];
    /// Message calls on an endpoint not enabled yet.
    NOT_ENABLED_MSG: fi_ops_msg = FI_EOPBADSTATE,
        [recv recvv recvmsg send sendv sendmsg inject senddata injectdata];
    /// Tagged message calls on an endpoint not enabled yet.
    NOT_ENABLED_TAGGED: fi_ops_tagged = FI_EOPBADSTATE,
        [recv recvv recvmsg send sendv sendmsg inject senddata injectdata];
    /// The table of endpoints without remote memory access.
    NO_RMA: fi_ops_rma = FI_ENOSYS,
        [read readv readmsg write writev writemsg inject writedata injectdata];
    /// The table of endpoints without atomic operations.
    NO_ATOMIC: fi_ops_atomic = FI_ENOSYS, [
        write writev writemsg inject readwrite readwritev readwritemsg compwrite compwritev
        compwritemsg writevalid readwritevalid compwritevalid
    ];
    /// The table of endpoints without collective operations.
    NO_COLLECTIVE: fi_ops_collective = FI_ENOSYS, [
        barrier broadcast alltoall allreduce allgather reduce_scatter reduce scatter gather msg
        barrier2
    ];
}
