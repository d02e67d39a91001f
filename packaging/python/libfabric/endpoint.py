"""Endpoints and their transfers."""
from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

from ._cffi import ffi, lib
from ._handle import Closable, Handle
from .completion import Completion, CompletionQueue, Operation, Post, Transfer
from .constants import ADDR_UNSPEC
from .errors import FabricError, check
from .info import Info
from .objects import AddressVector, Domain, MemoryRegion, RemoteMemory

if TYPE_CHECKING:
    from typing_extensions import Buffer

_EAGAIN = -lib.FI_EAGAIN


class Endpoint(Closable):
    """Source and target of transfers (fi_endpoint(3)).

    Each transfer has two methods.  `send` and the others of its kind post it at once and return a
    `Transfer` for `await`; with a full queue they post it later, in order.  `post_send` and the others
    return an `Operation`, for `CompletionQueue.read`, and raise `TryAgain` with a full queue.

    Buffers are any contiguous objects with the buffer protocol, or a `MemoryRegion`; they are not copied.
    """

    def __init__(
        self,
        domain: Domain,
        info: Info,
        cq: CompletionQueue,
        av: AddressVector,
        *,
        rx_cq: CompletionQueue | None = None,
    ) -> None:
        uses = [domain._own("fi_endpoint"), cq._own("fi_ep_bind"), av._own("fi_ep_bind")]
        if rx_cq is not None and rx_cq is not cq:
            uses.append(rx_cq._own("fi_ep_bind"))
        result = ffi.new("struct fid_ep **")
        check(lib.fi_endpoint(uses[0].pointer, info._pointer, result, ffi.NULL), "fi_endpoint")
        self._handle = Handle(result[0], *uses)
        self.domain, self.av, self.tx_cq, self.rx_cq = domain, av, cq, rx_cq or cq
        self._directed = bool(info.caps & lib.FI_DIRECTED_RECV)
        # Transfers waiting for space in a full queue: those of the transmit and of the receive side.
        self._blocked: dict[bool, collections.deque[tuple[Operation, Post]]] = {
            True: collections.deque(),
            False: collections.deque(),
        }
        try:
            if self.tx_cq is self.rx_cq:
                self._bind(cq, lib.FI_TRANSMIT | lib.FI_RECV)
            else:
                self._bind(self.tx_cq, lib.FI_TRANSMIT)
                self._bind(self.rx_cq, lib.FI_RECV)
            self._bind(av, 0)
            check(lib.fi_enable(result[0]), "fi_enable")
        except BaseException:
            self._handle.close()
            raise

    def _bind(self, other: Closable, flags: int) -> None:
        assert self._handle is not None and other._handle is not None
        check(lib.fi_ep_bind(self._handle.pointer, other._handle.fid, flags), "fi_ep_bind")

    @property
    def name(self) -> bytes:
        """Address of this endpoint, for the address vectors of peers."""
        self._use("fi_getname")
        assert self._handle is not None
        size = 256
        while True:
            place, length = ffi.new("char[]", size), ffi.new("size_t *", size)
            result = lib.fi_getname(self._handle.fid, place, length)
            if result == -lib.FI_ETOOSMALL and length[0] > size:
                size = length[0]
                continue
            check(result, "fi_getname")
            return bytes(ffi.buffer(place, length[0]))

    def close(self) -> None:
        """Closes the endpoint.  Operations in progress end with `ClosedError`."""
        if self.closed:
            return
        super().close()
        self.tx_cq._blocked.discard(self)
        self.rx_cq._blocked.discard(self)
        for cq in {self.tx_cq, self.rx_cq}:
            if not cq.closed:
                cq._collect(keep_unknown=True)  # completions from before the end
            for operation in [o for o in cq._operations.values() if o.endpoint is self]:
                cq._end(operation)
        for transmit, blocked in self._blocked.items():
            while blocked:
                self._queue(transmit)._end(blocked.popleft()[0])

    # Messages (fi_msg(3))

    def send(self, buffer: Buffer | MemoryRegion, dest: int, *, data: int | None = None) -> Transfer:
        """Sends a message to the peer with the index `dest`, with `data` for the completion of the receive."""
        return self._transfer(True, *self._send(buffer, dest, data))

    def post_send(
        self, buffer: Buffer | MemoryRegion, dest: int, *, data: int | None = None, context: object = None
    ) -> Operation:
        """Posts a send; see `send`."""
        return self._post(True, *self._send(buffer, dest, data), context)

    def recv(self, buffer: Buffer | MemoryRegion, source: int | None = None) -> Transfer:
        """Receives a message into a writable buffer, from any peer or, with `Cap.DIRECTED_RECV`, from one."""
        return self._transfer(False, *self._recv(buffer, source))

    def post_recv(
        self, buffer: Buffer | MemoryRegion, source: int | None = None, *, context: object = None
    ) -> Operation:
        """Posts a receive; see `recv`."""
        return self._post(False, *self._recv(buffer, source), context)

    # Tagged messages (fi_tagged(3))

    def tsend(self, buffer: Buffer | MemoryRegion, dest: int, tag: int, *, data: int | None = None) -> Transfer:
        """Sends a message with a tag of 64 bits."""
        return self._transfer(True, *self._tsend(buffer, dest, tag, data))

    def post_tsend(
        self, buffer: Buffer | MemoryRegion, dest: int, tag: int, *, data: int | None = None, context: object = None
    ) -> Operation:
        """Posts a tagged send; see `tsend`."""
        return self._post(True, *self._tsend(buffer, dest, tag, data), context)

    def trecv(
        self, buffer: Buffer | MemoryRegion, tag: int, ignore: int = 0, source: int | None = None
    ) -> Transfer:
        """Receives a message with this tag; bits set in `ignore` may differ."""
        return self._transfer(False, *self._trecv(buffer, tag, ignore, source))

    def post_trecv(
        self,
        buffer: Buffer | MemoryRegion,
        tag: int,
        ignore: int = 0,
        source: int | None = None,
        *,
        context: object = None,
    ) -> Operation:
        """Posts a tagged receive; see `trecv`."""
        return self._post(False, *self._trecv(buffer, tag, ignore, source), context)

    # Remote memory (fi_rma(3))

    def read(self, buffer: Buffer | MemoryRegion, dest: int, remote: RemoteMemory) -> Transfer:
        """Reads memory of a peer into a writable buffer of the same length."""
        return self._transfer(True, *self._read(buffer, dest, remote))

    def post_read(
        self, buffer: Buffer | MemoryRegion, dest: int, remote: RemoteMemory, *, context: object = None
    ) -> Operation:
        """Posts a read; see `read`."""
        return self._post(True, *self._read(buffer, dest, remote), context)

    def write(self, buffer: Buffer | MemoryRegion, dest: int, remote: RemoteMemory) -> Transfer:
        """Writes to memory of a peer from a buffer of the same length."""
        return self._transfer(True, *self._write(buffer, dest, remote))

    def post_write(
        self, buffer: Buffer | MemoryRegion, dest: int, remote: RemoteMemory, *, context: object = None
    ) -> Operation:
        """Posts a write; see `write`."""
        return self._post(True, *self._write(buffer, dest, remote), context)

    # The C calls, with the arguments before the context

    def _send(self, buffer: Any, dest: int, data: int | None) -> tuple[str, Any, Any, tuple[Any, ...]]:
        if data is None:
            return "fi_send", buffer, _memory(buffer), (_index(dest),)
        return "fi_senddata", buffer, _memory(buffer), (_number(data, "data"), _index(dest))

    def _tsend(self, buffer: Any, dest: int, tag: int, data: int | None) -> tuple[str, Any, Any, tuple[Any, ...]]:
        if data is None:
            return "fi_tsend", buffer, _memory(buffer), (_index(dest), _number(tag, "tag"))
        return "fi_tsenddata", buffer, _memory(buffer), (_number(data, "data"), _index(dest), _number(tag, "tag"))

    def _recv(self, buffer: Any, source: int | None) -> tuple[str, Any, Any, tuple[Any, ...]]:
        return "fi_recv", buffer, _memory(buffer, True), (self._sender(source),)

    def _trecv(self, buffer: Any, tag: int, ignore: int, source: int | None) -> tuple[str, Any, Any, tuple[Any, ...]]:
        numbers = (self._sender(source), _number(tag, "tag"), _number(ignore, "ignore"))
        return "fi_trecv", buffer, _memory(buffer, True), numbers

    def _read(self, buffer: Any, dest: int, remote: RemoteMemory) -> tuple[str, Any, Any, tuple[Any, ...]]:
        memory = _memory(buffer, True)
        return "fi_read", buffer, memory, (_index(dest), *_remote(remote, memory))

    def _write(self, buffer: Any, dest: int, remote: RemoteMemory) -> tuple[str, Any, Any, tuple[Any, ...]]:
        memory = _memory(buffer)
        return "fi_write", buffer, memory, (_index(dest), *_remote(remote, memory))

    def _sender(self, source: int | None) -> int:
        if source is None:
            return ADDR_UNSPEC
        if not self._directed:
            raise ValueError("receives from one peer need Cap.DIRECTED_RECV of getinfo")
        return _index(source)

    # Posting

    def _queue(self, transmit: bool) -> CompletionQueue:
        return self.tx_cq if transmit else self.rx_cq

    def _attempt(self, call: str, operation: Operation, descriptor: Any, arguments: tuple[Any, ...], transmit: bool) -> Post:
        """Returns the function that posts an operation, with a result of the C call."""
        cq, memory = self._queue(transmit), operation._memory
        function = getattr(lib, call)

        def post() -> int:
            ep = self._use(call)
            context = cq._start(operation)
            try:
                result = int(function(ep, memory, len(memory), descriptor, *arguments, context))
            except BaseException:
                cq._withdraw(operation)
                raise
            if result < 0:
                cq._withdraw(operation)
            return result

        return post

    def _prepare(
        self, transmit: bool, call: str, buffer: Any, memory: Any, arguments: tuple[Any, ...], context: object
    ) -> tuple[Operation, Post]:
        self._use(call)
        operation = Operation(self, call, context, buffer, memory)
        descriptor = buffer._descriptor if isinstance(buffer, MemoryRegion) else ffi.NULL
        return operation, self._attempt(call, operation, descriptor, arguments, transmit)

    def _post(
        self, transmit: bool, call: str, buffer: Any, memory: Any, arguments: tuple[Any, ...], context: object
    ) -> Operation:
        operation, post = self._prepare(transmit, call, buffer, memory, arguments, context)
        try:
            check(_EAGAIN if self._blocked[transmit] else post(), call)
        except BaseException:
            operation._free()
            raise
        return operation

    def _transfer(self, transmit: bool, call: str, buffer: Any, memory: Any, arguments: tuple[Any, ...]) -> Transfer:
        operation, post = self._prepare(transmit, call, buffer, memory, arguments, None)
        cq = self._queue(transmit)
        try:
            loop = cq._join_loop()
            operation._transfer = transfer = Transfer(loop=loop)
            transfer.operation = operation
            result = _EAGAIN if self._blocked[transmit] else post()
            if result == _EAGAIN:
                self._blocked[transmit].append((operation, post))
                cq._blocked.add(self)
            else:
                check(result, call)
        except BaseException:
            operation._free()
            raise
        cq._schedule()
        return transfer

    def _post_blocked(self) -> None:
        """Posts the transfers that wait for space, in their order."""
        for transmit, blocked in self._blocked.items():
            while blocked:
                operation, post = blocked[0]
                try:
                    result = post()
                    if result == _EAGAIN:
                        break
                    blocked.popleft()
                    check(result, operation.call)
                except FabricError as error:
                    self._fail(transmit, operation, error)
            if not blocked and (self.tx_cq is not self.rx_cq or not self._blocked[not transmit]):
                self._queue(transmit)._blocked.discard(self)

    def _fail(self, transmit: bool, operation: Operation, error: FabricError) -> None:
        self._queue(transmit)._report(operation, Completion(operation, 0, 0, None, 0, None, error))

    def _cancel(self, operation: Operation) -> None:
        for transmit, blocked in self._blocked.items():
            for item in blocked:
                if item[0] is operation:
                    blocked.remove(item)
                    self._fail(transmit, operation, FabricError(int(lib.FI_ECANCELED), operation.call))
                    return
        if self.closed:
            return
        assert self._handle is not None
        # The result of an operation that is already complete, or cannot be cancelled, is its completion.
        lib.fi_cancel(self._handle.fid, operation._slot)
        for cq in (self.tx_cq, self.rx_cq):
            cq._schedule()


def _memory(buffer: Any, writable: bool = False) -> Any:
    """Returns the memory of a buffer, kept from changes of its size."""
    if isinstance(buffer, MemoryRegion):
        buffer = buffer.view
    return ffi.from_buffer(buffer, require_writable=writable)


def _number(value: int, name: str) -> int:
    if not 0 <= value < 1 << 64:
        raise OverflowError(f"{name} is not a number of 64 bits: {value}")
    return value


def _index(address: int) -> int:
    return _number(address, "address")


def _remote(remote: RemoteMemory, memory: Any) -> tuple[int, int]:
    if len(memory) != remote.length:
        raise ValueError(f"the buffer has {len(memory)} bytes, the remote memory {remote.length}")
    return _number(remote.address, "address"), _number(remote.key, "key")
