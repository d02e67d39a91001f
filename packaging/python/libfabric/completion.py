"""Completion queues, and the operations reported by them."""
from __future__ import annotations

import asyncio
import collections
import select
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from ._cffi import ffi, lib
from ._handle import Closable, Handle
from .constants import ADDR_UNSPEC
from .errors import ClosedError, FabricError, OperationError, check
from .objects import Domain

if TYPE_CHECKING:
    from .endpoint import Endpoint

_BATCH = 64  # entries per read
_ROUNDS = 16  # reads before other callbacks of the event loop run
_RETRY = 0.001  # seconds between attempts to post to a full queue
_EAGAIN, _EAVAIL = -lib.FI_EAGAIN, -lib.FI_EAVAIL
_DATA = lib.FI_REMOTE_CQ_DATA


class Completion(NamedTuple):
    """End of an operation."""

    #: The operation, or `None` for the data of a peer's remote write.
    operation: Operation | None
    #: Flags of fi_cq(3).
    flags: int
    #: Bytes received.
    length: int
    #: Data given by the sender, if any.
    data: int | None
    #: Tag of a received message.
    tag: int
    #: Index of the sender in the address vector, with `Cap.SOURCE`.
    source: int | None
    #: Reason of a failed operation.
    error: FabricError | None = None


class Operation:
    """Transfer in progress.  It keeps its buffer until its completion."""

    __slots__ = ("endpoint", "call", "context", "_buffer", "_memory", "_slot", "_key", "_transfer", "_done", "_waiters")

    def __init__(self, endpoint: Endpoint, call: str, context: object, buffer: object, memory: Any) -> None:
        self.endpoint = endpoint
        #: Name of the C call.
        self.call = call
        #: Object given by the caller.
        self.context = context
        self._buffer = buffer
        self._memory = memory
        self._slot: Any = None
        self._key = 0
        self._transfer: Transfer | None = None
        self._done = False
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def done(self) -> bool:
        """Whether the operation is complete and its buffer free."""
        return self._done

    def cancel(self) -> None:
        """Requests the end of the operation (fi_cancel).  Its completion follows, with or without `ECANCELED`."""
        if not self._done:
            self.endpoint._cancel(self)

    def _free(self) -> None:
        """Gives up the buffer."""
        self._done = True
        if self._memory is not None:
            ffi.release(self._memory)
        self._buffer = self._memory = None
        for waiter in self._waiters:
            if not waiter.get_loop().is_closed():
                waiter.get_loop().call_soon_threadsafe(_finish, waiter)
        self._waiters.clear()


def _finish(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


if TYPE_CHECKING:
    _Future = asyncio.Future[Completion]
else:
    _Future = asyncio.Future


class Transfer(_Future):
    """Future of an operation: its result is the `Completion`, its exception a `FabricError`.

    Cancelling it, or the task that awaits it, cancels the operation.  The buffer stays in use until
    the operation is complete: `await released()` waits for that.
    """

    operation: Operation

    def cancel(self, msg: Any = None) -> bool:
        if self.done():
            return False
        cancelled = super().cancel(msg)
        self.operation.cancel()
        return cancelled

    async def released(self) -> None:
        """Waits until the buffer is free, after a cancellation as well."""
        operation = self.operation
        if not operation.done:
            waiter = self.get_loop().create_future()
            operation._waiters.append(waiter)
            await waiter


class CompletionQueue(Closable):
    """Queue of completions (fi_cq(3)).

    With asyncio the event loop reads it, by means of its descriptor.  Otherwise `read` and `wait` do.
    """

    def __init__(self, domain: Domain, size: int = 0) -> None:
        uses = domain._own("fi_cq_open")
        attr = ffi.new("struct fi_cq_attr *")
        attr.size = size
        attr.format = lib.FI_CQ_FORMAT_TAGGED
        attr.wait_obj = lib.FI_WAIT_FD
        result = ffi.new("struct fid_cq **")
        check(lib.fi_cq_open(uses.pointer, attr, result, ffi.NULL), "fi_cq_open")
        self._handle = Handle(result[0], uses)
        self.domain = domain
        fd = ffi.new("int *")
        check(lib.fi_control(self._handle.fid, lib.FI_GETWAIT, fd), "fi_control")
        self._fd = int(fd[0])
        self._fids = ffi.new("struct fid *[1]", [self._handle.fid])
        self._lock = threading.Lock()
        self._entries = ffi.new("struct fi_cq_tagged_entry[]", _BATCH)
        self._sources = ffi.new("fi_addr_t[]", _BATCH)
        # Operations by the address of their context, a `struct fi_context2` of these slabs.
        self._operations: dict[int, Operation] = {}
        self._slabs: list[Any] = []
        self._slots: list[tuple[Any, int]] = []
        self._ready: collections.deque[Completion] = collections.deque()
        self._blocked: set[Endpoint] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._scheduled = False
        self._retry: asyncio.TimerHandle | None = None

    def fileno(self) -> int:
        """Returns the descriptor to wait for; `wait_allowed` has to return true before."""
        self._use("fileno")
        return self._fd

    def wait_allowed(self) -> bool:
        """Whether a wait for the descriptor misses nothing (fi_trywait); false if there are completions to read."""
        self._use("fi_trywait")
        fabric = self.domain.fabric._use("fi_trywait")
        result = lib.fi_trywait(fabric, self._fids, 1)
        return result == 0 or (result != _EAGAIN and bool(check(result, "fi_trywait")))

    def read(self, count: int = _BATCH) -> list[Completion]:
        """Returns up to `count` completions of operations posted with `post_` methods, without waiting."""
        self._collect(keep_unknown=True)
        return [self._ready.popleft() for _ in range(min(count, len(self._ready)))]

    def wait(self, timeout: float | None = None, count: int = _BATCH) -> list[Completion]:
        """Waits for completions, for `timeout` seconds at most, and returns them."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            found = self.read(count)
            left = None if end is None else end - time.monotonic()
            if found or (left is not None and left <= 0):
                return found
            if self.wait_allowed():
                limit = 0.01 if self._blocked else left
                poll = select.poll()
                poll.register(self._fd, select.POLLIN)
                poll.poll(None if limit is None else max(1, int(min(limit, 3600) * 1000)))

    def close(self) -> None:
        loop = self._loop
        self._leave_loop()  # first: another thread may get the number of a closed descriptor
        try:
            super().close()
        except FabricError:
            if loop is not None and not loop.is_closed():
                self._loop = loop
                loop.add_reader(self._fd, self._progress)
                self._schedule()
            raise
        for operation in list(self._operations.values()):
            self._end(operation)

    # Operations

    def _start(self, operation: Operation) -> Any:
        """Returns the context for an operation."""
        try:
            operation._slot, operation._key = self._slots.pop()
        except IndexError:
            slab = ffi.new("struct fi_context2[]", _BATCH)
            self._slabs.append(slab)
            self._slots.extend((slab + i, int(ffi.cast("uintptr_t", slab + i))) for i in range(1, _BATCH))
            operation._slot, operation._key = slab + 0, int(ffi.cast("uintptr_t", slab))
        self._operations[operation._key] = operation
        return operation._slot

    def _withdraw(self, operation: Operation) -> None:
        """Takes back the context of an operation not posted."""
        del self._operations[operation._key]
        self._slots.append((operation._slot, operation._key))

    def _end(self, operation: Operation) -> None:
        """Ends an operation without a completion, as its endpoint is closed.

        Its context is not used again: an entry with it may still be in the queue.
        """
        self._operations.pop(operation._key, None)
        error = ClosedError(operation.call, int(lib.FI_ECANCELED), "the endpoint is closed")
        self._report(operation, Completion(operation, 0, 0, None, 0, None, error))

    def _collect(self, keep_unknown: bool = False) -> None:
        """Reads all entries, and reports each to its operation."""
        with self._lock:
            cq = self._use("fi_cq_read")
            entries, sources = self._entries, self._sources
            for _ in range(_ROUNDS):
                count = lib.fi_cq_readfrom(cq, entries, _BATCH, sources)
                if count > 0:
                    for i in range(count):
                        self._complete(entries[i], int(sources[i]), None, keep_unknown)
                elif count == _EAVAIL:
                    self._collect_error(cq, keep_unknown)
                elif count == _EAGAIN:
                    break
                else:
                    check(count, "fi_cq_read")
                    break
        for endpoint in list(self._blocked):
            endpoint._post_blocked()

    def _collect_error(self, cq: Any, keep_unknown: bool) -> None:
        entry = ffi.new("struct fi_cq_err_entry *")
        if lib.fi_cq_readerr(cq, entry, 0) != 1:
            return
        text = ffi.new("char[]", 256)
        lib.fi_cq_strerror(cq, entry.prov_errno, entry.err_data, text, 256)
        detail = ffi.string(text).decode(errors="replace")
        operation = self._operations.get(int(ffi.cast("uintptr_t", entry.op_context)))
        call = operation.call if operation is not None else "fi_cq_readerr"
        error = OperationError(entry.err, call, detail, int(entry.len), int(entry.olen), int(entry.tag))
        self._complete(entry, int(entry.src_addr) if entry.err == lib.FI_EADDRNOTAVAIL else ADDR_UNSPEC, error, keep_unknown)

    def _complete(self, entry: Any, source: int, error: FabricError | None, keep_unknown: bool) -> None:
        flags = int(entry.flags)
        operation = self._operations.pop(int(ffi.cast("uintptr_t", entry.op_context)), None)
        data = int(entry.data) if flags & _DATA else None
        completion = Completion(
            operation, flags, int(entry.len), data, int(entry.tag), source if source != ADDR_UNSPEC else None, error
        )
        if operation is not None:
            self._slots.append((operation._slot, operation._key))
            self._report(operation, completion)
        elif keep_unknown:
            self._ready.append(completion)

    def _report(self, operation: Operation, completion: Completion) -> None:
        operation._free()
        transfer = operation._transfer
        if transfer is None:
            self._ready.append(completion)
            return
        loop = transfer.get_loop()
        if asyncio._get_running_loop() is loop:
            _resolve(transfer, completion)
        elif not loop.is_closed():
            loop.call_soon_threadsafe(_resolve, transfer, completion)

    # The event loop

    def _join_loop(self) -> asyncio.AbstractEventLoop:
        """Has the running event loop read this queue."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._use("add_reader")
            self._leave_loop()
            self._loop = loop
            loop.add_reader(self._fd, self._progress)
        return loop

    def _leave_loop(self) -> None:
        loop, self._loop = self._loop, None
        self._scheduled = False
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if loop is not None and not loop.is_closed():
            loop.remove_reader(self._fd)

    def _schedule(self) -> None:
        """Reads the queue before the event loop waits for its descriptor."""
        if self._loop is not None and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._progress)

    def _progress(self) -> None:
        self._scheduled = False
        if self.closed:
            return
        for _ in range(_ROUNDS):
            self._collect()
            if self.wait_allowed():
                if self._blocked and self._retry is None and self._loop is not None:
                    self._retry = self._loop.call_later(_RETRY, self._retry_blocked)
                return
        self._schedule()

    def _retry_blocked(self) -> None:
        self._retry = None
        self._progress()


def _resolve(transfer: Transfer, completion: Completion) -> None:
    if transfer.done():
        return
    if completion.error is not None:
        transfer.set_exception(completion.error)
        if isinstance(completion.error, ClosedError):
            transfer.exception()  # a transfer left behind by the caller is no reason for a warning
    else:
        transfer.set_result(completion)


Post = Callable[[], int]
