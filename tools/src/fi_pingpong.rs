//! Exchanges messages between two processes and prints the time (fi_pingpong(1)).
//!
//! A control connection over TCP, in addition to the fabric, exchanges the addresses and
//! synchronizes both sides. Its messages are those of every other `fi_pingpong`, so this one can be
//! either side of a pair.
#[path = "fi_pingpong_text.rs"]
mod text;

use ofi::abi::*;
use ofi::error::{Error, Result};
use std::ffi::{CString, c_char, c_int, c_void};
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{
    IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs,
};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::ExitCode;
use std::ptr::{self, NonNull};
use std::time::{Duration, Instant};
use text::{CONTROL_PORT, HEADING, Mode, Options, ResultRow, parse, usage};

#[link(name = "fabric")]
unsafe extern "C" {
    fn fi_getinfo(
        version: u32,
        node: *const c_char,
        service: *const c_char,
        flags: u64,
        hints: *const fi_info,
        info: *mut *mut fi_info,
    ) -> c_int;
    fn fi_freeinfo(info: *mut fi_info);
    fn fi_dupinfo(info: *const fi_info) -> *mut fi_info;
    fn fi_fabric(
        attr: *mut fi_fabric_attr,
        fabric: *mut *mut fid_fabric,
        context: *mut c_void,
    ) -> c_int;
}

/// Requested API version: all functions used here are in every later one.
const API: u32 = 1 << 16 | 4;
const SIZES: [usize; 6] = [64, 256, 1 << 10, 4 << 10, 64 << 10, 1 << 20];
const TAG: u64 = 1234;
/// Text sent with `-c`; message number k starts 7 * k characters into it.
const TEXT: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
const STEP: usize = 7;
/// Messages of the control connection.
const ASK: &[u8; 2] = b"q\0";
const ANSWER: &[u8; 2] = b"a\0";
const COUNT_OK: &[u8; 7] = b"cnt ok\0";
const COUNT_LEN: usize = 10;
/// The last message on the fabric.
const FIN: &[u8; 4] = b"fin\0";
/// Timeout for a datagram before it counts as lost.
const LOST: Duration = Duration::from_secs(5);

/// Reason for an early exit: an errno or libfabric code, and the failed step.
struct Failure {
    what: String,
    error: Error,
}

impl Failure {
    fn io(what: &str, e: io::Error) -> Self {
        let code = e.raw_os_error().unwrap_or(match e.kind() {
            io::ErrorKind::UnexpectedEof => libc::ECONNRESET,
            _ => libc::EIO,
        });
        Self { what: what.into(), error: Error::from_code(code) }
    }
}
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "[error] fi_pingpong : {}: {}",
            self.what,
            ofi::error::strerror(self.error.code())
        )
    }
}
type PingpongOutcome<T = ()> = std::result::Result<T, Failure>;

/// Adds the name of the failed step to an error.
trait During<T> {
    fn during(self, what: &str) -> PingpongOutcome<T>;
}
impl<T> During<T> for Result<T> {
    fn during(self, what: &str) -> PingpongOutcome<T> {
        self.map_err(|error| Failure { what: what.into(), error })
    }
}
impl<T> During<T> for io::Result<T> {
    fn during(self, what: &str) -> PingpongOutcome<T> {
        self.map_err(|e| Failure::io(what, e))
    }
}

/// Calls `object->table->function(object, arguments…)` of the C interface.
macro_rules! call {
    ($object:expr, $table:ident . $function:ident ( $($argument:expr),* $(,)? )) => {{
        let object = $object;
        // SAFETY: the object was opened by the provider and is open (`OpenFid`
        // closes it last), so that it and its tables are there; every table
        // this program uses has the function in its first version, and the
        // pointers among the arguments outlive the call, or, for transfers,
        // are those of `PingpongBuffers`, which outlive the endpoint.
        unsafe {
            match (*(*object).$table).$function {
                Some(function) => Error::check(function(object, $($argument),*) as c_int),
                None => Err(Error::NOSYS),
            }
        }
    }};
}

/// Object opened by the library, closed on drop.
struct OpenFid<T>(NonNull<T>);

impl<T> OpenFid<T> {
    fn new(what: &str, open: impl FnOnce(*mut *mut T) -> Result<c_int>) -> PingpongOutcome<Self> {
        let mut object = ptr::null_mut();
        open(&mut object).during(what)?;
        NonNull::new(object).map(Self).ok_or(Error::INVAL).during(what)
    }
    fn get(&self) -> *mut T {
        self.0.as_ptr()
    }
    /// Every object starts with its fid.
    fn fid(&self) -> *mut fid {
        self.get().cast()
    }
    fn bind<U>(&self, to: &OpenFid<U>, flags: u64) -> PingpongOutcome {
        call!(self.fid(), ops.bind(to.fid(), flags)).during("fi_ep_bind").map(drop)
    }
}
impl<T> Drop for OpenFid<T> {
    fn drop(&mut self) {
        if let Err(e) = call!(self.fid(), ops.close()) {
            eprintln!("[error] fi_pingpong : fi_close: {}", ofi::error::strerror(e.code()));
        }
    }
}

/// List returned by fi_getinfo, or hints.
struct Info(NonNull<fi_info>);

impl Info {
    fn hints() -> PingpongOutcome<Self> {
        // SAFETY: fi_dupinfo of NULL allocates an empty fi_info with all attributes.
        NonNull::new(unsafe { fi_dupinfo(ptr::null()) })
            .map(Self)
            .ok_or(Error::NOMEM)
            .during("fi_allocinfo")
    }
    /// Returns the first info matching the hints, with the source address if requested; without any
    /// address, the provider's preferred one.
    fn find(o: &Options, hints: &Info) -> PingpongOutcome<Self> {
        // A name that is none of IP's may be one of the provider's.
        let own = o.source.as_deref().filter(|_| hints.view().src_addr.is_null());
        let own = own.map(CString::new).transpose();
        let own = own.map_err(|_| Error::INVAL).during("source address")?;
        let (node, flags) = match &own {
            Some(name) => (name.as_ptr(), FI_SOURCE),
            None => (ptr::null(), 0),
        };
        let mut info = ptr::null_mut();
        // SAFETY: hints is a whole fi_info, node null or a C string, info ours to be filled.
        let r = unsafe { fi_getinfo(API, node, ptr::null(), flags, hints.get(), &mut info) };
        Error::check(r).during("fi_getinfo")?;
        NonNull::new(info).map(Self).ok_or(Error::NODATA).during("fi_getinfo")
    }
    fn get(&self) -> *mut fi_info {
        self.0.as_ptr()
    }
    fn view(&self) -> &fi_info {
        // SAFETY: the library gave us the whole struct; it is freed with self.
        unsafe { self.0.as_ref() }
    }
}
impl Drop for Info {
    fn drop(&mut self) {
        // SAFETY: from fi_getinfo, fi_dupinfo or a connection event, and ours alone.
        unsafe { fi_freeinfo(self.get()) }
    }
}

/// Returns a string freed by fi_freeinfo.
fn c_string(text: &str) -> PingpongOutcome<*mut c_char> {
    let text = CString::new(text).map_err(|_| Error::INVAL).during("name")?;
    // SAFETY: text is a C string.
    let copy = unsafe { libc::strdup(text.as_ptr()) };
    if copy.is_null() { Err(Error::NOMEM).during("name") } else { Ok(copy) }
}

/// Returns an address freed by fi_freeinfo.
fn c_copy(address: &[u8]) -> PingpongOutcome<*mut c_void> {
    // SAFETY: what malloc gives has room for all of the address.
    unsafe {
        let copy = libc::malloc(address.len());
        if copy.is_null() {
            return Err(Error::NOMEM).during("address");
        }
        ptr::copy_nonoverlapping(address.as_ptr(), copy.cast(), address.len());
        Ok(copy)
    }
}

/// Returns the first address of this family of a host name.
fn ip_address(name: &str, port: u16, v6: bool) -> Option<SocketAddr> {
    (name, port).to_socket_addrs().ok()?.find(|address| address.is_ipv6() == v6)
}

/// Control connection outside the fabric.
struct Control(TcpStream);

impl Control {
    fn serve(o: &Options) -> PingpongOutcome<Self> {
        let any =
            if o.v6 { IpAddr::from(Ipv6Addr::UNSPECIFIED) } else { Ipv4Addr::UNSPECIFIED.into() };
        let listener = TcpListener::bind((any, o.source_port.unwrap_or(CONTROL_PORT)))
            .during("bind of the control port")?;
        let (stream, from) = listener.accept().during("accept")?;
        debug(o, || format!("control connection from {from}"));
        Self::new(stream)
    }
    fn call(o: &Options, host: &str) -> PingpongOutcome<Self> {
        let wanted = |a: &SocketAddr| a.is_ipv6() == o.v6;
        let address = (host, o.destination_port)
            .to_socket_addrs()
            .during("name of the server")?
            .find(wanted)
            .ok_or(Error::from_code(libc::EADDRNOTAVAIL))
            .during("name of the server")?;
        let stream = match o.source_port {
            None => TcpStream::connect(address),
            Some(port) => connect_from(port, address),
        };
        Self::new(stream.during("failed to connect")?)
    }
    fn new(stream: TcpStream) -> PingpongOutcome<Self> {
        stream.set_nodelay(true).during("control connection")?;
        Ok(Self(stream))
    }
    fn send(&mut self, bytes: &[u8]) -> PingpongOutcome {
        self.0.write_all(bytes).during("control connection")
    }
    fn receive<const N: usize>(&mut self) -> PingpongOutcome<[u8; N]> {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes).during("control connection")?;
        Ok(bytes)
    }
    fn expect<const N: usize>(&mut self, what: &[u8; N]) -> PingpongOutcome {
        if self.receive::<N>()? == *what {
            Ok(())
        } else {
            Err(Error::IO).during("control message")
        }
    }
    /// Sends the own address: length, format, bytes.
    fn send_address(&mut self, format: u32, address: &[u8]) -> PingpongOutcome {
        self.send(&(address.len() as u32).to_be_bytes())?;
        self.send(&format.to_ne_bytes())?;
        self.send(address)
    }
    fn receive_address(&mut self) -> PingpongOutcome<(u32, Vec<u8>)> {
        let length = u32::from_be_bytes(self.receive()?) as usize;
        let format = u32::from_ne_bytes(self.receive()?);
        if length == 0 || length > 4096 {
            return Err(Error::INVAL).during("length of the peer's address");
        }
        let mut address = vec![0; length];
        self.0.read_exact(&mut address).during("control connection")?;
        Ok((format, address))
    }
}

/// Returns a connection with the requested source port.
fn connect_from(port: u16, to: SocketAddr) -> io::Result<TcpStream> {
    let domain = if to.is_ipv6() { libc::AF_INET6 } else { libc::AF_INET };
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(domain, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let any: IpAddr =
        if to.is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    let from = RawAddress::from(SocketAddr::new(any, port));
    let to = RawAddress::from(to);
    // SAFETY: both addresses are whole sockaddr structs of the length given.
    let r = unsafe {
        if libc::bind(socket.as_raw_fd(), from.pointer(), from.length) < 0 {
            -1
        } else {
            libc::connect(socket.as_raw_fd(), to.pointer(), to.length)
        }
    };
    if r < 0 { Err(io::Error::last_os_error()) } else { Ok(TcpStream::from(socket)) }
}

/// A socket address as the C interface wants it.
struct RawAddress {
    storage: libc::sockaddr_storage,
    length: libc::socklen_t,
}
impl RawAddress {
    fn pointer(&self) -> *const libc::sockaddr {
        (&raw const self.storage).cast()
    }
    fn bytes(&self) -> &[u8] {
        // SAFETY: the storage is as long or longer, and all of it was written.
        unsafe { std::slice::from_raw_parts(self.pointer().cast(), self.length as usize) }
    }
}
impl From<SocketAddr> for RawAddress {
    fn from(a: SocketAddr) -> Self {
        // SAFETY: all zeroes is a sockaddr_storage.
        let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        let at = &raw mut storage;
        let length = match a {
            SocketAddr::V4(a) => {
                let v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as _,
                    sin_port: a.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from(*a.ip()).to_be() },
                    sin_zero: [0; 8],
                };
                // SAFETY: storage is large and aligned enough for any socket address.
                unsafe { at.cast::<libc::sockaddr_in>().write(v4) };
                size_of::<libc::sockaddr_in>()
            }
            SocketAddr::V6(a) => {
                let v6 = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as _,
                    sin6_port: a.port().to_be(),
                    sin6_flowinfo: a.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: a.ip().octets() },
                    sin6_scope_id: a.scope_id(),
                };
                // SAFETY: as above.
                unsafe { at.cast::<libc::sockaddr_in6>().write(v6) };
                size_of::<libc::sockaddr_in6>()
            }
        };
        Self { storage, length: length as _ }
    }
}

/// Memory read and written by the library while the endpoint is open. Held behind raw pointers: a
/// receive is posted nearly all the time.
struct PingpongBuffers {
    send: Box<[u8]>,
    receive: *mut [u8],
    contexts: *mut [fi_context2; 2],
}
impl PingpongBuffers {
    fn new(size: usize) -> Self {
        // SAFETY: fi_context2 is pointers, which may be null.
        let contexts: [fi_context2; 2] = unsafe { std::mem::zeroed() };
        Self {
            send: vec![0; size].into(),
            receive: Box::into_raw(vec![0; size].into()),
            contexts: Box::into_raw(Box::new(contexts)),
        }
    }
    fn context(&self, which: usize) -> *mut c_void {
        self.contexts.cast::<fi_context2>().wrapping_add(which).cast()
    }
}
impl Drop for PingpongBuffers {
    fn drop(&mut self) {
        // SAFETY: both came from Box::into_raw and the endpoint, which is
        // declared before them in `PingPong`, is closed.
        unsafe {
            drop(Box::from_raw(self.receive));
            drop(Box::from_raw(self.contexts));
        }
    }
}

/// Everything open; fields are closed in this order.
struct PingPong {
    endpoint: OpenFid<fid_ep>,
    passive: Option<OpenFid<fid_pep>>,
    av: Option<OpenFid<fid_av>>,
    tx: OpenFid<fid_cq>,
    rx: OpenFid<fid_cq>,
    eq: Option<OpenFid<fid_eq>>,
    domain: OpenFid<fid_domain>,
    fabric: OpenFid<fid_fabric>,
    buffers: PingpongBuffers,
    peer: fi_addr_t,
    options: Options,
    max_size: usize,
    prefix: usize,
    /// Number of messages sent and received, determining the start of their text.
    sent: usize,
    received: usize,
}

fn debug(o: &Options, text: impl FnOnce() -> String) {
    if o.verbose {
        eprintln!("[debug] fi_pingpong : {}", text());
    }
}

fn hints(o: &Options) -> PingpongOutcome<Info> {
    let info = Info::hints()?;
    // SAFETY: fi_allocinfo gave a whole fi_info with all attributes, ours alone.
    unsafe {
        let i = &mut *info.get();
        i.caps = if o.mode == Mode::Tagged { FI_TAGGED } else { FI_MSG };
        i.mode = FI_CONTEXT | FI_CONTEXT2 | FI_MSG_PREFIX;
        i.addr_format = match (o.v6, o.endpoint) {
            (true, _) => FI_SOCKADDR_IN6 as u32,
            _ => i.addr_format,
        };
        (*i.ep_attr).r#type = o.endpoint.into();
        (*i.domain_attr).resource_mgmt = fi_resource_mgmt::FI_RM_ENABLED.into();
        (*i.domain_attr).threading = fi_threading::FI_THREAD_DOMAIN.into();
        if let Some(name) = &o.provider {
            (*i.fabric_attr).prov_name = c_string(name)?;
        }
        if let Some(name) = &o.domain {
            (*i.domain_attr).name = c_string(name)?;
        }
        if let Some(name) = &o.fabric {
            (*i.fabric_attr).name = c_string(name)?;
        }
        if let Some(address) = o.source.as_deref().and_then(|name| ip_address(name, 0, o.v6)) {
            let address = RawAddress::from(address);
            let format = if o.v6 { FI_SOCKADDR_IN6 } else { FI_SOCKADDR_IN };
            i.addr_format = format as u32;
            i.src_addr = c_copy(address.bytes())?;
            i.src_addrlen = address.bytes().len();
        }
    }
    Ok(info)
}

/// Sets hints for the destination `address`.
fn toward(info: &Info, format: u32, address: &[u8]) -> PingpongOutcome {
    // SAFETY: fi_freeinfo frees the copy; the struct is ours.
    unsafe {
        let i = &mut *info.get();
        i.addr_format = format;
        i.dest_addr = c_copy(address)?;
        i.dest_addrlen = address.len();
    }
    Ok(())
}

fn open_fabric(info: &Info) -> PingpongOutcome<OpenFid<fid_fabric>> {
    let attr = info.view().fabric_attr;
    OpenFid::new("fi_fabric", |f| {
        // SAFETY: attr is that of the info, f is ours to be filled.
        Error::check(unsafe { fi_fabric(attr, f, ptr::null_mut()) })
    })
}
fn open_eq(fabric: &OpenFid<fid_fabric>) -> PingpongOutcome<OpenFid<fid_eq>> {
    let mut attr = fi_eq_attr {
        size: 0,
        flags: 0,
        wait_obj: fi_wait_obj::FI_WAIT_UNSPEC.into(),
        signaling_vector: 0,
        wait_set: ptr::null_mut(),
    };
    OpenFid::new("fi_eq_open", |q| call!(fabric.get(), ops.eq_open(&mut attr, q, ptr::null_mut())))
}
fn name_of<T>(object: &OpenFid<T>, cm: *mut fi_ops_cm) -> PingpongOutcome<Vec<u8>> {
    let mut name = vec![0u8; 256];
    let mut length = name.len();
    // SAFETY: the object and its connection table are there while it is open;
    // name has length bytes.
    let r = unsafe {
        match (*cm).getname {
            Some(getname) => {
                Error::check(getname(object.fid(), name.as_mut_ptr().cast(), &mut length))
            }
            None => Err(Error::NOSYS),
        }
    };
    r.during("fi_getname")?;
    name.truncate(length);
    Ok(name)
}

/// Returns the next connection event, required to be `wanted`; a request comes with its info.
fn event(eq: &OpenFid<fid_eq>, wanted: u32) -> PingpongOutcome<Option<Info>> {
    let mut entry = fi_eq_cm_entry { fid: ptr::null_mut(), info: ptr::null_mut(), data: [] };
    let mut event = 0;
    let size = size_of::<fi_eq_cm_entry>();
    loop {
        match call!(eq.get(), ops.sread(&mut event, (&raw mut entry).cast(), size, -1, 0)) {
            Err(e) if e == Error::AGAIN || e.code() == libc::EINTR => continue,
            Err(e) if e == Error::AVAIL => {
                // SAFETY: all zeroes is an error entry.
                let mut error: fi_eq_err_entry = unsafe { std::mem::zeroed() };
                call!(eq.get(), ops.readerr(&mut error, 0)).during("fi_eq_readerr")?;
                return Err(Error::from_code(error.err)).during("connection");
            }
            Err(e) => return Err(e).during("fi_eq_sread"),
            Ok(_) if event == wanted => return Ok(NonNull::new(entry.info).map(Info)),
            Ok(_) => return Err(Error::OTHER).during("unexpected connection event"),
        }
    }
}

impl PingPong {
    fn open(
        options: &Options,
        info: &Info,
        fabric: OpenFid<fid_fabric>,
        eq: Option<OpenFid<fid_eq>>,
        passive: Option<OpenFid<fid_pep>>,
    ) -> PingpongOutcome<Self> {
        let null = ptr::null_mut;
        let domain =
            OpenFid::new("fi_domain", |d| call!(fabric.get(), ops.domain(info.get(), d, null())))?;
        // SAFETY: all zeroes asks for the defaults.
        let mut cq: fi_cq_attr = unsafe { std::mem::zeroed() };
        cq.format = fi_cq_format::FI_CQ_FORMAT_CONTEXT.into();
        cq.wait_obj = fi_wait_obj::FI_WAIT_NONE.into();
        cq.size = 64;
        let tx =
            OpenFid::new("fi_cq_open", |q| call!(domain.get(), ops.cq_open(&mut cq, q, null())))?;
        let rx =
            OpenFid::new("fi_cq_open", |q| call!(domain.get(), ops.cq_open(&mut cq, q, null())))?;
        let av = if options.endpoint == fi_ep_type::FI_EP_MSG {
            None
        } else {
            // SAFETY: as above.
            let mut attr: fi_av_attr = unsafe { std::mem::zeroed() };
            attr.count = 1;
            // SAFETY: the info of an endpoint has its domain attributes.
            attr.r#type = unsafe { (*info.view().domain_attr).av_type };
            Some(OpenFid::new("fi_av_open", |a| {
                call!(domain.get(), ops.av_open(&mut attr, a, null()))
            })?)
        };
        let endpoint = OpenFid::new("fi_endpoint", |e| {
            call!(domain.get(), ops.endpoint(info.get(), e, null()))
        })?;
        if let Some(eq) = &eq {
            endpoint.bind(eq, 0)?;
        }
        if let Some(av) = &av {
            endpoint.bind(av, 0)?;
        }
        endpoint.bind(&tx, FI_TRANSMIT)?;
        endpoint.bind(&rx, FI_RECV)?;
        call!(endpoint.fid(), ops.control(FI_ENABLE, null())).during("fi_enable")?;
        // SAFETY: the info of an endpoint has its endpoint attributes.
        let (max_size, prefix) = unsafe {
            let ep = &*info.view().ep_attr;
            (
                ep.max_msg_size,
                if info.view().mode & FI_MSG_PREFIX != 0 { ep.msg_prefix_size } else { 0 },
            )
        };
        let biggest = options.size.unwrap_or(SIZES[SIZES.len() - 1]).max(FIN.len());
        let mut this = Self {
            endpoint,
            passive,
            av,
            tx,
            rx,
            eq,
            domain,
            fabric,
            buffers: PingpongBuffers::new(biggest + prefix),
            peer: FI_ADDR_UNSPEC,
            options: options.clone(),
            max_size,
            prefix,
            sent: 0,
            received: 0,
        };
        this.post_receive()?;
        Ok(this)
    }

    fn server(options: &Options, control: &mut Control) -> PingpongOutcome<Self> {
        let info = Info::find(options, &hints(options)?)?;
        let format = info.view().addr_format;
        let fabric = open_fabric(&info)?;
        if options.endpoint == fi_ep_type::FI_EP_MSG {
            let eq = open_eq(&fabric)?;
            let passive = OpenFid::new("fi_passive_ep", |p| {
                call!(fabric.get(), ops.passive_ep(info.get(), p, ptr::null_mut()))
            })?;
            passive.bind(&eq, 0)?;
            call!(passive.get(), cm.listen()).during("fi_listen")?;
            // SAFETY: the passive endpoint is open.
            let name = name_of(&passive, unsafe { (*passive.get()).cm })?;
            control.send_address(format, &name)?;
            let request =
                event(&eq, FI_CONNREQ as u32)?.ok_or(Error::INVAL).during("connection request")?;
            let this = Self::open(options, &request, fabric, Some(eq), Some(passive))?;
            call!(this.endpoint.get(), cm.accept(ptr::null(), 0)).during("fi_accept")?;
            this.connected()?;
            Ok(this)
        } else {
            let mut this = Self::open(options, &info, fabric, None, None)?;
            this.tell_name(format, control)?;
            let (_, peer) = control.receive_address()?;
            this.insert(&peer)?;
            Ok(this)
        }
    }

    fn client(options: &Options, control: &mut Control) -> PingpongOutcome<Self> {
        let (format, peer) = control.receive_address()?;
        let hints = hints(options)?;
        toward(&hints, format, &peer)?;
        let info = Info::find(options, &hints)?;
        let fabric = open_fabric(&info)?;
        if options.endpoint == fi_ep_type::FI_EP_MSG {
            let eq = open_eq(&fabric)?;
            let this = Self::open(options, &info, fabric, Some(eq), None)?;
            call!(this.endpoint.get(), cm.connect(peer.as_ptr().cast(), ptr::null(), 0))
                .during("fi_connect")?;
            this.connected()?;
            Ok(this)
        } else {
            let mut this = Self::open(options, &info, fabric, None, None)?;
            this.tell_name(info.view().addr_format, control)?;
            this.insert(&peer)?;
            Ok(this)
        }
    }

    fn connected(&self) -> PingpongOutcome {
        let eq = self.eq.as_ref().ok_or(Error::NOEQ).during("connection")?;
        event(eq, FI_CONNECTED as u32).map(drop)
    }
    fn tell_name(&self, format: u32, control: &mut Control) -> PingpongOutcome {
        // SAFETY: the endpoint is open.
        let name = name_of(&self.endpoint, unsafe { (*self.endpoint.get()).cm })?;
        control.send_address(format, &name)
    }
    fn insert(&mut self, peer: &[u8]) -> PingpongOutcome {
        let av = self.av.as_ref().ok_or(Error::NOAV).during("fi_av_insert")?;
        let mut address = FI_ADDR_NOTAVAIL;
        let n =
            call!(av.get(), ops.insert(peer.as_ptr().cast(), 1, &mut address, 0, ptr::null_mut()))
                .during("fi_av_insert")?;
        if n != 1 {
            return Err(Error::INVAL).during("fi_av_insert");
        }
        self.peer = address;
        Ok(())
    }

    /// Repeats a posting call while the provider pushes back.
    fn post(&self, what: &str, mut call: impl FnMut() -> Result<c_int>) -> PingpongOutcome {
        loop {
            match call() {
                Err(e) if e == Error::AGAIN => self.progress(),
                r => return r.during(what).map(drop),
            }
        }
    }
    /// Reading nothing drives the provider.
    fn progress(&self) {
        for q in [&self.tx, &self.rx] {
            // The answer is whether an entry waits; it is read where it is awaited.
            let _ = call!(q.get(), ops.read(ptr::null_mut(), 0));
        }
    }
    fn post_receive(&mut self) -> PingpongOutcome {
        let (buffer, size) = (self.buffers.receive.cast::<c_void>(), self.buffers.receive.len());
        let (null, any, context) = (ptr::null_mut(), FI_ADDR_UNSPEC, self.buffers.context(1));
        let ep = self.endpoint.get();
        self.post("fi_recv", || match self.options.mode {
            Mode::Msg => call!(ep, msg.recv(buffer, size, null, any, context)),
            Mode::Tagged => call!(ep, tagged.recv(buffer, size, null, any, TAG, 0, context)),
        })
    }
    fn post_send(&mut self, size: usize) -> PingpongOutcome {
        let (buffer, size) = (self.buffers.send.as_ptr().cast::<c_void>(), size + self.prefix);
        let (null, peer, context) = (ptr::null_mut(), self.peer, self.buffers.context(0));
        let ep = self.endpoint.get();
        self.post("fi_send", || match self.options.mode {
            Mode::Msg => call!(ep, msg.send(buffer, size, null, peer, context)),
            Mode::Tagged => call!(ep, tagged.send(buffer, size, null, peer, TAG, context)),
        })
    }
    /// Waits for one entry of a queue; true when it came, false when a datagram
    /// has not come for a long time.
    fn wait(&self, queue: &OpenFid<fid_cq>) -> PingpongOutcome<bool> {
        let mut entry = fi_cq_entry { op_context: ptr::null_mut() };
        let mut since = None;
        for round in 0u32.. {
            match call!(queue.get(), ops.read((&raw mut entry).cast(), 1)) {
                Ok(1) => return Ok(true),
                Ok(_) => {}
                Err(e) if e == Error::AGAIN => {}
                Err(e) if e == Error::AVAIL => {
                    // SAFETY: all zeroes is an error entry; no buffer for error data.
                    let mut error: fi_cq_err_entry = unsafe { std::mem::zeroed() };
                    call!(queue.get(), ops.readerr(&mut error, 0)).during("fi_cq_readerr")?;
                    return Err(Error::from_code(error.err)).during("transfer");
                }
                Err(e) => return Err(e).during("fi_cq_read"),
            }
            self.progress();
            if self.options.endpoint == fi_ep_type::FI_EP_DGRAM
                && round % 1024 == 1023
                && since.get_or_insert_with(Instant::now).elapsed() > LOST
            {
                return Ok(false);
            }
        }
        Ok(false)
    }

    fn send(&mut self, size: usize) -> PingpongOutcome {
        if self.options.check {
            let start = STEP * self.sent % TEXT.len();
            for (to, from) in self.buffers.send[self.prefix..][..size]
                .iter_mut()
                .zip(TEXT.iter().cycle().skip(start))
            {
                *to = *from;
            }
        }
        self.sent += 1;
        self.post_send(size)?;
        self.wait(&self.tx).map(drop)
    }
    /// Receives one message and posts the next receive; false when it was lost.
    fn receive(&mut self, size: usize) -> PingpongOutcome<bool> {
        if !self.wait(&self.rx)? {
            return Ok(false);
        }
        if self.options.check {
            let start = STEP * self.received % TEXT.len();
            // SAFETY: the receive has completed and the next is not posted yet, so there are no
            // writes; the prefix and size are within the buffer.
            let got = unsafe { &(&*self.buffers.receive)[self.prefix..][..size] };
            if let Some(at) =
                got.iter().zip(TEXT.iter().cycle().skip(start)).position(|(a, b)| a != b)
            {
                eprintln!("[error] fi_pingpong : data check error at byte {at} of {size}");
                return Err(Error::IO).during("data check");
            }
        }
        self.received += 1;
        self.post_receive()?;
        Ok(true)
    }

    /// One line of the table.
    fn exchange(
        &mut self,
        size: usize,
        client: bool,
        control: &mut Control,
    ) -> PingpongOutcome<ResultRow> {
        if client {
            control.send(ASK)?;
            control.expect(ANSWER)?;
        } else {
            control.expect(ASK)?;
            control.send(ANSWER)?;
        }
        let iterations = self.options.iterations;
        let mut received = 0;
        let start = Instant::now();
        for _ in 0..iterations {
            if client {
                self.send(size)?;
                received += usize::from(self.receive(size)?);
            } else {
                received += usize::from(self.receive(size)?);
                self.send(size)?;
            }
        }
        let elapsed = start.elapsed();
        // The client sends the number of its messages, the server confirms it.
        if client {
            let mut count = [0; COUNT_LEN];
            let text = iterations.to_string();
            let fits = text.len().min(COUNT_LEN);
            count[..fits].copy_from_slice(&text.as_bytes()[..fits]);
            control.send(&count)?;
            control.expect(COUNT_OK)?;
        } else {
            let count = control.receive::<COUNT_LEN>()?;
            let digits = count.split(|b| *b == 0).next().unwrap_or_default();
            let message_count =
                std::str::from_utf8(digits).ok().and_then(|t| t.trim().parse::<usize>().ok());
            debug(&self.options, || format!("the client sent {message_count:?} messages"));
            control.send(COUNT_OK)?;
        }
        Ok(ResultRow { size, sent: iterations, acknowledged: received, elapsed })
    }

    /// Synchronizes the end of both sides, so neither exits early.
    fn finish(&mut self) -> PingpongOutcome {
        self.buffers.send[self.prefix..][..FIN.len()].copy_from_slice(FIN);
        let iov = libc::iovec {
            iov_base: self.buffers.send.as_mut_ptr().cast(),
            iov_len: self.prefix + FIN.len(),
        };
        let iov = (&raw const iov).cast();
        let mut desc = ptr::null_mut();
        let (addr, context, desc) = (self.peer, self.buffers.context(0), &raw mut desc);
        let ep = self.endpoint.get();
        let flags = FI_TRANSMIT_COMPLETE;
        self.post("fi_sendmsg", || match self.options.mode {
            Mode::Msg => {
                let m = fi_msg { msg_iov: iov, desc, iov_count: 1, addr, context, data: 0 };
                call!(ep, msg.sendmsg(&m, flags))
            }
            Mode::Tagged => {
                let m = fi_msg_tagged {
                    msg_iov: iov,
                    desc,
                    iov_count: 1,
                    addr,
                    tag: TAG,
                    ignore: 0,
                    context,
                    data: 0,
                };
                call!(ep, tagged.sendmsg(&m, flags))
            }
        })?;
        self.wait(&self.tx)?;
        self.wait(&self.rx).map(drop)
    }

    fn run(&mut self, client: bool, control: &mut Control) -> PingpongOutcome {
        println!("{HEADING}");
        let sizes = match self.options.size {
            Some(size) => vec![size],
            None => SIZES.to_vec(),
        };
        let limit = self.max_size;
        for size in sizes.into_iter().filter(|size| *size <= limit) {
            let row = self.exchange(size, client, control)?;
            println!("{row}");
        }
        self.finish()
    }
}

fn run(o: &Options) -> PingpongOutcome {
    let mut control = match &o.server {
        Some(host) => Control::call(o, host)?,
        None => Control::serve(o)?,
    };
    let client = o.server.is_some();
    let mut pair = if client {
        PingPong::client(o, &mut control)?
    } else {
        PingPong::server(o, &mut control)?
    };
    debug(o, || format!("fabric {:p}, domain {:p}", pair.fabric.get(), pair.domain.get()));
    let r = pair.run(client, &mut control);
    if pair.passive.is_some() || pair.eq.is_some() {
        // The peer may have closed first.
        let _ = call!(pair.endpoint.get(), cm.shutdown(0));
    }
    // Nothing more is said; the peer may be gone.
    let _ = control.0.shutdown(Shutdown::Both);
    r
}

fn main() -> ExitCode {
    let arguments: Vec<String> =
        std::env::args_os().map(|a| a.to_string_lossy().into_owned()).collect();
    let program = arguments.first().map_or("fi_pingpong", String::as_str);
    let options = match parse(arguments.get(1..).unwrap_or_default()) {
        Ok(options) => options,
        Err(reason) => {
            if !reason.message.is_empty() {
                let name = if reason.usage { format!("{program}: ") } else { String::new() };
                eprintln!("{name}{}", reason.message);
            }
            if reason.usage {
                eprint!("{}", usage(program));
            }
            return ExitCode::FAILURE;
        }
    };
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::from(u8::try_from(failure.error.code()).unwrap_or(1))
        }
    }
}
