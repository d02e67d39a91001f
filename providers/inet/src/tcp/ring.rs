//! Sends and receives on many sockets in one system call: an io_uring.
//!
//! No operation outlives the call submitting it. All operations are non-blocking (MSG_DONTWAIT),
//! and the kernel executes them, or rejects them with -EAGAIN, while it takes them from the ring.
//! So the kernel never holds memory of this process between calls. A connection may be closed and a
//! buffer reused at any time, and the submitting thread may be any, and may exit.
use super::sock::TcpSocket;
use io_uring::types::Fd;
use io_uring::{IoUring, Probe, opcode, squeue};
use ofi_provider::buf::CopyMode;
use ofi_provider::error::{Error, Result};
use ofi_stream::transport::MAX_EACH;
use std::marker::PhantomData;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// Most operations in one call.
pub(crate) const BATCH: usize = MAX_EACH;

/// Send or receive, with its result.
pub(crate) struct RingOp<'a> {
    entry: squeue::Entry,
    /// Bytes sent or received; -FI_EAGAIN until it is run.
    pub(crate) result: Result<usize>,
    /// The operation borrows its socket and memory.
    uses: PhantomData<&'a mut [u8]>,
}

impl<'a> RingOp<'a> {
    fn new(entry: squeue::Entry) -> Self {
        Self { entry, result: Err(Error::AGAIN), uses: PhantomData }
    }

    /// Creates an array of empty operations, to be replaced.
    pub(crate) fn nothing() -> [Self; BATCH] {
        std::array::from_fn(|_| Self::new(opcode::Nop::new().build()))
    }

    /// Creates an operation equivalent to [`TcpSocket::send`].
    pub(crate) fn send(socket: &'a TcpSocket, bytes: &'a [u8]) -> Self {
        let send = opcode::Send::new(Fd(socket.fd()), bytes.as_ptr(), short(bytes.len()));
        Self::new(send.flags(CopyMode::Copied.flags()).build())
    }

    /// Creates an operation equivalent to [`TcpSocket::recv`].
    pub(crate) fn receive(socket: &'a TcpSocket, buf: &'a mut [u8]) -> Self {
        let recv = opcode::Recv::new(Fd(socket.fd()), buf.as_mut_ptr(), short(buf.len()));
        Self::new(recv.flags(libc::MSG_DONTWAIT).build())
    }

    /// Creates an operation sending the bytes named by a gather list.
    ///
    /// # Safety
    /// The memory named by `list` is alive when the operation is run, and after it as long as
    /// required by [`CopyMode::ZeroCopy`].
    pub(crate) unsafe fn send_list(
        socket: &'a TcpSocket,
        list: &'a libc::msghdr,
        way: CopyMode,
    ) -> Self {
        let send = opcode::SendMsg::new(Fd(socket.fd()), list);
        Self::new(send.flags(way.flags() as u32).build())
    }

    /// Creates an operation receiving into the memory named by a list.
    ///
    /// # Safety
    /// The memory named by `list` is alive, and has no other user, when the operation is run.
    pub(crate) unsafe fn receive_list(socket: &'a TcpSocket, list: &'a mut libc::msghdr) -> Self {
        let recv = opcode::RecvMsg::new(Fd(socket.fd()), list);
        Self::new(recv.flags(libc::MSG_DONTWAIT as u32).build())
    }
}

/// A length as the ring takes it; longer ones are cut, since a stream may move fewer bytes
/// anyway.
fn short(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(1 << 30)
}

/// Number of forks between this process and the one that loaded the plug-in.
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// A ring for up to [`BATCH`] operations at a time.
pub(crate) struct Ring {
    uring: IoUring,
    /// Value of [`FORKS`] in the process that created the ring. A forked child shares the ring's
    /// memory, but must not use the connections.
    forks: u32,
}

impl Ring {
    /// Creates a ring; fails if the system refuses it or lacks a required operation.
    pub(crate) fn new() -> Result<Self> {
        let uring = IoUring::new(BATCH as u32)?;
        ofi_provider::sys::note_task_work();
        let mut probe = Probe::new();
        uring.submitter().register_probe(&mut probe)?;
        let needed =
            [opcode::Send::CODE, opcode::Recv::CODE, opcode::SendMsg::CODE, opcode::RecvMsg::CODE];
        if !needed.into_iter().all(|code| probe.is_supported(code)) {
            return Err(Error::NOSYS);
        }
        static COUNT_FORKS: Once = Once::new();
        // SAFETY: what is called in a fork touches one atomic number and nothing else.
        // It cannot fail but for memory, and then a fork is taken for its parent.
        COUNT_FORKS.call_once(|| unsafe {
            libc::pthread_atfork(None, None, Some(forked));
        });
        Ok(Self { uring, forks: FORKS.load(Ordering::Relaxed) })
    }

    /// Runs operations, at most [`BATCH`], in this order. After an error the ring is unusable; the
    /// operations not run then have -FI_EAGAIN.
    pub(crate) fn run(&mut self, ops: &mut [RingOp<'_>]) -> Result {
        if self.forks != FORKS.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut queue = self.uring.submission();
        for (index, op) in ops.iter_mut().enumerate() {
            let entry = op.entry.clone().user_data(index as u64);
            // SAFETY: what the entry points to is borrowed by the operation, or
            // alive by the contract of the function that made it; it is not used
            // when this function returns, because that waits for all that the
            // kernel has taken and leaves nothing for it to take later.
            unsafe { queue.push(&entry) }.expect("the queue has room for a batch");
        }
        drop(queue);
        let mut missing = ops.len();
        let mut wait = 0;
        loop {
            let entered = self.uring.submit_and_wait(wait);
            for done in self.uring.completion() {
                let op = &mut ops[done.user_data() as usize];
                let result = done.result();
                op.result = usize::try_from(result).map_err(|_| Error::from_code(-result));
                missing -= 1;
            }
            if missing == 0 {
                return Ok(());
            }
            // All operations that the kernel takes are done at once (MSG_DONTWAIT); it may take
            // fewer.
            wait = 1;
            match entered.map_err(Error::from) {
                Ok(_) | Err(Error::INTR | Error::AGAIN | Error::BUSY) => {}
                // Nothing of what was taken may be left with the kernel. The rest
                // is forgotten with the ring.
                Err(error) if self.uring.submission().len() == missing => return Err(error),
                Err(_) => std::thread::yield_now(),
            }
        }
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ring")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ring, unless this system has none for us.
    fn ring() -> Option<Ring> {
        Ring::new().inspect_err(|error| eprintln!("not tested: {error}")).ok()
    }

    /// Two ends of a connection.
    fn pair() -> (TcpSocket, TcpSocket) {
        let listener = TcpSocket::new(&([127, 0, 0, 1], 0).into()).unwrap();
        listener.bind(&([127, 0, 0, 1], 0).into()).unwrap();
        listener.0.listen(1).unwrap();
        let to = listener.local_addr().unwrap();
        let caller = TcpSocket::new(&to).unwrap();
        caller.connect(&to).unwrap();
        loop {
            if let Ok((called, _)) = listener.accept() {
                caller.0.take_error().unwrap();
                return (caller, called);
            }
        }
    }

    #[test]
    fn sends_and_receives_on_many_sockets_are_done_when_the_call_returns() {
        let Some(mut ring) = ring() else { return ofi_provider::testing::skip("no io_uring") };
        let pairs: [_; BATCH] = std::array::from_fn(|_| pair());
        for round in 0..3u8 {
            let bytes: [_; BATCH] = std::array::from_fn(|i| vec![round + i as u8; 100 + i]);
            let mut ops = RingOp::nothing();
            for ((op, (from, _)), bytes) in ops.iter_mut().zip(&pairs).zip(&bytes) {
                *op = RingOp::send(from, bytes);
            }
            ring.run(&mut ops).unwrap();
            assert!(ops.iter().zip(&bytes).all(|(op, bytes)| op.result == Ok(bytes.len())));
            let mut bufs = [[0; 200]; BATCH];
            let mut ops = RingOp::nothing();
            for ((op, (_, to)), buf) in ops.iter_mut().zip(&pairs).zip(&mut bufs) {
                *op = RingOp::receive(to, buf);
            }
            ring.run(&mut ops).unwrap();
            let results = ops.map(|op| op.result);
            for ((result, buf), bytes) in results.into_iter().zip(&bufs).zip(&bytes) {
                assert_eq!(result, Ok(bytes.len()));
                assert_eq!(&buf[..bytes.len()], bytes);
            }
        }
    }

    #[test]
    fn blocked_operations_return_eagain_and_failed_ones_their_error() {
        let Some(mut ring) = ring() else { return ofi_provider::testing::skip("no io_uring") };
        let [(a, b), (c, d), (e, f)] = std::array::from_fn(|_| pair());
        d.0.shutdown();
        f.0.reset_when_closed();
        drop(f);
        let (full, mut buf) = (vec![0; 64 << 20], [[0; 8]; 3]);
        let [one, two, three] = &mut buf;
        let mut ops = [
            RingOp::receive(&a, one),
            RingOp::send(&a, &full),
            RingOp::receive(&c, two),
            RingOp::receive(&e, three),
            RingOp::send(&e, b"x"),
        ];
        ring.run(&mut ops).unwrap();
        assert_eq!(ops[0].result, Err(Error::AGAIN), "nothing came");
        assert!(ops[1].result.unwrap() < full.len(), "so much has no room");
        assert_eq!(ops[2].result, Ok(0), "the end of the stream");
        assert_eq!(ops[3].result, Err(Error::CONNRESET));
        assert_eq!(ops[4].result, Err(Error::from_code(libc::EPIPE)), "and no signal");
        // The system enlarges the socket's buffer for a while.
        loop {
            let mut again = [RingOp::send(&a, &full)];
            ring.run(&mut again).unwrap();
            if again[0].result == Err(Error::AGAIN) {
                break;
            }
        }
        drop(b);
    }

    #[test]
    fn a_fork_leaves_the_ring_alone() {
        let Some(mut ring) = ring() else { return ofi_provider::testing::skip("no io_uring") };
        let (a, b) = pair();
        ring.forks += 1;
        let mut ops = [RingOp::send(&a, b"x")];
        ring.run(&mut ops).unwrap();
        assert_eq!(ops[0].result, Err(Error::AGAIN));
        assert_eq!(b.0.recv(&mut [0; 8]), Err(Error::AGAIN));
    }
}
