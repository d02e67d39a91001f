//! The causes of hangs, each with its name and the recommended action.

/// The rules, the surest cause first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum HangCause {
    /// A process is stopped by a signal or a debugger.
    Stopped,
    /// A peer cannot be reached, or refuses.
    Unreachable,
    /// A process may open no more descriptors.
    Descriptors,
    /// A process may have no more memory.
    Memory,
    /// A connection is not made to its end.
    HalfMade,
    /// A connection was lost, and receives wait.
    PeerGone,
    /// A process could run, and gets no processor.
    NoProcessor,
    /// A process makes no library call while others wait for it.
    NoCalls,
    /// A process computes while others wait for it, and a thread of the library makes progress.
    Computes,
    /// Packets to a peer are lost.
    Retransmits,
    /// A completion queue is full.
    QueueFull,
    /// Completions are available and not read.
    QueueUnread,
    /// Two processes wait for each other, both with unexpected messages of the other.
    Crossed,
    /// A receive waits, and only unmatched messages are available.
    Mismatch,
    /// No more messages are accepted because of too many unexpected ones.
    TakesNoMore,
    /// Messages without a posted receive are available.
    NoReceive,
    /// Processes wait for processes without statistics.
    Unseen,
    /// Two processes wait for each other.
    Deadlock,
    /// Bytes wait to be sent and the peer does not accept them.
    NotTaken,
    /// A receive waits for a message never sent.
    NothingSent,
}

/// Names and recommended actions, in the order of the causes.
const CAUSES: [(HangCause, &str, &str); 20] = [
    (HangCause::Stopped, "stopped", "let it go on (kill -CONT, or the debugger's 'continue')"),
    (
        HangCause::Unreachable,
        "unreachable",
        "see that the peer runs, that its address is of a network both hosts have (FI_TCP_IFACE), \
                 and that no firewall is between them (FI_TCP_PORT_LOW_RANGE, FI_TCP_PORT_HIGH_RANGE)",
    ),
    (
        HangCause::Descriptors,
        "descriptors",
        "raise 'ulimit -n': each connected peer takes a descriptor",
    ),
    (HangCause::Memory, "memory", "raise 'ulimit -v', or let the program use less"),
    (
        HangCause::HalfMade,
        "half-made",
        "if it lasts: a firewall drops what goes there, or the peer's process makes no progress; \
                 see fi_doctor --hosts for the peer's host",
    ),
    (
        HangCause::PeerGone,
        "peer-gone",
        "look why that process ended (its output, 'dmesg' for the OOM killer); what it owed \
                 will not come, so end the job",
    ),
    (
        HangCause::NoProcessor,
        "no-processor",
        "start fewer processes on these processors, or end what else runs there; see that ranks are \
                 not all bound to the same ones ('taskset -p PID', mpirun --report-bindings)",
    ),
    (
        HangCause::NoCalls,
        "no-calls",
        "with manual progress each process has to read its queues now and then; where it computes \
                 or sleeps so long, ask for FI_PROGRESS_AUTO, or poll in between ('gdb -p PID' shows where it is)",
    ),
    (
        HangCause::Computes,
        "computes",
        "the process sends the missing messages after its computation ('gdb -p PID' shows the current function); \
                 have it send earlier, or have other processes wait for fewer messages",
    ),
    (
        HangCause::Retransmits,
        "retransmits",
        "see that the network between both hosts works ('ping', 'ip -s link', a switch or firewall between them), \
                 also for packets of full size (MTU)",
    ),
    (
        HangCause::QueueFull,
        "queue-full",
        "read the queue: nothing more is received or sent before there is room; or make it larger \
                 (fi_cq_attr.size)",
    ),
    (
        HangCause::QueueUnread,
        "queue-unread",
        "the program reads another queue, or counts on a counter: what it waits for may be \
                 among those entries",
    ),
    (
        HangCause::Crossed,
        "crossed",
        "both send and neither receives, or with other tags than the other has: compare what both sent with \
                 what they receive (MPI: two MPI_Ssend, or two MPI_Send of large messages)",
    ),
    (
        HangCause::Mismatch,
        "mismatch",
        "compare tag, ignored bits and source of the receive with tag and sender of the messages, in both processes",
    ),
    (
        HangCause::TakesNoMore,
        "takes-no-more",
        "the receiver has to post receives that these messages fit, or the sender to wait until it does",
    ),
    (
        HangCause::NoReceive,
        "no-receive",
        "the receiver has to post a receive for it; look what it does instead",
    ),
    (
        HangCause::Unseen,
        "unseen",
        "add the statistics of that host (fi_ps --dump); if they are there, its processes have ended, are another \
                 user's, or have FI_STATS=0",
    ),
    (
        HangCause::Deadlock,
        "deadlock",
        "one of the two has to send first, or to receive without waiting (MPI: MPI_Sendrecv, MPI_Irecv)",
    ),
    (
        HangCause::NotTaken,
        "not-taken",
        "the peer does not read: it makes no progress, or has no memory for more messages without a \
                 receive; see fi_doctor --hosts for the peer's host",
    ),
    (
        HangCause::NothingSent,
        "nothing-sent",
        "look at the sender: it has sent nothing that this receive would take",
    ),
];

impl HangCause {
    /// The rule's name.
    pub fn name(self) -> &'static str {
        CAUSES[self as usize].1
    }

    /// Returns the recommended action.
    pub fn advice(self) -> &'static str {
        CAUSES[self as usize].2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_index_the_table() {
        for (at, (cause, name, advice)) in CAUSES.iter().enumerate() {
            assert_eq!((*cause as usize, cause.name(), cause.advice()), (at, *name, *advice));
        }
    }
}
