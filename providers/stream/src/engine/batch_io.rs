//! Batched calls for many connections, if the transport supports them ([`Transport::is_ring`]).
//!
//! Active connections and those reported by the poller are read with one call, up to its capacity.
//! Small messages to any peers following each other closely are sent together at the next progress
//! call, like those to one peer without such calls (see [`batch`](super::batch)). All others are
//! sent at once.
use super::incoming::{DIRECT_MIN, Got};
use super::rx_path::RxPath;
use super::state::StreamState;
use crate::transport::{ByteLink, MAX_EACH, Receiving, Sending, ShmTransport};
use ofi_provider::error::Error;

impl<N: ShmTransport> StreamState<N> {
    /// Services each of these connections like [`service`](StreamState::service). They are read
    /// with one call for up to [`MAX_EACH`] of them.
    #[inline(never)]
    pub(super) fn serve_batched(&mut self, ids: &[u32]) {
        for ids in ids.chunks(MAX_EACH) {
            for &id in ids {
                self.advance(id);
            }
            self.rx.read_batched(ids);
            for &id in ids {
                self.rx.tx.io.mark_active(id);
            }
        }
    }
}

impl<N: ShmTransport> RxPath<N> {
    /// Reads up to [`MAX_EACH`] connections with one call, and parses the data received on each.
    fn read_batched(&mut self, ids: &[u32]) {
        let mut bufs = self.staging.take_batch(ids.len(), N::Link::settings().prefetch);
        let mut receives = Vec::with_capacity(MAX_EACH);
        let mut asked = [None; MAX_EACH];
        for ((&id, buf), asked) in ids.iter().zip(&mut bufs).zip(&mut asked) {
            let Some(conn) = self.tx.io.conns.get(id) else { continue };
            // The rest of a large message goes where it belongs, by a call of its own.
            if conn.is_connected() && !conn.blocked && conn.left() < DIRECT_MIN {
                let buf = conn.buf_in(buf);
                *asked = Some((receives.len(), conn.serial, buf.len()));
                receives.push(Receiving { link: &conn.link, buf, result: Err(Error::AGAIN) });
            }
        }
        self.tx.io.net.receive_each(&mut receives);
        let mut results = [Err(Error::AGAIN); MAX_EACH];
        results.iter_mut().zip(receives).for_each(|(result, one)| *result = one.result);
        // The staging buffer is moved out while bytes are parsed, so no connection is read out of
        // order.
        let mut more = [true; MAX_EACH];
        self.expose_staging(ids, |state, _| {
            for (index, &id) in ids.iter().enumerate() {
                // The connection may be another one by now, if one before it ended.
                if let Some((slot, serial, wanted)) = asked[index] {
                    if state.tx.io.conns.named((id, serial)).is_some() {
                        let got = state.take_in(id, &bufs[index], wanted, results[slot]);
                        more[index] = matches!(got, Got::More);
                    }
                }
            }
        });
        for (&id, _) in ids.iter().zip(more).filter(|(_, more)| *more) {
            if self.tx.io.conns.get(id).is_some_and(|conn| conn.is_connected() && !conn.blocked) {
                self.read(id);
            }
        }
        self.staging.restore_batch(bufs);
    }

    /// Sends the batches of these connections, as far as links take them now, with one call
    /// for up to [`MAX_EACH`] connections.
    pub(super) fn send_batches(&mut self, ids: &[u32]) {
        for ids in ids.chunks(MAX_EACH) {
            let (mut sends, mut of) = (Vec::with_capacity(MAX_EACH), [0; MAX_EACH]);
            for &id in ids {
                let Some(conn) = self.tx.io.conns.get(id) else { continue };
                if conn.is_connected() && !conn.batch.is_empty() {
                    of[sends.len()] = id;
                    let (link, bytes) = (&conn.link, conn.batch.unsent());
                    sends.push(Sending { link, bytes, result: Err(Error::AGAIN) });
                }
            }
            self.tx.io.net.send_each(&mut sends);
            let mut results = [Err(Error::AGAIN); MAX_EACH];
            let count = sends.len();
            results.iter_mut().zip(sends).for_each(|(result, one)| *result = one.result);
            for (id, result) in of.into_iter().zip(results).take(count) {
                match result {
                    Ok(mut sent) => self.tx.account(id, &mut sent),
                    Err(Error::AGAIN | Error::INTR | Error::NOBUFS) => {}
                    Err(error) => self.sent_without_effect(id, error),
                }
            }
        }
    }

    /// Sends the batches held back.
    pub(super) fn flush_held(&mut self) {
        let held = self.tx.batcher.take_held();
        if self.tx.io.net.is_ring() {
            self.send_batches(&held);
        }
        for id in held {
            if self.tx.io.conns.is_connected(id) {
                self.flush(id);
                self.tx.io.mark_active(id);
                self.tx.io.watch_unsent(id);
            }
        }
    }
}
