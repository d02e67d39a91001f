//! Batched calls for many connections, if the transport supports them ([`Transport::is_ring`]).
//!
//! Active connections and those reported by the poller are read with one call, up to its capacity.
//! Small messages to any peers following each other closely are sent together at the next progress
//! call, like those to one peer without such calls (see [`batch`](super::batch)). All others are
//! sent at once.
use super::incoming::{DIRECT_MIN, Got};
use super::state::StreamState;
use super::transfer::TxSchedule;
use crate::transport::{ByteLink, MAX_EACH, Receiving, Sending, Transport};
use ofi_provider::error::Error;

impl<N: Transport> StreamState<N> {
    /// Decides, with calls for many connections, if a small transfer is sent at once or together
    /// with those to other peers. Nothing is queued before it on its connection.
    pub(super) fn leaves_by_ring(&mut self, more: bool, app_is_not_polling: bool) -> TxSchedule {
        let iteration = self.iterations;
        let follows = self.left_in == iteration && !app_is_not_polling;
        if more || (follows && self.left.is_on(&self.net)) {
            return TxSchedule::Batched;
        }
        self.left_in = iteration;
        self.left.has_left(&self.net);
        if follows { TxSchedule::Next } else { TxSchedule::First }
    }

    /// Sends the batches of these connections, as far as links take them now, with one call
    /// for up to [`MAX_EACH`] connections.
    pub(super) fn send_batches(&mut self, ids: &[u32]) {
        for ids in ids.chunks(MAX_EACH) {
            let (mut sends, mut of) = (Vec::with_capacity(MAX_EACH), [0; MAX_EACH]);
            for &id in ids {
                let Some(conn) = self.conns.get(id) else { continue };
                if conn.is_connected() && !conn.batch.is_empty() {
                    of[sends.len()] = id;
                    let (link, bytes) = (&conn.link, conn.batch.unsent());
                    sends.push(Sending { link, bytes, result: Err(Error::AGAIN) });
                }
            }
            self.net.send_each(&mut sends);
            let mut results = [Err(Error::AGAIN); MAX_EACH];
            let count = sends.len();
            results.iter_mut().zip(sends).for_each(|(result, one)| *result = one.result);
            for (id, result) in of.into_iter().zip(results).take(count) {
                match result {
                    Ok(mut sent) => self.account(id, &mut sent),
                    Err(Error::AGAIN | Error::INTR | Error::NOBUFS) => {}
                    Err(error) => self.sent_without_effect(id, error),
                }
            }
        }
    }

    /// Services each of these connections like [`service`](StreamState::service). They are read
    /// with one call for up to [`MAX_EACH`] of them.
    pub(super) fn serve_batched(&mut self, ids: &[u32]) {
        for ids in ids.chunks(MAX_EACH) {
            for &id in ids {
                self.advance(id);
            }
            self.read_batched(ids);
            for &id in ids {
                self.mark_active(id);
            }
        }
    }

    /// Reads up to [`MAX_EACH`] connections with one call, and parses the data received on each.
    fn read_batched(&mut self, ids: &[u32]) {
        let mut bufs = std::mem::take(&mut self.bufs);
        bufs.resize_with(bufs.len().max(ids.len()), || {
            vec![0; N::Link::settings().prefetch].into_boxed_slice()
        });
        let mut receives = Vec::with_capacity(MAX_EACH);
        let mut asked = [None; MAX_EACH];
        for ((&id, buf), asked) in ids.iter().zip(&mut bufs).zip(&mut asked) {
            let Some(conn) = self.conns.get(id) else { continue };
            // The rest of a large message goes where it belongs, by a call of its own.
            if conn.is_connected() && !conn.blocked && conn.left() < DIRECT_MIN {
                let buf = conn.buf_in(buf);
                *asked = Some((receives.len(), conn.serial, buf.len()));
                receives.push(Receiving { link: &conn.link, buf, result: Err(Error::AGAIN) });
            }
        }
        self.net.receive_each(&mut receives);
        let mut results = [Err(Error::AGAIN); MAX_EACH];
        results.iter_mut().zip(receives).for_each(|(result, one)| *result = one.result);
        // The staging buffer is moved out while bytes are parsed, so no connection is read out of
        // order.
        let mut more = [true; MAX_EACH];
        self.expose_staging(ids, |state, _| {
            for (index, &id) in ids.iter().enumerate() {
                // The connection may be another one by now, if one before it ended.
                if let Some((slot, serial, wanted)) = asked[index]
                    && state.conns.get(id).is_some_and(|conn| conn.serial == serial)
                {
                    let got = state.take_in(id, &bufs[index], wanted, results[slot]);
                    more[index] = matches!(got, Got::More);
                }
            }
        });
        for (&id, _) in ids.iter().zip(more).filter(|(_, more)| *more) {
            if self.conns.get(id).is_some_and(|conn| conn.is_connected() && !conn.blocked) {
                self.read(id);
            }
        }
        self.bufs = bufs;
    }
}
