"""Tests of the bindings, over the provider named by `PROVIDER` (tcp)."""
from __future__ import annotations

import array
import asyncio
import errno
import gc
import os
import pickle
import subprocess
import sys
import threading
import unittest
import warnings
import weakref

import libfabric
import libfabric.raw
from libfabric import (
    AddressVector,
    Cap,
    ClosedError,
    CompletionQueue,
    Domain,
    Endpoint,
    EndpointType,
    Fabric,
    FabricError,
    MemoryRegion,
    OperationError,
    RemoteMemory,
    TryAgain,
    getinfo,
)

PROVIDER = os.environ.get("PROVIDER", "tcp")
CAPS = Cap.MSG | Cap.TAGGED | Cap.RMA | Cap.SOURCE | Cap.DIRECTED_RECV
LIMIT = 60  # seconds, of a test that hangs


class Peer:
    """An endpoint with its own queue, in one domain with others."""

    def __init__(self, domain: Domain, info: libfabric.Info) -> None:
        self.cq = CompletionQueue(domain)
        self.av = AddressVector(domain)
        self.ep = Endpoint(domain, info, self.cq, self.av)

    def close(self) -> None:
        self.ep.close()
        self.av.close()
        self.cq.close()


class Case(unittest.IsolatedAsyncioTestCase):
    def setUp(self) -> None:
        self.info = getinfo(PROVIDER, caps=CAPS)[0]
        self.fabric = Fabric(self.info)
        self.domain = Domain(self.fabric, self.info)
        self.a, self.b = Peer(self.domain, self.info), Peer(self.domain, self.info)
        self.to_b, self.to_a = self.a.av.insert(self.b.ep.name), self.b.av.insert(self.a.ep.name)

    async def asyncSetUp(self) -> None:
        asyncio.get_running_loop().set_debug(False)  # which is slow with many futures

    def tearDown(self) -> None:
        self.a.close()
        self.b.close()
        self.domain.close()
        self.fabric.close()


class Messages(Case):
    async def exchange(self, data: object, room: object) -> int:
        received = self.b.ep.recv(room)
        await asyncio.wait_for(self.a.ep.send(data, self.to_b), LIMIT)
        completion = await asyncio.wait_for(received, LIMIT)
        self.assertEqual(completion.source, self.to_a)
        return completion.length

    async def test_buffers_of_every_kind_are_sent_and_received(self) -> None:
        for data in b"bytes", bytearray(b"array"), memoryview(b"a view of bytes")[2:6], array.array("i", [1, 2, 3]), b"":
            room = bytearray(32)
            length = await self.exchange(data, room)
            self.assertEqual(bytes(room[:length]), bytes(memoryview(data).cast("B")))

    async def test_a_part_of_a_buffer_is_received_into(self) -> None:
        room = bytearray(b"........")
        await self.exchange(b"abc", memoryview(room)[2:5])
        self.assertEqual(room, b"..abc...")

    async def test_numpy_arrays_are_not_copied(self) -> None:
        try:
            import numpy
        except ImportError:
            self.skipTest("numpy is not installed")
        room = numpy.zeros((3, 4))
        await self.exchange(numpy.arange(12.0).reshape(3, 4), room)
        self.assertTrue((room == numpy.arange(12.0).reshape(3, 4)).all())
        with self.assertRaises((ValueError, BufferError)):
            self.b.ep.recv(room[:, 1])
        room.setflags(write=False)
        with self.assertRaises((ValueError, BufferError)):
            self.b.ep.recv(room)

    async def test_large_messages_and_many_at_a_time(self) -> None:
        data = os.urandom(3_000_000)
        rooms = [bytearray(len(data)) for _ in range(3)]
        received = [self.b.ep.recv(room) for room in rooms]
        await asyncio.wait_for(asyncio.gather(*(self.a.ep.send(data, self.to_b) for _ in rooms), *received), LIMIT)
        self.assertEqual(rooms, [data] * 3)

    async def test_transfers_beyond_a_full_queue_are_posted_in_order(self) -> None:
        count = 5000
        rooms = [bytearray(4) for _ in range(count)]
        received = [self.b.ep.recv(room) for room in rooms]
        sent = [self.a.ep.send(i.to_bytes(4, "big"), self.to_b) for i in range(count)]
        await asyncio.wait_for(asyncio.gather(*sent, *received), LIMIT)
        self.assertEqual([int.from_bytes(room, "big") for room in rooms], list(range(count)))

    async def test_tags_select_messages(self) -> None:
        low, high = bytearray(8), bytearray(8)
        first, second = self.b.ep.trecv(low, 1, source=self.to_a), self.b.ep.trecv(high, 1 << 63, ignore=0xFF)
        await self.a.ep.tsend(b"high", self.to_b, 1 << 63 | 7, data=5)
        await self.a.ep.tsend(b"low", self.to_b, 1)
        self.assertEqual((await asyncio.wait_for(first, LIMIT)).length, 3)
        completion = await asyncio.wait_for(second, LIMIT)
        self.assertEqual((completion.tag, completion.data, bytes(high[:4])), (1 << 63 | 7, 5, b"high"))

    async def test_data_of_the_sender_arrives_with_the_completion(self) -> None:
        received = self.b.ep.recv(bytearray(8))
        await self.a.ep.send(b"x", self.to_b, data=0xFEED)
        self.assertEqual((await asyncio.wait_for(received, LIMIT)).data, 0xFEED)

    async def test_a_long_message_ends_a_short_receive_with_its_overflow(self) -> None:
        received = self.b.ep.recv(bytearray(4))
        await self.a.ep.send(b"eight by", self.to_b)
        with self.assertRaises(OperationError) as raised:
            await asyncio.wait_for(received, LIMIT)
        self.assertEqual((raised.exception.errno, raised.exception.overflow), (libfabric.raw.lib.FI_ETRUNC, 4))
        self.assertIn("fi_recv", str(raised.exception))


class RemoteAccess(Case):
    async def test_memory_of_a_peer_is_read_and_written(self) -> None:
        memory = bytearray(b"0123456789")
        with MemoryRegion(self.domain, memory) as region:
            remote = RemoteMemory(*region.remote)
            room = bytearray(4)
            await asyncio.wait_for(self.a.ep.read(room, self.to_b, remote.part(3, 4)), LIMIT)
            self.assertEqual(room, b"3456")
            await asyncio.wait_for(self.a.ep.write(b"xy", self.to_b, remote.part(8)), LIMIT)
            self.assertEqual(bytes(region.view), b"01234567xy")
            with self.assertRaises(BufferError):
                memory.append(0)  # registered memory stays where it is
            with self.assertRaises(ValueError):
                remote.part(8, 3)
            with self.assertRaises(ValueError):
                self.a.ep.write(b"too long", self.to_b, remote.part(8))
        memory.append(0)

    async def test_a_region_is_a_buffer_of_transfers(self) -> None:
        with MemoryRegion(self.domain, bytearray(b"region")) as region, MemoryRegion(self.domain, bytearray(6)) as room:
            received = self.b.ep.recv(room)
            await self.a.ep.send(region, self.to_b)
            await asyncio.wait_for(received, LIMIT)
            self.assertEqual(bytes(room.view), b"region")
            self.assertEqual(len(room), 6)
            if sys.version_info >= (3, 12):
                self.assertEqual(bytes(memoryview(room)), b"region")

    async def test_a_wrong_key_is_an_error_of_the_operation(self) -> None:
        with MemoryRegion(self.domain, bytearray(8)) as region:
            wrong = region.remote._replace(key=region.key ^ 0x5555)
            with self.assertRaises(OperationError):
                await asyncio.wait_for(self.a.ep.read(bytearray(8), self.to_b, wrong), LIMIT)

    async def test_constant_memory_is_registered_for_reads_alone(self) -> None:
        with self.assertRaises(BufferError):
            MemoryRegion(self.domain, b"constant")
        with MemoryRegion(self.domain, b"constant", Cap.REMOTE_READ) as region:
            room = bytearray(8)
            await asyncio.wait_for(self.a.ep.read(room, self.to_b, region.remote), LIMIT)
            self.assertEqual(room, b"constant")


class Cancellation(Case):
    async def test_a_cancelled_task_cancels_its_receive_and_frees_the_buffer(self) -> None:
        room = bytearray(8)
        transfer = self.b.ep.recv(room)

        async def wait() -> None:
            await transfer

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        with self.assertRaises(BufferError):
            room.append(0)
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(transfer.released(), LIMIT)
        self.assertTrue(transfer.operation.done)
        room.append(0)
        # The message goes to the next receive.
        other = bytearray(8)
        received = self.b.ep.recv(other)
        await self.a.ep.send(b"next", self.to_b)
        self.assertEqual((await asyncio.wait_for(received, LIMIT)).length, 4)
        self.assertEqual((bytes(room), bytes(other[:4])), (bytes(9), b"next"))

    async def test_a_timeout_cancels_the_receive(self) -> None:
        transfer = self.b.ep.recv(bytearray(8))
        with self.assertRaises(asyncio.TimeoutError):
            await asyncio.wait_for(transfer, 0.05)
        await asyncio.wait_for(transfer.released(), LIMIT)

    async def test_the_buffer_lives_until_the_completion(self) -> None:
        class Buffer(bytearray):
            pass

        room = Buffer(8)
        alive = weakref.ref(room)
        transfer = self.b.ep.recv(room)
        del room
        gc.collect()
        self.assertIsNotNone(alive())
        transfer.cancel()
        await asyncio.wait_for(transfer.released(), LIMIT)
        gc.collect()
        self.assertIsNone(alive())

    async def test_transfers_waiting_for_a_full_queue_are_cancelled_or_posted_later(self) -> None:
        posted = 0
        with self.assertRaises(TryAgain):
            while True:
                self.a.ep.post_send(bytes(1000), self.to_b)
                posted += 1
        while not self.a.ep._blocked[True]:  # a thread of the provider may make space
            self.a.ep.send(bytes(1000), self.to_b)
            posted += 1
        room, last = bytearray(b"cancelled"), bytearray(b"last")
        cancelled, sent = self.a.ep.send(room, self.to_b), self.a.ep.send(last, self.to_b)
        with self.assertRaises(BufferError):
            room.append(0)
        cancelled.cancel()
        self.assertTrue(cancelled.operation.done)
        room.append(0)
        with self.assertRaises(TryAgain):
            self.a.ep.post_send(b"overtakes", self.to_b)
        place, received = bytearray(1000), []
        while len(received) <= posted:
            received.append((await asyncio.wait_for(self.b.ep.recv(place), LIMIT)).length)
        await asyncio.wait_for(sent, LIMIT)
        self.assertEqual((received, place[:4]), ([1000] * posted + [4], b"last"))

    async def test_closing_the_endpoint_ends_what_is_in_progress(self) -> None:
        room = bytearray(8)
        transfer = self.b.ep.recv(room)
        self.b.ep.close()
        with self.assertRaises(ClosedError) as raised:
            await transfer
        self.assertEqual(raised.exception.errno, errno.ECANCELED)
        room.append(0)


class WithoutAsyncio(Case):
    def test_completions_are_read_and_waited_for(self) -> None:
        room = bytearray(8)
        self.assertEqual(self.b.cq.read(), [])
        self.assertEqual(self.b.cq.wait(0.01), [])
        operation = self.b.ep.post_recv(room, context="receive")
        thread = threading.Thread(target=self.send)
        thread.start()
        found = []
        while not found:
            found = self.b.cq.wait(LIMIT)
        thread.join()
        self.assertEqual(found[0].operation, operation)
        self.assertEqual((operation.context, operation.done, bytes(room[:5])), ("receive", True, b"hello"))

    def send(self) -> None:
        self.a.ep.post_send(b"hello", self.to_b)
        while not self.a.cq.wait(LIMIT):
            pass

    def test_a_cancelled_operation_has_a_completion(self) -> None:
        operation = self.b.ep.post_recv(bytearray(8))
        operation.cancel()
        found = self.b.cq.wait(LIMIT)
        self.assertEqual([(c.operation, c.error and c.error.errno) for c in found], [(operation, errno.ECANCELED)])
        operation.cancel()  # complete: no effect

    def test_a_full_queue_raises_try_again(self) -> None:
        with self.assertRaises(TryAgain) as raised:
            for _ in range(1_000_000):
                self.a.ep.post_send(bytes(1000), self.to_b)
        self.assertEqual(raised.exception.errno, errno.EAGAIN)

    def test_two_event_loops_one_after_the_other_use_a_queue(self) -> None:
        async def talk() -> None:
            received = self.b.ep.recv(bytearray(8))
            await asyncio.wait_for(self.a.ep.send(b"x", self.to_b), LIMIT)
            await asyncio.wait_for(received, LIMIT)

        for _ in range(2):
            asyncio.run(talk())


class Mistakes(Case):
    def test_wrong_arguments_are_refused_without_an_operation(self) -> None:
        ep = self.a.ep
        for call, kind in (
            (lambda: ep.post_send("text", self.to_b), TypeError),
            (lambda: ep.post_send(None, self.to_b), TypeError),
            (lambda: ep.post_send(5, self.to_b), TypeError),
            (lambda: ep.post_send(b"x", "peer"), TypeError),
            (lambda: ep.post_send(b"x", -1), OverflowError),
            (lambda: ep.post_tsend(b"x", self.to_b, 1 << 64), OverflowError),
            (lambda: ep.post_recv(b"constant"), BufferError),
            (lambda: ep.post_send(memoryview(b"abcdef")[::2], self.to_b), (ValueError, BufferError)),
            (lambda: self.a.av.insert(b""), ValueError),
            (lambda: self.a.av.insert("name"), TypeError),
            (lambda: ep.send(b"x", self.to_b), RuntimeError),  # no event loop
        ):
            with self.assertRaises(kind):
                call()
        self.assertEqual((self.a.cq._operations, self.a.cq.read()), ({}, []))

    def test_errors_of_calls_have_number_name_and_text(self) -> None:
        with self.assertRaises(FabricError) as raised:
            getinfo("none such")
        error = raised.exception
        self.assertEqual((error.errno, error.call), (errno.ENODATA, "fi_getinfo"))
        self.assertIn("No data available", str(error))
        with self.assertRaises(FabricError):
            self.a.ep.post_send(b"x", 1234)  # no peer has this index
        copy = pickle.loads(pickle.dumps(error))
        self.assertEqual((str(copy), copy.call), (str(error), error.call))
        copy = pickle.loads(pickle.dumps(OperationError(errno.EIO, "fi_send", "text", 1, 2, 3)))
        self.assertEqual((copy.length, copy.overflow, copy.tag), (1, 2, 3))

    def test_objects_in_use_are_not_closed(self) -> None:
        for closable in self.a.cq, self.a.av, self.domain, self.fabric:
            with self.assertRaises(FabricError) as raised:
                closable.close()
            self.assertEqual(raised.exception.errno, errno.EBUSY)
            self.assertFalse(closable.closed)

    def test_closed_objects_refuse_every_use(self) -> None:
        region = MemoryRegion(self.domain, bytearray(4))
        region.close()
        peer = Peer(self.domain, self.info)
        peer.close()
        peer.close()
        for call in (
            lambda: peer.ep.name,
            lambda: peer.ep.post_send(b"x", 0),
            lambda: peer.ep.post_recv(bytearray(1)),
            lambda: peer.av.insert(b"name"),
            lambda: peer.av.lookup(0),
            lambda: peer.av.remove(0),
            lambda: peer.cq.read(),
            lambda: peer.cq.wait(1),
            lambda: peer.cq.fileno(),
            lambda: region.key,
            lambda: region.view,
            lambda: self.a.ep.post_send(region, self.to_b),
            lambda: Endpoint(self.domain, self.info, peer.cq, self.a.av),
        ):
            with self.assertRaises(ClosedError) as raised:
                call()
            self.assertIsInstance(raised.exception, ValueError)
            self.assertEqual(raised.exception.errno, errno.EBADF)

    def test_forgotten_objects_are_closed_with_a_warning(self) -> None:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            peer = Peer(self.domain, self.info)
            peer.ep.post_recv(bytearray(8))
            del peer
            gc.collect()
        kinds = {f"unclosed {n}" for n in ("Endpoint", "CompletionQueue", "AddressVector")}
        # An object in use is closed with its users, so the first of them may be the only one to warn.
        self.assertTrue(found and {str(w.message) for w in found} <= kinds, found)
        # Nothing uses the domain any more: tearDown closes it.

    def test_addresses(self) -> None:
        name = self.b.ep.name
        self.assertTrue(name.endswith(self.a.av.lookup(self.to_b)))  # shm leaves its scheme out
        self.assertTrue(self.a.av.text(name))
        self.a.av.remove(self.to_b)
        with self.assertRaises(FabricError):
            self.a.av.lookup(self.to_b)

    def test_constants_are_those_of_the_headers(self) -> None:
        lib = libfabric.raw.lib
        for flag in Cap:
            self.assertEqual(int(flag), getattr(lib, f"FI_{flag.name}"))
        for kind in EndpointType:
            self.assertEqual(int(kind), getattr(lib, f"FI_EP_{kind.name}"))
        self.assertGreater(len([n for n in dir(lib) if n.startswith("FI_")]), 300)
        self.assertGreaterEqual(libfabric.version(), (2, 0))


PEER = """
import asyncio, sys, libfabric
from libfabric import *
async def main():
    info = getinfo(sys.argv[1])[0]
    fabric = Fabric(info); domain = Domain(fabric, info); cq = CompletionQueue(domain); av = AddressVector(domain)
    ep = Endpoint(domain, info, cq, av)
    received = ep.recv(bytearray(8))
    print(ep.name.hex(), flush=True)
    await received
    print("received", flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


class VanishedPeer(Case):
    async def test_transfers_to_a_killed_process_end_with_an_error(self) -> None:
        process = subprocess.Popen([sys.executable, "-c", PEER, PROVIDER], stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            peer = self.a.av.insert(bytes.fromhex(process.stdout.readline()))
            await asyncio.wait_for(self.a.ep.send(b"hello", peer), LIMIT)
            self.assertEqual(process.stdout.readline(), "received\n")
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        with self.assertRaises(FabricError) as raised:
            for _ in range(1000):
                await asyncio.wait_for(self.a.ep.send(bytes(100_000), peer), LIMIT)
        self.assertTrue(raised.exception.strerror)
        # Others are not disturbed.
        received = self.b.ep.recv(bytearray(8))
        await asyncio.wait_for(self.a.ep.send(b"x", self.to_b), LIMIT)
        await asyncio.wait_for(received, LIMIT)


if __name__ == "__main__":
    unittest.main()
