//! Connections of an endpoint, their packets, and the buffers of these.
use super::common::{Common, process_id};
use super::conn::{INDEX_BITS, Link, RxmConn, Token, Waiting, names};
use super::core_objects::{LocalPaths, RxmCore};
use super::pending::RxmUnexpected;
use crate::provider::RXM;
use crate::wire::{
    FlowControl, HEADER_LEN, Malformed, PacketKind, Parsed, RxmHeader, SEGMENTS_LEN, write_segments,
};
use ofi_provider::abi::{FI_FENCE, fi_peer_links};
use ofi_provider::api::RemoteSegments;
use ofi_provider::buf::SendBuf;
use ofi_provider::core_provider::{CoreBuf, CoreEndpoint};
use ofi_provider::deferred::is_group_notice;
use ofi_provider::endpoint::count_links;
use ofi_provider::error::{Error, Result};
use ofi_provider::info::InfoBuf;
use ofi_provider::peers::PeerTable;
use ofi_provider::rx_matcher::{Envelope, RxMatcher};
use ofi_provider::slab::Slab;
use std::ops::{Deref, Index, IndexMut};
use std::sync::Arc;

/// The connections of an endpoint.
pub(crate) struct RxmConns {
    common: Arc<Common>,
    conns: Slab<RxmConn>,
    /// Free packet buffers.
    free: Vec<CoreBuf>,
    /// Connections with transfers blocked on space in the core.
    stalled: Vec<u32>,
    /// Number of connections not established yet.
    unready: usize,
    /// Further connections to be started: the source of their first one, and their index.
    pub(super) wanted: Vec<(u64, usize)>,
    /// Bytes of early segments.
    pub(super) early_bytes: usize,
    #[cfg(test)]
    limit: Option<usize>,
}

impl Deref for RxmConns {
    type Target = Slab<RxmConn>;

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        &self.conns
    }
}

impl Index<u32> for RxmConns {
    type Output = RxmConn;

    #[inline(always)]
    fn index(&self, id: u32) -> &RxmConn {
        &self.conns[id]
    }
}

impl IndexMut<u32> for RxmConns {
    #[inline(always)]
    fn index_mut(&mut self, id: u32) -> &mut RxmConn {
        &mut self.conns[id]
    }
}

impl RxmConns {
    pub(super) fn new(common: Arc<Common>) -> Self {
        let (free, stalled) = (Vec::new(), Vec::new());
        Self {
            common,
            conns: Slab::default(),
            free,
            stalled,
            unready: 0,
            wanted: Vec::new(),
            early_bytes: 0,
            #[cfg(test)]
            limit: None,
        }
    }

    #[inline(always)]
    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut RxmConn> {
        self.conns.get_mut(id)
    }

    /// Adds a connection, not established yet.
    pub(super) fn insert(&mut self, conn: RxmConn) -> u32 {
        self.unready += 1;
        self.conns.insert(conn)
    }

    /// Removes a connection; its end is [noted](Self::note_end) already.
    pub(super) fn remove(&mut self, id: u32) -> Option<RxmConn> {
        self.conns.remove(id)
    }

    /// Removes a connection without any use yet.
    pub(super) fn remove_unready(&mut self, id: u32) {
        self.conns.remove(id);
        self.unready -= 1;
    }

    /// Records a connection as established.
    pub(super) fn note_established(&mut self) {
        self.unready -= 1;
    }

    /// Records the agreement on the end of a connection by the peer, or the peer's cancellation of
    /// it. Transfers wait after an agreement, as before the connection is established.
    pub(super) fn set_closing(&mut self, id: u32, is_closing: bool) {
        (self.conns[id].link, self.unready) = match is_closing {
            true => (Link::Closing, self.unready + 1),
            false => (Link::Connected, self.unready - 1),
        };
    }

    /// Records the end of a connection, established or not.
    pub(super) fn note_end(&mut self, id: u32, was_made: bool) {
        if !was_made {
            self.unready -= 1;
        }
        if std::mem::take(&mut self.conns[id].stalled) {
            self.stalled.retain(|stalled| *stalled != id);
        }
    }

    /// Returns the number of connections to a peer.
    #[inline(always)]
    pub(super) fn num_msg_eps(&self) -> usize {
        #[cfg(test)]
        if let Some(limit) = self.limit {
            return limit;
        }
        self.common.config.num_msg_eps
    }

    /// Limits the number of connections to a peer for one endpoint of a simulation.
    #[cfg(test)]
    pub(super) fn limit_to(&mut self, count: usize) {
        self.limit = Some(count);
    }

    /// Returns true if the core can report the delivery of a transfer.
    pub(super) fn core_delivers(&self) -> bool {
        self.common.core_delivers
    }

    /// Returns true if connections are not established yet.
    #[inline(always)]
    pub(super) fn has_unready(&self) -> bool {
        self.unready > 0
    }

    /// Returns the connections with transfers blocked on space in the core.
    #[inline(always)]
    pub(super) fn stalled(&self) -> &[u32] {
        &self.stalled
    }

    /// Takes these connections, to be retried.
    pub(super) fn take_stalled(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.stalled)
    }

    /// Returns the number of connections not established yet.
    #[cfg(test)]
    pub(super) fn unready(&self) -> usize {
        self.unready
    }

    /// A buffer for one packet: a free one, or a new one.
    #[inline]
    pub(super) fn buffer(&mut self) -> Result<CoreBuf> {
        self.free.pop().map_or_else(|| self.common.buffer(), Ok)
    }

    /// Returns an unused packet buffer to the free list.
    #[inline]
    pub(super) fn release(&mut self, buf: Option<CoreBuf>) {
        // A buffer of another size was made for a single packet.
        if let Some(buf) = buf {
            if buf.len() == HEADER_LEN + self.common.config.eager_limit {
                self.free.push(buf);
            }
        }
    }

    /// Returns the source reported by the core for data received on a connection.
    pub(super) fn source(&self, id: u32) -> u64 {
        u64::from(self.conns[id].name(id))
    }

    /// Returns true if transfers can be sent on a connection right now.
    #[inline]
    pub(super) fn is_ready(&self, conn: u32) -> bool {
        self.conns[conn].is_ready()
    }

    /// Returns true if transfers already started, or awaited by a peer, can be sent on a connection
    /// right now.
    #[inline]
    pub(super) fn is_ready_for_urgent(&self, conn: u32) -> bool {
        let conn = &self.conns[conn];
        conn.link == Link::Connected && conn.urgent.is_empty()
    }

    /// Returns true if a transfer with these flags can start right now.
    #[inline]
    pub(super) fn may_go(&self, conn: u32, flags: u64) -> bool {
        self.is_ready(conn) && (flags & FI_FENCE == 0 || self.conns[conn].ops == 0)
    }

    /// Returns true if the peer of a connection accepts this tagged message: multicast notices
    /// require a peer with this feature.
    pub(super) fn knows(&self, conn: u32, flags: u64, tag: u64) -> bool {
        !is_group_notice(flags, tag) || self.conns[conn].multicast
    }

    /// Returns the flags of a read or write, executed by the peer's core on arrival. While atomic
    /// operations wait for the peer's software, it must not overtake them (FI_ORDER_RAW,
    /// FI_ORDER_WAW), so it gets a fence. Several connections have no such order.
    #[inline]
    pub(super) fn behind_atomics(&self, conn: u32, flags: u64) -> u64 {
        let ordered = self.num_msg_eps() == 1;
        if ordered && self.conns[conn].atomics > 0 { flags | FI_FENCE } else { flags }
    }

    /// Returns true if responses on a connection belong to transfers already failed.
    pub(super) fn is_given_up(&self, conn: u32) -> bool {
        self.conns.get(conn).is_some_and(|conn| conn.given_up)
    }

    /// Starts credit-based flow control on a connection, if both sides request it: each counts the
    /// other's receive buffers. Each starts with one buffer, reserved for announcing more.
    pub(super) fn count_credits(&mut self, id: u32, peers: FlowControl) {
        let wanted = self.common.flow_control && peers == FlowControl::On;
        let Some(conn) = self.conns.get_mut(id).filter(|_| wanted) else { return };
        conn.counted = true;
        if let Some(ep) = &conn.ep {
            ep.count_credits(conn.early.saturating_add(1));
        }
    }

    /// Posts receive buffers of a connection's own until it has enough, or as
    /// many as fit the core's completion queue.
    pub(super) fn post_own(&mut self, id: u32) {
        let most = self.common.rx_buffers(false);
        while let Some(RxmConn { ep: Some(_), rx_posted, rx_wanted, .. }) = self.conns.get(id) {
            if *rx_posted >= most.min(*rx_wanted) {
                return;
            }
            let first = *rx_posted == 0;
            let Ok(buf) = self.buffer() else { return };
            let Some(conn) = self.conns.get_mut(id) else { return };
            let Some(ep) = &conn.ep else { return };
            if let Err((_, buf)) = ep.post(buf, Token::Rx(id).to_u64(), first) {
                // The core has no room now, or the connection is ending.
                self.release(Some(buf));
                return;
            }
            conn.rx_posted += 1;
            conn.unnotified += 1;
        }
    }

    /// Announces new receive buffers to a peer with flow control, once there are many.
    pub(super) fn grant(&mut self, id: u32) {
        let enough = (self.common.rx_buffers(false) as u32 / 2).max(1);
        let Some(conn) = self.conns.get(id).filter(|conn| conn.counted) else { return };
        // A peer about to close the connection may need a credit to cancel that.
        let is_open = matches!(conn.link, Link::Connected | Link::Closing);
        if conn.unnotified < enough || !is_open {
            return;
        }
        // Without memory for a packet the peer is notified in a later progress iteration.
        let Ok(mut buf) = self.buffer() else { return self.stall(id) };
        let Some(conn) = self.conns.get_mut(id) else { return };
        let header = RxmHeader {
            conn_id: conn.remote_id,
            ctrl_data: u64::from(conn.unnotified),
            ..RxmHeader::of(PacketKind::Credit, 0)
        };
        header.write(&mut buf);
        let Some(link) = &conn.ep else { return };
        match link.send_urgent(buf, HEADER_LEN, Token::Packet.to_u64()) {
            Ok(()) => {
                let unnotified = std::mem::take(&mut conn.unnotified);
                ofi_provider::log!(
                    &RXM,
                    DEBUG,
                    EP_DATA,
                    "told a peer of {unnotified} more receives"
                );
            }
            Err((error, buf)) => {
                self.release(Some(buf));
                if error == Error::AGAIN {
                    self.stall(id);
                }
            }
        }
    }

    /// Handles a peer's announcement of more receive buffers.
    pub(super) fn granted(&mut self, id: u32, credits: u64) -> Parsed {
        let credits = u32::try_from(credits).map_err(|_| Malformed("more credits than can be"))?;
        ofi_provider::log!(&RXM, DEBUG, EP_DATA, "a peer has {credits} more receives");
        match self.conns.get_mut(id) {
            Some(RxmConn { counted: true, ep: Some(ep), .. }) => ep.add_credits(credits),
            Some(conn) => conn.early = conn.early.saturating_add(credits),
            None => {}
        }
        Ok(())
    }

    pub(super) fn stall(&mut self, id: u32) {
        let conn = &mut self.conns[id];
        if !conn.stalled && conn.link != Link::Ended {
            conn.stalled = true;
            self.stalled.push(id);
        }
    }

    /// Sends a control packet of the provider, outside the order of messages.
    pub(super) fn send_control(
        &mut self,
        id: u32,
        header: RxmHeader,
        segments: Option<&RemoteSegments>,
    ) {
        // Without memory for a packet the peer waits until the connection ends.
        let Ok(mut buf) = self.buffer() else { return };
        let mut len = 0;
        if let Some(segments) = segments {
            write_segments(segments, &mut buf[HEADER_LEN..]);
            len = SEGMENTS_LEN;
        }
        self.send_made(id, header, buf, len);
    }

    /// Sends a packet with its payload of `len` bytes already in the buffer.
    pub(super) fn send_made(
        &mut self,
        id: u32,
        mut header: RxmHeader,
        mut buf: CoreBuf,
        len: usize,
    ) {
        let Some(conn) = self.conns.get(id) else {
            self.release(Some(buf));
            return;
        };
        header.conn_id = conn.remote_id;
        header.write(&mut buf);
        let ready = self.is_ready_for_urgent(id);
        self.send_packet(id, buf, HEADER_LEN + len, ready);
    }

    pub(super) fn send_packet(&mut self, id: u32, buf: CoreBuf, len: usize, ready: bool) {
        let token = Token::Packet;
        let Some(link) = self.conns[id].ep.as_ref().filter(|_| ready) else {
            self.conns[id].urgent.push_back(Waiting::Packet(buf, len, token));
            return;
        };
        if let Err((error, buf)) = link.send(buf, len, token.to_u64()) {
            if error == Error::AGAIN {
                self.conns[id].urgent.push_back(Waiting::Packet(buf, len, token));
                self.stall(id);
            } else {
                self.release(Some(buf));
            }
        }
    }

    /// Notifies the sender of an announced message: it will not be read.
    pub(super) fn not_wanted(&mut self, conn: u32, msg_id: u64) {
        let mut done = RxmHeader::of(PacketKind::RndvReadDone, 0);
        done.msg_id = msg_id;
        self.send_control(conn, done, None);
    }

    /// Reads the headers of a packet received on this connection; returns the bytes after them as
    /// well.
    #[inline]
    pub(super) fn read_packet<'a>(
        &self,
        packet: &'a [u8],
        id: u32,
    ) -> Parsed<(RxmHeader, &'a [u8])> {
        let conn_id = RxmHeader::conn_id(packet).unwrap_or(0);
        let (conn, source) = (&self.conns[id], self.named_by(id));
        if !conn.swapped && names(conn_id, source) {
            return RxmHeader::read(packet);
        }
        // The peer's acceptance says that its byte order is not ours, but the peer's packets may
        // overtake the acceptance.
        let swapped = conn.swapped || conn.link == Link::Calling;
        if swapped && names(conn_id.swap_bytes(), source) {
            return RxmHeader::read_swapped(packet);
        }
        Err(Malformed("a packet that says to be of another connection"))
    }

    /// Returns true if transfers wait for a connection to be established, or for space in the core.
    pub(super) fn has_waiting(&self) -> bool {
        let waits = |conn: &RxmConn| conn.link != Link::Connected && !conn.waiting.is_empty();
        !self.stalled.is_empty()
            || (self.unready > 0 && self.conns.iter().any(|(_, conn)| waits(conn)))
    }

    /// Returns the number of connections by kind of link (FI_OPT_PEER_LINKS).
    pub(crate) fn peer_links(&self) -> fi_peer_links {
        let made = |conn: &&RxmConn| conn.link == Link::Connected;
        let conns = self.conns.iter().map(|(_, conn)| conn).filter(made);
        let conns = conns.filter(|conn| conn.first == 0);
        count_links(conns.filter_map(|conn| conn.ep.as_ref()).map(CoreEndpoint::is_in_memory))
    }

    /// Our number of a connection, as connection data have it: the number of the first connection to
    /// the peer.
    pub(super) fn conn_id(&self, id: u32) -> u64 {
        u64::from(process_id()) << 32 | self.named_by(id)
    }

    /// Closes the core's endpoint of a connection without any data sent yet.
    pub(super) fn drop_link(&mut self, id: u32) {
        self.conns[id].usage.open = None;
        if let Some(ep) = self.conns[id].ep.take() {
            for (_, buf) in ep.close() {
                self.release(buf);
            }
        }
    }

    /// Copies the application's data; returns the copy, and the same as the buffer to send.
    #[cold]
    pub(super) fn copy_of(&mut self, buf: &SendBuf) -> Result<(CoreBuf, SendBuf)> {
        let mut copy = self.buffer()?;
        let sent = self.common.copy_of(buf, &mut copy)?;
        Ok((copy, sent))
    }

    /// Opens the core's endpoint of a connection, with receive buffers.
    pub(super) fn open_link(
        &mut self,
        core: Option<&RxmCore>,
        id: u32,
        mut info: InfoBuf,
        permitted: LocalPaths,
    ) -> Result {
        let core = core.ok_or(Error::OPBADSTATE)?;
        if core.srx.is_some() {
            info.edit_ep(|ep| ep.rx_ctx_cnt = ofi_provider::abi::FI_SHARED_CONTEXT);
        }
        let (srx, token) = (core.srx.as_ref(), u64::from(id));
        let ep = CoreEndpoint::open(&info, &core.eq, &core.cq, srx, &core.cntrs, token)?;
        // A core that knows no such memory need not be forbidden to use it.
        if !permitted.memory {
            let _ = ep.forbid_memory();
        }
        if !permitted.p2p {
            let _ = ep.forbid_p2p();
        }
        let own = core.srx.is_none();
        match ep.set_source(self.source(id)) {
            // A connection that has buffers of its own needs no source: its packets come in those
            // buffers.
            Err(error) if !own => return Err(error),
            _ => {}
        }
        let conn = &mut self.conns[id];
        (conn.ep, conn.rx_posted, conn.counted, conn.early) = (Some(ep), 0, false, 0);
        conn.usage.open = Some(self.common.conn_counts.count_open());
        if self.common.flow_control {
            // The number of buffers cannot grow as messages arrive, because the peer sends none
            // before it is notified of buffers.
            conn.rx_wanted = self.common.rx_buffers(false);
        }
        if own {
            self.post_own(id);
            // The peer knows of one buffer without a notification.
            self.conns[id].unnotified = (self.conns[id].rx_posted as u32).saturating_sub(1);
            // Without a single receive nothing would ever come.
            if self.conns[id].rx_posted == 0 {
                return Err(Error::NOBUFS);
            }
        }
        Ok(())
    }

    #[inline]
    pub(super) fn envelope(
        &self,
        matcher: &RxMatcher<RxmUnexpected>,
        header: &RxmHeader,
        conn: u32,
    ) -> Parsed<Envelope> {
        // A length that no buffer can have violates the protocol.
        let len = usize::try_from(header.size).ok().filter(|len| *len <= isize::MAX as usize);
        Ok(Envelope {
            tagged: header.is_tagged(),
            msg_tag: None,
            collective: header.is_tagged() && matcher.rules.is_internal_tag(header.tag),
            tag: if header.is_tagged() { header.tag } else { 0 },
            len: len.ok_or(Malformed("a message longer than memory"))?,
            cq_data: header.cq_data(),
            peer: self[conn].peer,
        })
    }

    /// Adds a connection; returns its index. -FI_ENOBUFS when there are as many as can be named.
    pub(super) fn new_conn(
        &mut self,
        peers: &mut PeerTable<()>,
        peer: u32,
        link: Link,
    ) -> Result<u32> {
        let id = self.insert(RxmConn::new(peer, link));
        if id >= 1 << INDEX_BITS {
            self.remove_unready(id);
            return Err(Error::NOBUFS);
        }
        peers.attach(peer);
        Ok(id)
    }
}
