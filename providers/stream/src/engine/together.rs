//! Batched calls for many connections, if the transport supports them ([`Net::is_ring`]).
//!
//! Active connections and those reported by the poller are read with one call, up to its capacity.
//! Small messages to any peers following each other closely are sent together at the next progress
//! call, like those to one peer without such calls (see [`batch`](super::batch)). All others are
//! sent at once.
use super::incoming::{DIRECT_MIN, Got};
use super::state::StreamState;
use super::transfer::Leaves;
use crate::net::{ByteLink, MAX_EACH, Net, Receiving, Sending};
use ofi_provider::error::Error;

impl<N: Net> StreamState<N> {
    /// Decides, with calls for many connections, if a small transfer is sent at once or together
    /// with those to other peers. Nothing is queued before it on its connection.
    pub(super) fn leaves_by_ring(&mut self, more: bool, nobody_looks: bool) -> Leaves {
        let turn = self.turns;
        let follows = self.left_in == turn && !nobody_looks;
        if more || (follows && self.left.is_on(&self.net)) {
            return Leaves::Together;
        }
        self.left_in = turn;
        self.left.has_left(&self.net);
        if follows { Leaves::Next } else { Leaves::First }
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
                    Err(error) => self.sent_in_vain(id, error),
                }
            }
        }
    }

    /// Gives each of these connections a turn, as [`service`](StreamState::service) does; they are
    /// read with one call for up to [`MAX_EACH`] of them.
    pub(super) fn serve_together(&mut self, ids: &[u32]) {
        for ids in ids.chunks(MAX_EACH) {
            for &id in ids {
                self.advance(id);
            }
            self.read_together(ids);
            for &id in ids {
                self.heat(id);
            }
        }
    }

    /// Reads up to [`MAX_EACH`] connections with one call, and parses the data received on each.
    fn read_together(&mut self, ids: &[u32]) {
        let mut rooms = std::mem::take(&mut self.rooms);
        rooms.resize_with(rooms.len().max(ids.len()), || {
            vec![0; N::Link::settings().prefetch].into_boxed_slice()
        });
        let mut receives = Vec::with_capacity(MAX_EACH);
        let mut asked = [None; MAX_EACH];
        for ((&id, room), asked) in ids.iter().zip(&mut rooms).zip(&mut asked) {
            let Some(conn) = self.conns.get(id) else { continue };
            // The rest of a large message goes where it belongs, by a call of its own.
            if conn.is_connected() && !conn.blocked && conn.left() < DIRECT_MIN {
                let room = conn.room_in(room);
                *asked = Some((receives.len(), conn.serial, room.len()));
                receives.push(Receiving { link: &conn.link, room, result: Err(Error::AGAIN) });
            }
        }
        self.net.receive_each(&mut receives);
        let mut results = [Err(Error::AGAIN); MAX_EACH];
        results.iter_mut().zip(receives).for_each(|(result, one)| *result = one.result);
        // While bytes are parsed the staging buffer is lent, so that nothing reads a connection
        // out of turn.
        let mut more = [true; MAX_EACH];
        self.lend_staging(ids, |state, _| {
            for (index, &id) in ids.iter().enumerate() {
                // The connection may be another one by now, if one before it ended.
                if let Some((place, serial, wanted)) = asked[index]
                    && state.conns.get(id).is_some_and(|conn| conn.serial == serial)
                {
                    let got = state.take_in(id, &rooms[index], wanted, results[place]);
                    more[index] = matches!(got, Got::More);
                }
            }
        });
        for (&id, _) in ids.iter().zip(more).filter(|(_, more)| *more) {
            if self.conns.get(id).is_some_and(|conn| conn.is_connected() && !conn.blocked) {
                self.read(id);
            }
        }
        self.rooms = rooms;
    }
}
