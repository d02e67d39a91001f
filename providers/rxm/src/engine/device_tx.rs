//! Sending messages in memory of devices (FI_HMEM).
use super::conn::Token;
use super::conns::RxmConns;
use super::pending::{MessageWay, PendingSteps, RxmMessage, TxOp};
use super::transmit::{DELIVERED, RxmTransmit};
use crate::wire::{HEADER_LEN, PacketKind};
use ofi_provider::abi::{FI_DELIVERY_COMPLETE, FI_MATCH_COMPLETE, FI_MSG, FI_SEND, FI_TAGGED};
use ofi_provider::api::SendOp;
use ofi_provider::error::{Error, Result};

impl RxmTransmit {
    /// Creates the operation sending a message in memory of a device, as [`send_on`](Self::send_on).
    /// The core reads the memory for one packet; larger messages are announced, so a failed copy
    /// ends no connection.
    #[inline(never)]
    pub(super) fn send_device_on(
        &mut self,
        conns: &mut RxmConns,
        conn: u32,
        op: SendOp,
        tagged: bool,
    ) -> Result<(u32, bool)> {
        let len = op.buf.len();
        let processed = op.flags & FI_DELIVERY_COMPLETE != 0 && !self.common.core_delivers;
        let notified = op.flags & FI_MATCH_COMPLETE != 0 || processed;
        let is_packet =
            len <= self.common.config.eager_limit && op.buf.segments() < self.common.core_iov;
        let way = match is_packet && !notified {
            true => MessageWay::DevicePacket,
            false => MessageWay::Announced,
        };
        let (context, op_flags) = (op.context, op.flags);
        let message = RxmMessage::new(op, tagged, op_flags & DELIVERED != 0, way);
        let ready = conns.may_go(conn, op_flags);
        if ready && tagged && !conns.knows(conn, op_flags, message.tag) {
            return Err(Error::OPNOTSUPP);
        }
        let flags = FI_SEND | if tagged { FI_TAGGED } else { FI_MSG };
        let todo = PendingSteps::Send(message);
        let new = TxOp::new(conn, context, flags, op_flags, todo);
        let id = self.ops.insert(TxOp { len, ..new });
        conns[conn].sent.one(len);
        Ok((id, ready))
    }

    /// Sends a message in another form than its size requires; returns none if it has none.
    #[cold]
    pub(super) fn advance_other(
        &mut self,
        conns: &mut RxmConns,
        id: u32,
        message: &RxmMessage,
        way: MessageWay,
    ) -> Option<Result> {
        match way {
            MessageWay::DevicePacket => Some(self.send_from_device(conns, id, message)),
            // Other libraries do not fetch a message of no bytes, and never say that they have it.
            MessageWay::Announced if message.buf.is_empty() && !conns[self.ops[id].conn].ours => {
                None
            }
            MessageWay::Announced => Some(self.announce(conns, id, message)),
            MessageWay::BySize => None,
        }
    }

    /// Sends one packet with the payload in memory of a device: the core reads it there.
    fn send_from_device(&mut self, conns: &mut RxmConns, id: u32, message: &RxmMessage) -> Result {
        let common = self.common.clone();
        if common.domain.wants_local() && self.ops[id].regions.is_empty() {
            let regions = common.domain.register_send(&message.buf, FI_SEND, || common.key())?;
            self.ops[id].regions = regions;
        }
        let mut buf = conns.buffer()?;
        let op = &self.ops[id];
        let conn = &conns[op.conn];
        let Some(link) = &conn.ep else { return Err(Error::NOTCONN) };
        let mut header = message.header(PacketKind::Eager);
        header.conn_id = conn.remote_id;
        header.write(&mut buf);
        let deliver = message.deliver && common.core_delivers;
        let flags = if deliver { FI_DELIVERY_COMPLETE } else { 0 };
        let token = Token::Message(id).to_u64();
        link.send_with(buf, HEADER_LEN, &message.buf, &op.regions, flags, token).map_err(
            |(error, buf)| {
                conns.release(Some(buf));
                error
            },
        )
    }
}
