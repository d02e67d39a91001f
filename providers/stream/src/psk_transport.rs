//! Links authenticated by the pre-shared key of a job.
//!
//! [`PskTransport`] is a [`Transport`] over another one, called the carrier. If there is a key
//! ([`PskConfig`]), the ends of a link authenticate each other on the carrier's link
//! ([`psk_handshake`](crate::secret::psk_handshake)) before the user of the link receives or sends a
//! byte. With encryption the carrier's link then always carries records
//! ([`records`](crate::secret::records)). Each link has its own handshake and its own record
//! sequence. Links without a key are those of the carrier.
use crate::forward::{
    forward, forward_attributes, forward_clock, forward_link, forward_timer, forward_transport,
};
use crate::objects::LinkProvider;
use crate::secret::psk_handshake::{AuthError, PskHandshake};
use crate::secret::records::{RECORD_MAX, RecordStream};
use crate::secret::{PskConfig, SecretKey};
use crate::transport::{
    AuthenticatedLink, ByteLink, LinkListener, RailTransport, Transport, ZeroCopyLink,
    ZerocopyDone, as_word, from_word, peer_of,
};
use ofi_provider::addr::Addr;
use ofi_provider::buf::{CopyMode, GatherList, ScatterList};
use ofi_provider::error::{Error, Result};
use ofi_provider::log::peer_text;
use ofi_provider::sys::{PollEvent, count_forks, generation};
use ofi_provider::traffic_class::TrafficClass;
use std::cell::{Cell, RefCell};
use std::fmt::Display;
use std::sync::Arc;

/// Maximum size in bytes of a first message waiting for the authentication handshake.
const FIRST_MAX: usize = 4096;

/// Function creating an end's part of the handshake of a pre-shared key.
type StartHandshake = fn(&SecretKey, bool) -> core::result::Result<PskHandshake, AuthError>;

/// Link with an optional pre-shared key.
#[derive(Debug)]
pub struct PskLink<L: ByteLink> {
    carrier: L,
    /// Bytes go to the carrier as they are: without a key, or after the handshake of a link
    /// without encryption.
    is_direct: Cell<bool>,
    session: Option<Box<PskSession>>,
}

/// Additional state of a link with a pre-shared key.
#[derive(Debug)]
struct PskSession {
    /// Process owning the link ([`generation`]): another process would use the same nonces for
    /// other bytes.
    generation: u32,
    /// Pre-shared key to be proven.
    key: Arc<SecretKey>,
    /// Both ends encrypt.
    encrypts: bool,
    state: RefCell<PskState>,
}

/// Data on the carrier of a link with a pre-shared key.
#[derive(Debug)]
enum PskState {
    /// Authentication handshake, followed by data already sent: the first message of the connecting
    /// end.
    Proving(PskHandshake, Vec<u8>),
    /// Unsent rest of the first message, followed by plain bytes.
    Flushing(Vec<u8>),
    /// Bytes as they are.
    Unencrypted,
    /// Encrypted records. With `true` the last byte to be sent was not reported as sent, and is
    /// passed again.
    Encrypted(RecordStream, bool),
    /// The other end is not believed.
    Over(Error),
}

/// Returns true if an error reports a disconnect of the other end.
fn has_hung_up(error: Error) -> bool {
    error == Error::CONNRESET || error.code() == libc::EPIPE
}

impl<L: ByteLink> PskLink<L> {
    /// Creates a link; `begin` starts this end's part of the authentication handshake with the
    /// job's pre-shared key.
    fn new(carrier: L, config: &PskConfig, begin: StartHandshake) -> Result<Self> {
        let start = |key: &Arc<SecretKey>| {
            count_forks();
            let encrypts = config.encrypts();
            let handshake = begin(key, encrypts).map_err(|_| Error::IO)?;
            let state = RefCell::new(PskState::Proving(handshake, Vec::new()));
            let (generation, key) = (generation(), key.clone());
            Ok::<_, Error>(Box::new(PskSession { generation, key, encrypts, state }))
        };
        let session = config.key().map(start).transpose()?;
        Ok(Self { carrier, is_direct: Cell::new(session.is_none()), session })
    }

    /// Returns the link below.
    fn carrier(&self) -> &L {
        &self.carrier
    }

    /// Returns the state of a link with a pre-shared key, in its owning process.
    fn session(&self) -> Result<&PskSession> {
        let session = self.session.as_deref().ok_or(Error::OTHER)?;
        if session.generation == generation() { Ok(session) } else { Err(Error::OTHER) }
    }

    /// Returns true if the link uses exactly this pre-shared key, or no key if there is none.
    fn is_for(&self, config: &PskConfig) -> bool {
        config.is_same(self.session.as_deref().map(|session| &*session.key), self.encrypts())
    }

    /// Returns true if the carrier carries encrypted records.
    fn encrypts(&self) -> bool {
        self.session.as_deref().is_some_and(|session| session.encrypts)
    }

    /// Continues the handshake. Returns true when it is complete, and false if the other end hung
    /// up first.
    fn prove(&self, state: &mut PskState, encrypts: bool) -> Result<bool> {
        while let PskState::Proving(handshake, first) = state {
            while !handshake.unsent().is_empty() {
                match self.carrier.send(handshake.unsent()) {
                    Ok(n) => handshake.sent(n),
                    Err(error) if has_hung_up(error) => return Ok(false),
                    Err(error) => return Err(error),
                }
            }
            if handshake.is_proven() {
                let first = std::mem::take(first);
                let keys = handshake.take_keys();
                *state = match keys {
                    Some(keys) if encrypts => {
                        let mut records = RecordStream::new(keys);
                        if !first.is_empty() {
                            let fill = |buf: &mut [u8]| buf.copy_from_slice(&first);
                            records.seal(first.len(), fill).map_err(|_| Error::IO)?;
                        }
                        PskState::Encrypted(records, false)
                    }
                    _ => PskState::Flushing(first),
                };
                break;
            }
            let mut buf = [0; 64];
            let most = handshake.wants().min(buf.len());
            let n = match self.carrier.recv(&mut buf[..most]) {
                Ok(0) => 0,
                Err(error) if has_hung_up(error) => 0,
                received => received?,
            };
            if n == 0 {
                if handshake.is_unanswered() {
                    self.log_rejection(&"it hung up and showed no secret; it may have none");
                }
                return Ok(false);
            }
            if let Err(why) = handshake.receive(&buf[..n]) {
                // The other end learns why, if it takes that now.
                let _ = self.carrier.send(handshake.unsent());
                self.log_rejection(&why);
                *state = PskState::Over(Error::ACCES);
                return Err(Error::ACCES);
            }
        }
        if let PskState::Flushing(left) = state {
            while !left.is_empty() {
                match self.carrier.send(left) {
                    Ok(n) => drop(left.drain(..n)),
                    Err(error) if has_hung_up(error) => return Ok(false),
                    Err(error) => return Err(error),
                }
            }
            *state = PskState::Unencrypted;
            self.is_direct.set(true);
        }
        if let PskState::Over(error) = state { Err(*error) } else { Ok(true) }
    }

    #[cold]
    fn log_rejection(&self, why: &dyn Display) {
        ofi_provider::log_sparsely!(
            L::provider(),
            WARN,
            EP_CTRL,
            "refusing the connection with {}: {why} (FI_{}_AUTH_KEY_FILE, auth_key)",
            peer_text(peer_of(&self.carrier)),
            L::provider().name().to_string_lossy().to_uppercase()
        );
    }

    /// Sends during the handshake, and in records.
    #[inline(never)]
    fn send_slow(&self, bytes: &[u8]) -> isize {
        as_word(self.send_keyed(bytes))
    }

    fn send_keyed(&self, bytes: &[u8]) -> Result<usize> {
        let session = self.session()?;
        let mut state = session.state.borrow_mut();
        if let PskState::Proving(handshake, first) = &mut *state {
            if first.is_empty()
                && !bytes.is_empty()
                && bytes.len() <= FIRST_MAX
                && handshake.takes_first()
            {
                // First message of the connecting end: it waits here for the handshake, because there
                // is nothing else to wait for. The sender of it then waits for readable data.
                while !handshake.unsent().is_empty() {
                    let n = self.carrier.send(handshake.unsent())?;
                    handshake.sent(n);
                }
                first.extend_from_slice(bytes);
                return Ok(bytes.len());
            }
        }
        match self.prove(&mut state, session.encrypts) {
            Ok(true) => {}
            Ok(false) => return Err(Error::from_code(libc::EPIPE)),
            Err(error) => return Err(error),
        }
        match &mut *state {
            PskState::Unencrypted => self.carrier.send(bytes),
            PskState::Encrypted(records, is_data_pending) => {
                self.send_records(records, is_data_pending, bytes.len(), |from, buf| {
                    buf.copy_from_slice(&bytes[from..from + buf.len()]);
                })
            }
            _ => Err(Error::AGAIN),
        }
    }

    #[inline(never)]
    fn send_list_slow(&self, list: &GatherList<'_>) -> Result<usize> {
        let session = self.session()?;
        if let PskState::Encrypted(records, is_data_pending) = &mut *session.state.borrow_mut() {
            return self.send_records(records, is_data_pending, list.len(), |from, buf| {
                list.copy_to(from, buf);
            });
        }
        // First bytes of a link.
        let mut buf = vec![0; FIRST_MAX.min(list.len())];
        let n = list.copy_to(0, &mut buf);
        self.send_keyed(&buf[..n])
    }

    /// Sends the rest of the records.
    fn flush_records(&self, records: &mut RecordStream) -> Result {
        while !records.unsent().is_empty() {
            let n = self.carrier.send(records.unsent())?;
            records.sent(n);
        }
        Ok(())
    }

    /// Returns the unsent bytes of a record sent in part. Some of them may have been reported as
    /// sent.
    fn unsent_of_record(&self) -> usize {
        let Ok(session) = self.session() else { return 0 };
        match &*session.state.borrow() {
            PskState::Encrypted(records, _) => records.unsent().len(),
            _ => 0,
        }
    }

    /// Sends bytes in encrypted records. A sender stores the bytes not reported as sent, and passes
    /// them again when there is space. So all bytes but the last are reported for a record sent in
    /// part. `copy` copies some of the `len` bytes from an offset on.
    ///
    /// The peer may have earlier records of a call when a later one fails: these bytes are reported, and
    /// the next call fails.
    fn send_records(
        &self,
        records: &mut RecordStream,
        is_data_pending: &mut bool,
        len: usize,
        copy: impl Fn(usize, &mut [u8]),
    ) -> Result<usize> {
        self.flush_records(records)?;
        let mut done = usize::from(*is_data_pending && len > 0);
        if done == 1 {
            *is_data_pending = false;
        }
        while done < len {
            let n = RECORD_MAX.min(len - done);
            let sealed = records.seal(n, |buf| copy(done, buf)).map_err(|_| Error::IO);
            let flushed = match sealed {
                Ok(()) => self.flush_records(records),
                Err(error) if done == 0 => return Err(error),
                Err(_) => return Ok(done),
            };
            match flushed {
                Ok(()) => done += n,
                Err(error) if done == 0 && !matches!(error, Error::AGAIN | Error::INTR) => {
                    return Err(error);
                }
                Err(_) => {
                    *is_data_pending = true;
                    done += n - 1;
                    return if done == 0 { Err(Error::AGAIN) } else { Ok(done) };
                }
            }
        }
        Ok(done)
    }

    /// Receives during the handshake, and from records.
    #[inline(never)]
    fn recv_slow(&self, buf: &mut [u8]) -> isize {
        as_word(self.recv_keyed(buf))
    }

    fn recv_keyed(&self, buf: &mut [u8]) -> Result<usize> {
        let session = self.session()?;
        let mut state = session.state.borrow_mut();
        match self.prove(&mut state, session.encrypts) {
            Ok(true) => {}
            Ok(false) => return Ok(0),
            // A link that is being made has nothing to receive.
            Err(Error::NOTCONN) => return Err(Error::AGAIN),
            Err(error) => return Err(error),
        }
        match &mut *state {
            PskState::Unencrypted => self.carrier.recv(buf),
            PskState::Encrypted(records, _) => self.recv_records(records, buf),
            _ => Err(Error::AGAIN),
        }
    }

    #[inline(never)]
    fn recv_list_slow(&self, list: &mut ScatterList<'_>) -> Result<usize> {
        list.fill(|buf| self.recv_keyed(buf))
    }

    fn recv_records(&self, records: &mut RecordStream, buf: &mut [u8]) -> Result<usize> {
        // Rest of the first message; the engine passes other bytes again.
        let _ = self.flush_records(records);
        let mut done = records.take(buf);
        while done < buf.len() {
            let wanted = records.buf(buf.len() - done).len();
            let n = match self.carrier.recv(records.buf(buf.len() - done)) {
                // Received data is reported first; the end or the error is returned again later.
                Ok(0) | Err(_) if done > 0 => break,
                Ok(0) if records.is_within() => return Err(Error::CONNRESET),
                came => came?,
            };
            if n == 0 {
                return Ok(0);
            }
            match records.came(n, &mut buf[done..]) {
                Ok(opened) => done += opened,
                Err(_) => {
                    self.log_rejection(&"what it sent was changed on the way");
                    return Err(Error::IO);
                }
            }
            done += records.take(&mut buf[done..]);
            // A call that brought less than it might have found all there is.
            if done > 0 && n < wanted {
                break;
            }
        }
        if records.is_at_end() {
            if let Ok(more @ 1..) = self.carrier.recv(records.buf(0)) {
                if records.came(more, &mut []).is_err() {
                    return Err(Error::IO);
                }
            }
        }
        Ok(done)
    }
}

impl<L: ByteLink> Drop for PskLink<L> {
    /// Sends the rest of a record, if the carrier accepts it now. Engines wait for this before the
    /// close ([`ByteLink::unacknowledged`]).
    fn drop(&mut self) {
        let Ok(session) = self.session() else { return };
        let PskState::Encrypted(records, _) = &mut *session.state.borrow_mut() else { return };
        let _ = self.flush_records(records);
    }
}

impl<L: ByteLink> ByteLink for PskLink<L> {
    type Id = L::Id;

    forward_link! { carrier: L }

    // A direct link passes bytes without a look at the session.
    #[inline(always)]
    fn recv(&self, buf: &mut [u8]) -> Result<usize> {
        if self.is_direct.get() {
            return self.carrier.recv(buf);
        }
        from_word(self.recv_slow(buf))
    }

    #[inline(always)]
    fn send(&self, bytes: &[u8]) -> Result<usize> {
        if self.is_direct.get() {
            return self.carrier.send(bytes);
        }
        from_word(self.send_slow(bytes))
    }

    #[inline(always)]
    fn recv_list(&self, list: &mut ScatterList<'_>) -> Result<usize> {
        if self.is_direct.get() {
            return self.carrier.recv_list(list);
        }
        self.recv_list_slow(list)
    }

    #[inline(always)]
    fn send_list(&self, list: &mut GatherList<'_>, way: CopyMode) -> Result<usize> {
        if self.is_direct.get() {
            return self.carrier.send_list(list, way);
        }
        self.send_list_slow(list)
    }

    forward! { carrier:
        fn id(&self) -> L::Id;
        fn made(&self);
        fn set_traffic_class(&self, class: TrafficClass);
        fn has_ended(&self) -> bool;
        fn is_silent(&self, now: std::time::Instant) -> bool;
        fn probe(&self);
        fn shutdown(&self);
        fn end_sending(&self);
        fn reset_when_closed(&self);
    }

    fn unacknowledged(&self) -> usize {
        self.carrier.unacknowledged() + self.unsent_of_record()
    }
}

impl<L: ByteLink> AuthenticatedLink for PskLink<L> {
    fn secrecy(&self) -> [bool; 2] {
        [self.session.is_some(), self.encrypts()]
    }

    fn has_half_sent(&self) -> bool {
        self.session.as_deref().is_some_and(|session| {
            matches!(&*session.state.borrow(), PskState::Encrypted(records, is_data_pending)
                if *is_data_pending || !records.unsent().is_empty())
        })
    }
}

impl<L: ZeroCopyLink> ZeroCopyLink for PskLink<L> {
    forward! { carrier:
        fn zerocopy_size(&self) -> usize;
        fn zerocopy_done(&self) -> Result<ZerocopyDone>;
    }

    fn set_zerocopy(&self) -> Result {
        if self.encrypts() { Err(Error::NOSYS) } else { self.carrier.set_zerocopy() }
    }
}

/// Listener of links with an optional pre-shared key.
#[derive(Debug)]
pub struct PskListener<S> {
    carrier: S,
    config: PskConfig,
}

impl<S: LinkListener> LinkListener for PskListener<S> {
    type Link = PskLink<S::Link>;

    forward! { carrier:
        fn id(&self) -> <S::Link as ByteLink>::Id;
        fn listen(&self, backlog: i32) -> Result;
        fn stop_listening(&self);
        fn waiting(&self) -> usize;
    }

    fn accept(&self) -> Result<(Self::Link, Addr)> {
        let (carrier, from) = self.carrier.accept()?;
        Ok((PskLink::new(carrier, &self.config, PskHandshake::called)?, from))
    }
}

/// Transport of links authenticated by a pre-shared key, if there is one.
#[derive(Debug)]
pub struct PskTransport<N: Transport> {
    net: N,
    config: PskConfig,
}

impl<N: Transport> PskTransport<N> {
    /// Creates the transport over another one, with the user's pre-shared key.
    pub fn new(net: N) -> Self {
        Self::with_config(net, N::Link::settings().secret.clone())
    }

    /// Creates the transport over another one, with links restricted to peers with this pre-shared
    /// key.
    pub fn with_config(net: N, config: PskConfig) -> Self {
        Self { net, config }
    }
}

forward_clock! { PskTransport }

impl<N: Transport> Transport for PskTransport<N> {
    type Link = PskLink<N::Link>;
    type Listener = PskListener<N::Listener>;
    type Poller = N::Poller;
    type Flusher = N::Flusher;

    forward! { net:
        fn poller(&self) -> &N::Poller;
        fn poll(&self, events: &mut Vec<PollEvent>);
    }

    fn dial(&self, local: &Addr, keep_port: bool, to: &Addr) -> Result<Self::Link> {
        self.dial_as(None, local, keep_port, to)
    }

    fn dial_as(
        &self,
        own: Option<&PskConfig>,
        local: &Addr,
        keep_port: bool,
        to: &Addr,
    ) -> Result<Self::Link> {
        let carrier = self.net.dial(local, keep_port, to)?;
        PskLink::new(carrier, own.unwrap_or(&self.config), PskHandshake::caller)
    }

    fn bind(&self, at: &Addr) -> Result<(Self::Listener, Addr)> {
        self.bind_as(None, at)
    }

    fn bind_as(&self, own: Option<&PskConfig>, at: &Addr) -> Result<(Self::Listener, Addr)> {
        let (carrier, at) = self.net.bind(at)?;
        Ok((PskListener { carrier, config: own.unwrap_or(&self.config).clone() }, at))
    }

    // Networks with calls for several links do not encrypt.
    forward_timer! {}

    forward_transport! { PskLink::carrier }
}

impl<N: Transport> RailTransport for PskTransport<N> {}

impl<N: LinkProvider> LinkProvider for PskTransport<N> {
    forward_attributes! { N }

    fn open() -> Result<Self> {
        Self::open_with(&N::Link::settings().secret)
    }

    fn open_passive() -> Result<Self> {
        Self::open_passive_with(&N::Link::settings().secret)
    }

    fn own_secret(key: &[u8]) -> Result<PskConfig> {
        N::Link::settings().secret.with_program_key(N::Link::provider(), key)
    }

    fn open_with(config: &PskConfig) -> Result<Self> {
        config.check(N::Link::provider())?;
        Ok(Self::with_config(N::open()?, config.clone()))
    }

    fn open_passive_with(config: &PskConfig) -> Result<Self> {
        config.check(N::Link::provider())?;
        Ok(Self::with_config(N::open_passive()?, config.clone()))
    }

    fn is_for(link: &Self::Link, own: Option<&PskConfig>) -> bool {
        link.is_for(own.unwrap_or(&N::Link::settings().secret))
    }
}

#[cfg(test)]
mod tests;
