//! View of a call for a hook: the call itself, its object, and its arguments in the form common to
//! all calls of a kind.
use crate::abi::*;
use crate::info::version;
use core::ffi::c_void;
use core::ptr;
use libc::iovec;

/// Declares the calls: the name of the API without `fi_`.
macro_rules! ops {
    ($($op:ident = $name:literal,)+) => {
        /// A call of the API.
        #[allow(missing_docs, reason = "each is the call fi_NAME")]
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum HookOp { $($op,)+ }

        impl HookOp {
            /// All calls, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$op),+];

            /// The name of the API, without `fi_`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$op => $name,)+ }
            }
        }
    };
}

ops! {
    Recv = "recv", Recvv = "recvv", Recvmsg = "recvmsg",
    Send = "send", Sendv = "sendv", Sendmsg = "sendmsg",
    Inject = "inject", Senddata = "senddata", Injectdata = "injectdata",
    Read = "read", Readv = "readv", Readmsg = "readmsg",
    Write = "write", Writev = "writev", Writemsg = "writemsg",
    InjectWrite = "inject_write", Writedata = "writedata", InjectWritedata = "inject_writedata",
    Trecv = "trecv", Trecvv = "trecvv", Trecvmsg = "trecvmsg",
    Tsend = "tsend", Tsendv = "tsendv", Tsendmsg = "tsendmsg",
    Tinject = "tinject", Tsenddata = "tsenddata", Tinjectdata = "tinjectdata",
    CqRead = "cq_read", CqReadfrom = "cq_readfrom", CqReaderr = "cq_readerr",
    CqSread = "cq_sread", CqSreadfrom = "cq_sreadfrom", CqSignal = "cq_signal",
    CntrRead = "cntr_read", CntrReaderr = "cntr_readerr", CntrAdd = "cntr_add",
    CntrSet = "cntr_set", CntrWait = "cntr_wait", CntrAdderr = "cntr_adderr",
    CntrSeterr = "cntr_seterr",
    // The calls up to here are those of the fast path.
    Atomic = "atomic", Atomicv = "atomicv", Atomicmsg = "atomicmsg",
    InjectAtomic = "inject_atomic",
    FetchAtomic = "fetch_atomic", FetchAtomicv = "fetch_atomicv",
    FetchAtomicmsg = "fetch_atomicmsg",
    CompareAtomic = "compare_atomic", CompareAtomicv = "compare_atomicv",
    CompareAtomicmsg = "compare_atomicmsg",
    Atomicvalid = "atomicvalid", FetchAtomicvalid = "fetch_atomicvalid",
    CompareAtomicvalid = "compare_atomicvalid",
    Barrier = "barrier", Barrier2 = "barrier2", Broadcast = "broadcast", Alltoall = "alltoall",
    Allreduce = "allreduce", Allgather = "allgather", ReduceScatter = "reduce_scatter",
    Reduce = "reduce", Scatter = "scatter", Gather = "gather", Collective = "collective",
    Close = "close", Bind = "bind", Control = "control", OpenOps = "open_ops", Tostr = "tostr",
    SetOps = "set_ops",
    Domain = "domain", Domain2 = "domain2", PassiveEp = "passive_ep", EqOpen = "eq_open",
    WaitOpen = "wait_open", Trywait = "trywait",
    AvOpen = "av_open", CqOpen = "cq_open", Endpoint = "endpoint", Endpoint2 = "endpoint2",
    ScalableEp = "scalable_ep", CntrOpen = "cntr_open", PollOpen = "poll_open",
    StxContext = "stx_context", SrxContext = "srx_context",
    QueryAtomic = "query_atomic", QueryCollective = "query_collective", XpuCtx = "xpu_ctx",
    MrReg = "mr_reg", MrRegv = "mr_regv", MrRegattr = "mr_regattr",
    Cancel = "cancel", Getopt = "getopt", Setopt = "setopt",
    TxContext = "tx_context", RxContext = "rx_context",
    RxSizeLeft = "rx_size_left", TxSizeLeft = "tx_size_left", EpExportXpu = "ep_export_xpu",
    Setname = "setname", Getname = "getname", Getpeer = "getpeer", Connect = "connect",
    Listen = "listen", Accept = "accept", Reject = "reject", Shutdown = "shutdown",
    Join = "join",
    AvInsert = "av_insert", AvInsertsvc = "av_insertsvc", AvInsertsym = "av_insertsym",
    AvRemove = "av_remove", AvLookup = "av_lookup", AvStraddr = "av_straddr", AvSet = "av_set",
    AvInsertAuthKey = "av_insert_auth_key", AvLookupAuthKey = "av_lookup_auth_key",
    AvSetUserId = "av_set_user_id", AvLookup2 = "av_lookup2",
    AvSetUnion = "av_set_union", AvSetIntersect = "av_set_intersect", AvSetDiff = "av_set_diff",
    AvSetInsert = "av_set_insert", AvSetRemove = "av_set_remove", AvSetAddr = "av_set_addr",
    CqStrerror = "cq_strerror", CqExportXpu = "cq_export_xpu", CntrExportXpu = "cntr_export_xpu",
    EqRead = "eq_read", EqReaderr = "eq_readerr", EqWrite = "eq_write", EqSread = "eq_sread",
    EqStrerror = "eq_strerror",
    Poll = "poll", PollAdd = "poll_add", PollDel = "poll_del", Wait = "wait",
}

/// A call on its way through a hook.
///
/// Pointers are the program's own, valid for the call and only as far as the
/// manual pages say; the accessors of this module follow them.
#[derive(Clone, Copy)]
pub struct HookCall {
    /// Kind of call.
    pub op: HookOp,
    /// The object as the program knows it; after a close only its address counts.
    pub object: *const fid,
    /// Format of the object's entries or addresses: of a completion queue, its `fi_cq_format`; of
    /// an endpoint, its address format.
    pub format: u32,
    /// API version requested by the program, 0 if unknown.
    pub api_version: u32,
    /// The arguments.
    pub args: Args,
}

/// Arguments of a call, by kind; those not used by any hook are [`Args::None`].
#[derive(Clone, Copy)]
pub enum Args {
    /// No argument used by a hook.
    None,
    /// A transfer.
    Transfer(TransferArgs),
    /// Completions are read: the buffer, and the buffer of their sources if requested.
    Completions(*const c_void, *const fi_addr_t),
    /// An error is read.
    Error(*const fi_cq_err_entry),
    /// A counter is waited for: threshold and time in ms.
    Threshold(u64, i32),
    /// An address is set or asked for.
    Address(*const c_void),
    /// Another object is bound, with these flags.
    Bind(*const fid, u64),
    /// A region is registered.
    Region(RegionArgs),
    /// An object is opened.
    Open(OpenArgs),
}

/// Arguments of a send, receive, read or write.
#[derive(Clone, Copy)]
pub struct TransferArgs {
    /// Local memory.
    pub pieces: Pieces,
    /// The peer.
    pub addr: fi_addr_t,
    /// Remote completion data, if there is any.
    pub data: u64,
    /// Flags of the call.
    pub flags: u64,
    /// The tag, of tagged transfers.
    pub tag: u64,
    /// Ignored bits of the tag, for tagged receives.
    pub ignore: u64,
    /// Remote memory, of remote accesses.
    pub raddr: u64,
    /// The region's key.
    pub key: u64,
    /// The request's context.
    pub context: *mut c_void,
}

impl TransferArgs {
    /// The arguments of a transfer with one local buffer.
    pub(crate) const fn of(buf: *const c_void, len: usize, addr: fi_addr_t) -> Self {
        Self::new(Pieces::One(buf, len), addr)
    }

    /// The arguments of a transfer with a vector of buffers.
    pub(crate) const fn vector(vector: *const iovec, count: usize, addr: fi_addr_t) -> Self {
        Self::new(Pieces::Vector(vector, count), addr)
    }

    /// The arguments of a transfer with one buffer of elements.
    pub(crate) fn array(
        buf: *const c_void,
        count: usize,
        datatype: c_enum<fi_datatype>,
        addr: fi_addr_t,
    ) -> Self {
        Self::of(buf, count.wrapping_mul(size_of_type(datatype)), addr)
    }

    /// The arguments of a transfer with a vector of buffers of elements.
    pub(crate) fn elements(
        vector: *const fi_ioc,
        count: usize,
        datatype: c_enum<fi_datatype>,
        addr: fi_addr_t,
    ) -> Self {
        Self::new(Pieces::Elements(vector, count, size_of_type(datatype)), addr)
    }

    const fn new(pieces: Pieces, addr: fi_addr_t) -> Self {
        Self {
            pieces,
            addr,
            data: 0,
            flags: 0,
            tag: 0,
            ignore: 0,
            raddr: 0,
            key: 0,
            context: ptr::null_mut(),
        }
    }
}

/// Local memory of a transfer.
#[derive(Clone, Copy)]
pub enum Pieces {
    /// One buffer and its length in bytes.
    One(*const c_void, usize),
    /// A vector, and its number of elements.
    Vector(*const iovec, usize),
    /// A vector of datatype elements, their number and the size of one in bytes.
    Elements(*const fi_ioc, usize, usize),
}

impl Pieces {
    /// Returns the start of the first segment and the length of all in bytes.
    ///
    /// # Safety
    /// The call is still in progress.
    pub unsafe fn total(&self) -> (*const c_void, usize) {
        // SAFETY: a vector has as many elements as its caller says, if there is one.
        unsafe {
            match *self {
                Self::One(buf, len) => (buf, len),
                Self::Vector(vector, count) => slice(vector, count).iter().rev().fold(
                    (ptr::null(), 0),
                    |(_, len): (*const c_void, usize), piece| {
                        (piece.iov_base.cast_const(), len.wrapping_add(piece.iov_len))
                    },
                ),
                Self::Elements(vector, count, size) => slice(vector, count).iter().rev().fold(
                    (ptr::null(), 0),
                    |(_, len): (*const c_void, usize), piece| {
                        let bytes = piece.count.wrapping_mul(size);
                        (piece.addr.cast_const(), len.wrapping_add(bytes))
                    },
                ),
            }
        }
    }
}

/// Returns the size of an element of a type, for sums of lengths; 1 if unknown.
fn size_of_type(datatype: c_enum<fi_datatype>) -> usize {
    use fi_datatype::*;
    const SIZES: &[(usize, &[fi_datatype])] = &[
        (2, &[FI_INT16, FI_UINT16, FI_FLOAT16, FI_BFLOAT16]),
        (4, &[FI_INT32, FI_UINT32, FI_FLOAT]),
        (8, &[FI_INT64, FI_UINT64, FI_DOUBLE, FI_FLOAT_COMPLEX]),
        (16, &[FI_DOUBLE_COMPLEX, FI_LONG_DOUBLE, FI_INT128, FI_UINT128]),
        (32, &[FI_LONG_DOUBLE_COMPLEX]),
    ];
    let of = |(_, types): &&(usize, &[fi_datatype])| types.iter().any(|one| datatype == *one);
    SIZES.iter().find(of).map_or(1, |(size, _)| *size)
}

/// # Safety
/// `start` is null, or the start of `count` elements outliving `'a`.
unsafe fn slice<'a, T>(start: *const T, count: usize) -> &'a [T] {
    if start.is_null() {
        return &[];
    }
    // SAFETY: by this function's contract.
    unsafe { core::slice::from_raw_parts(start, count) }
}

/// Arguments of a memory registration.
#[derive(Clone, Copy)]
pub struct RegionArgs {
    /// The attributes, as of `fi_mr_regattr`.
    pub attr: *const fi_mr_attr,
    /// Flags of the call.
    pub flags: u64,
    /// Location of the resulting region pointer.
    pub out: *mut *mut fid_mr,
}

impl RegionArgs {
    /// Returns the memory interface in terms of `fi_hmem_iface`: the system's (0), or an
    /// accelerator's. Programs of API versions before 1.10 cannot specify it.
    ///
    /// # Safety
    /// The call is still in progress, and the program requested this version.
    pub unsafe fn iface(&self, api_version: u32) -> u32 {
        if api_version < version(1, 10) || self.attr.is_null() {
            return 0;
        }
        // SAFETY: by this function's contract the attributes have this field.
        unsafe { (&raw const (*self.attr).iface).read() }.raw()
    }

    /// Returns the bytes of all segments.
    ///
    /// # Safety
    /// The call is still in progress.
    pub unsafe fn bytes(&self) -> usize {
        // SAFETY: by this function's contract; attributes are there or null.
        unsafe {
            let Some(attr) = self.attr.as_ref() else { return 0 };
            if self.flags & FI_MR_DMABUF != 0 {
                // Then the vectors are not there, but this.
                return attr.mr_iov.cast::<fi_mr_dmabuf>().as_ref().map_or(0, |file| file.len);
            }
            Pieces::Vector(attr.mr_iov, attr.iov_count).total().1
        }
    }
}

/// Arguments of opening an object.
#[derive(Clone, Copy)]
pub struct OpenArgs {
    /// Location of the resulting object pointer: the program's own object, after the call.
    pub out: *mut *mut fid,
    /// The attributes.
    pub attr: OpenAttr,
    /// The object's context.
    pub context: *mut c_void,
}

/// Attributes of the opened object, or null.
#[derive(Clone, Copy)]
pub enum OpenAttr {
    /// No attributes, or attributes not used by any hook.
    None,
    /// Attributes of a completion queue.
    Cq(*const fi_cq_attr),
    /// Attributes of a counter.
    Cntr(*const fi_cntr_attr),
    /// Attributes of an address vector.
    Av(*const fi_av_attr),
    /// The info of a domain or an endpoint.
    Info(*const fi_info),
}

impl OpenArgs {
    pub(crate) const fn new<C>(out: *mut *mut C, attr: OpenAttr, context: *mut c_void) -> Self {
        Self { out: out.cast(), attr, context }
    }

    /// The object, after the call; null if it was not opened.
    ///
    /// # Safety
    /// The call has just succeeded.
    pub unsafe fn object(&self) -> *const fid {
        // SAFETY: a place that a call succeeded with, or null.
        unsafe { self.out.as_ref().map_or(ptr::null(), |object| object.cast_const()) }
    }
}

/// A completion, as far as its format has it.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct HookCompletion {
    /// The request's context.
    pub context: usize,
    /// Kind of the completed operation, and validity of the other fields.
    pub flags: Option<u64>,
    /// Number of bytes.
    pub len: Option<usize>,
    /// The buffer and the remote completion data.
    pub buf_data: Option<(usize, u64)>,
    /// The tag.
    pub tag: Option<u64>,
}

impl HookCompletion {
    /// Returns the number of bytes received, according to the completion; 0 for other operations,
    /// because their lengths are not meaningful.
    pub fn received(&self) -> usize {
        let received = self.flags.is_some_and(|flags| flags & FI_RECV != 0);
        self.len.filter(|_| received).unwrap_or(0)
    }
}

impl HookCall {
    /// Returns the completions of a queue read with the return value `ret`.
    ///
    /// # Safety
    /// `self` is a read of a completion queue just returning `ret`.
    pub unsafe fn completions(&self, ret: isize) -> impl Iterator<Item = HookCompletion> {
        let (buf, size) = match (self.args, self.format) {
            (Args::Completions(buf, _), 1) => (buf, size_of::<fi_cq_entry>()),
            (Args::Completions(buf, _), 2) => (buf, size_of::<fi_cq_msg_entry>()),
            (Args::Completions(buf, _), 3) => (buf, size_of::<fi_cq_data_entry>()),
            (Args::Completions(buf, _), 4) => (buf, size_of::<fi_cq_tagged_entry>()),
            _ => (ptr::null(), 0),
        };
        let count = if buf.is_null() { 0 } else { usize::try_from(ret).unwrap_or(0) };
        (0..count).map(move |index| {
            // SAFETY: the provider filled `ret` entries of this size; those of each
            // format start with those of the one before.
            unsafe {
                let entry = buf.byte_add(index * size);
                let msg = entry.cast::<fi_cq_msg_entry>();
                let data = entry.cast::<fi_cq_data_entry>();
                let tagged = entry.cast::<fi_cq_tagged_entry>();
                let has = |format| self.format >= format;
                HookCompletion {
                    context: (&raw const (*entry.cast::<fi_cq_entry>()).op_context).read_unaligned()
                        as usize,
                    flags: has(2).then(|| (&raw const (*msg).flags).read_unaligned()),
                    len: has(2).then(|| (&raw const (*msg).len).read_unaligned()),
                    buf_data: has(3).then(|| {
                        let buf = (&raw const (*data).buf).read_unaligned();
                        (buf as usize, (&raw const (*data).data).read_unaligned())
                    }),
                    tag: has(4).then(|| (&raw const (*tagged).tag).read_unaligned()),
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dmabuf_region_has_the_length_of_its_descriptor() {
        let file = fi_mr_dmabuf { fd: 3, offset: 8192, len: 77, base_addr: ptr::null_mut() };
        // SAFETY: numbers and null pointers.
        let mut attr: fi_mr_attr = unsafe { core::mem::zeroed() };
        for (mr_iov, bytes) in [(ptr::from_ref(&file).cast(), 77), (ptr::null(), 0)] {
            (attr.mr_iov, attr.iov_count) = (mr_iov, 1);
            let (flags, out) = (FI_MR_DMABUF, ptr::null_mut());
            let region = RegionArgs { attr: &raw const attr, flags, out };
            // SAFETY: the attributes, and what they point to, are as a call's.
            assert_eq!(unsafe { region.bytes() }, bytes);
        }
    }

    #[test]
    fn vector_has_summed_length_and_its_first_elements_address() {
        let bytes = [0_u8; 9];
        let piece = |at: usize, len| iovec {
            iov_base: bytes[at..].as_ptr().cast_mut().cast(),
            iov_len: len,
        };
        let vector = [piece(1, 2), piece(4, 5)];
        // SAFETY: the vector has two elements.
        let (buf, len) = unsafe { Pieces::Vector(vector.as_ptr(), 2).total() };
        assert_eq!((buf, len), (bytes[1..].as_ptr().cast(), 7));
        let elements = [
            fi_ioc { addr: ptr::null_mut(), count: 3 },
            fi_ioc { addr: ptr::null_mut(), count: 4 },
        ];
        // SAFETY: the vector has two elements, and null has none.
        unsafe {
            assert_eq!(Pieces::Elements(elements.as_ptr(), 2, 8).total().1, 56);
            assert_eq!(Pieces::Vector(ptr::null(), 2).total(), (ptr::null(), 0));
        }
    }

    #[test]
    fn completions_are_read_as_far_as_their_format_goes() {
        let entries = [1, 2].map(|n| fi_cq_data_entry {
            op_context: n as *mut c_void,
            flags: FI_RECV,
            len: 10 * n,
            buf: ptr::null_mut(),
            data: 7,
        });
        let call = HookCall {
            op: HookOp::CqRead,
            object: ptr::null(),
            format: 3,
            api_version: 0,
            args: Args::Completions(entries.as_ptr().cast(), ptr::null()),
        };
        // SAFETY: there are two entries of format 3.
        let read: Vec<_> = unsafe { call.completions(2) }.collect();
        assert_eq!(read[1].context, 2);
        assert_eq!((read[1].len, read[1].buf_data, read[1].tag), (Some(20), Some((0, 7)), None));
        // SAFETY: an error has no entries.
        assert_eq!(unsafe { call.completions(-11) }.count(), 0);
    }
}
