//! The engine's way to its sockets: a call for each, or, if the user wants that
//! (FI_TCP_IO_URING) and the system lets us, a ring that takes many at once.
//!
//! Connections that epoll tells of and hot ones are read with one call, as many as
//! a ring takes. Small messages to whatever peers that follow each other closely
//! leave together at the next progress, as those to one peer do without a ring (see
//! [`batch`](super::batch)); all others are sent at once.
use super::State;
use super::batch::Burst;
use super::rx::{DIRECT_MIN, Got};
use super::tx::Leaves;
use crate::config::config;
use crate::ring::{BATCH, Op, Ring};
use crate::sock::Socket;
use ofi_provider::buf::{IoVecs, Way};
use ofi_provider::error::{Error, Result};
use std::sync::Once;

/// How bytes get to sockets and from them: through an io_uring if there is one, else by a system
/// call each.
#[derive(Debug)]
pub(super) struct Transport(Option<Box<Uring>>);

#[derive(Debug)]
struct Uring {
    ring: Ring,
    /// Buffers for what is read from many connections at once, one for each read.
    rooms: Vec<Box<[u8]>>,
    /// The turn in which a message last left at once, and when that was (`left`).
    left_in: u64,
    left: Burst,
}

impl Transport {
    /// The transport the user chose (FI_TCP_IO_URING); system calls if the system has no
    /// io_uring for us.
    pub(super) fn new() -> Self {
        if !config().io_uring {
            return Self(None);
        }
        let ring = Ring::new().inspect_err(|error| {
            static TOLD: Once = Once::new();
            TOLD.call_once(|| {
                ofi_provider::log!(
                    &crate::info::TCP,
                    INFO,
                    DOMAIN,
                    "the system lets us have no io_uring ({error}); FI_TCP_IO_URING has no effect"
                );
            });
        });
        let uring = |ring| Uring { ring, rooms: Vec::new(), left_in: 0, left: Burst::default() };
        Self(ring.ok().map(uring).map(Box::new))
    }

    #[inline(always)]
    pub(super) fn is_ring(&self) -> bool {
        self.0.is_some()
    }

    /// Runs operations on the ring. If the ring fails, it is dropped and system calls are used
    /// from then on.
    fn run(&mut self, ops: &mut [Op<'_>]) {
        if let Some(uring) = &mut self.0
            && let Err(error) = uring.ring.run(ops)
        {
            ofi_provider::log!(
                &crate::info::TCP,
                WARN,
                EP_DATA,
                "the io_uring is out of order ({error}); going on without it"
            );
            self.0 = None;
        }
    }

    fn run_one(&mut self, op: Op<'_>) -> Result<usize> {
        let mut ops = [op];
        self.run(&mut ops);
        ops[0].result
    }

    /// With a ring: whether a small transfer, before which nothing waits on its connection,
    /// leaves at once or together with those to other peers.
    pub(super) fn leaves(&mut self, more: bool, turn: u64, nobody_looks: bool) -> Leaves {
        let Some(uring) = &mut self.0 else { return Leaves::First };
        let follows = uring.left_in == turn && !nobody_looks;
        if more || (follows && uring.left.is_on()) {
            return Leaves::Together;
        }
        uring.left_in = turn;
        uring.left.has_left();
        if follows { Leaves::Next } else { Leaves::First }
    }

    /// [`Socket::recv`], through the ring if there is one.
    #[inline(always)]
    pub(super) fn receive(&mut self, socket: &Socket, room: &mut [u8]) -> Result<usize> {
        if self.is_ring() {
            return self.run_one(Op::receive(socket, room));
        }
        socket.recv(room)
    }

    /// [`IoVecs::receive`], through the ring if there is one.
    ///
    /// # Safety The contract of [`IoVecs::receive`].
    pub(super) unsafe fn receive_list(
        &mut self,
        socket: &Socket,
        list: &mut IoVecs,
    ) -> Result<usize> {
        if self.is_ring() {
            let mut message = list.message();
            // SAFETY: by this function's contract.
            return self.run_one(unsafe { Op::receive_list(socket, &mut message) });
        }
        // SAFETY: by this function's contract.
        unsafe { list.receive(socket.fd()) }
    }

    /// [`IoVecs::send_by`], through the ring if there is one.
    ///
    /// # Safety The contract of [`IoVecs::send_by`].
    pub(super) unsafe fn send_list(
        &mut self,
        socket: &Socket,
        list: &mut IoVecs,
        way: Way,
    ) -> Result<usize> {
        if self.is_ring() {
            let message = list.message();
            // SAFETY: by this function's contract.
            return self.run_one(unsafe { Op::send_list(socket, &message, way) });
        }
        // SAFETY: by this function's contract.
        unsafe { list.send_by(socket.fd(), way) }
    }
}

impl State {
    /// Sends the batches of these connections, as far as sockets take them now, with one call
    /// for up to [`BATCH`] connections.
    pub(super) fn send_batches(&mut self, ids: &[u32]) {
        for ids in ids.chunks(BATCH) {
            let (mut ops, mut count) = (Op::nothing(), 0);
            let mut of = [0; BATCH];
            for &id in ids {
                let Some(conn) = self.conns.get(id) else { continue };
                if conn.is_connected() && !conn.batch.is_empty() {
                    (ops[count], of[count]) = (Op::send(&conn.socket, conn.batch.unsent()), id);
                    count += 1;
                }
            }
            self.transport.run(&mut ops[..count]);
            let results = ops.map(|op| op.result);
            for (id, result) in of.into_iter().zip(results).take(count) {
                match result {
                    Ok(mut sent) => self.account(id, &mut sent),
                    Err(Error::AGAIN | Error::INTR | Error::NOBUFS) => {}
                    Err(error) => self.sent_in_vain(id, error),
                }
            }
        }
    }

    /// Gives each of these connections a turn, as [`service`](State::service) does; they are
    /// read with one call for up to [`BATCH`] of them.
    pub(super) fn serve_together(&mut self, ids: &[u32]) {
        for ids in ids.chunks(BATCH) {
            for &id in ids {
                self.advance(id);
            }
            self.read_together(ids);
            for &id in ids {
                self.heat(id);
            }
        }
    }

    /// Reads up to [`BATCH`] connections with one call, and parses what came on each.
    fn read_together(&mut self, ids: &[u32]) {
        let Some(uring) = &mut self.transport.0 else { return };
        let mut rooms = std::mem::take(&mut uring.rooms);
        rooms.resize_with(rooms.len().max(ids.len()), || {
            vec![0; config().prefetch].into_boxed_slice()
        });
        let (mut ops, mut count) = (Op::nothing(), 0);
        let mut asked = [None; BATCH];
        for ((&id, room), asked) in ids.iter().zip(&mut rooms).zip(&mut asked) {
            let Some(conn) = self.conns.get(id) else { continue };
            // The rest of a large message goes where it belongs, by a call of its own.
            if conn.is_connected() && !conn.blocked && conn.left() < DIRECT_MIN {
                let room = conn.room_in(room);
                *asked = Some((count, conn.serial, room.len()));
                ops[count] = Op::receive(&conn.socket, room);
                count += 1;
            }
        }
        self.transport.run(&mut ops[..count]);
        let results = ops.map(|op| op.result);
        // While bytes are parsed the staging buffer is lent, so that nothing reads a connection
        // out of turn.
        let mut more = [true; BATCH];
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
        if let Some(uring) = &mut self.transport.0 {
            uring.rooms = rooms;
        }
    }
}
