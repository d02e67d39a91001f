"""Two agents of NIXL, in processes of their own, over its libfabric backend: one reads the other's
memory, writes it, and says so.

    nixl.py            bytes of memory: SIZE (default 4 MiB, which NIXL cuts into pieces)
                       DEVICE=1: the memory is a CUDA device's (or of the stand-in, ctest/hmem)

Prints which provider NIXL took and the path of the libfabric.so.1 that it runs on; ends with 0 if
all bytes are right.  A watchdog ends it after a minute.
"""
import ctypes
import importlib.util
import os
import re
import signal
import socket
import struct
import sys
import sysconfig
import time


def bindings():
    """NIXL's module of its own; the package around it asks for numpy."""
    place = os.path.join(sysconfig.get_path("purelib"), "nixl_cu12")
    name = next(name for name in os.listdir(place) if name.startswith("_bindings."))
    spec = importlib.util.spec_from_file_location("nixl_cu12._bindings", os.path.join(place, name))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


nixl = bindings()

SIZE = int(os.environ.get("SIZE", 4 << 20))
BACKEND = "LIBFABRIC"
WRITTEN = b"written"


class HostMemory:
    """Bytes of the process."""

    kind = nixl.DRAM_SEG

    def __init__(self):
        self.buffer = ctypes.create_string_buffer(SIZE)
        self.at = ctypes.addressof(self.buffer)

    def read(self):
        return self.buffer.raw

    def write(self, content):
        self.buffer.raw = content


class DeviceMemory:
    """Bytes of device 0."""

    kind = nixl.VRAM_SEG

    def __init__(self):
        self.runtime = ctypes.CDLL("libcudart.so")
        at = ctypes.c_void_p()
        self.call("cudaSetDevice", 0)
        self.call("cudaMalloc", ctypes.byref(at), ctypes.c_size_t(SIZE))
        self.at = at.value

    def call(self, name, *arguments):
        if getattr(self.runtime, name)(*arguments) != 0:
            sys.exit(f"{name} failed")

    def copy(self, to, source, kind):
        self.call("cudaMemcpy", ctypes.c_void_p(to), ctypes.c_void_p(source), ctypes.c_size_t(SIZE), kind)

    def read(self):
        buffer = ctypes.create_string_buffer(SIZE)
        self.copy(ctypes.addressof(buffer), self.at, 2)
        return buffer.raw

    def write(self, content):
        buffer = ctypes.create_string_buffer(content, SIZE)
        self.copy(self.at, ctypes.addressof(buffer), 1)


class Agent:
    """An agent with one region of memory."""

    def __init__(self, name, line):
        self.line = line
        self.agent = nixl.nixlAgent(name, nixl.nixlAgentConfig(True))
        self.backend = self.agent.createBackend(BACKEND, {})
        self.memory = DeviceMemory() if os.environ.get("DEVICE") else HostMemory()
        regions = nixl.nixlRegDList(self.memory.kind)
        regions.addDesc((self.memory.at, SIZE, 0, ""))
        self.agent.registerMem(regions, [self.backend])

    def meet(self):
        """Exchanges what agents have to know of each other; returns where the peer's memory is."""
        known = self.agent.getLocalMD()
        self.line.sendall(struct.pack("=QQ", len(known), self.memory.at) + known)
        size, at = struct.unpack("=QQ", self.take(16))
        self.agent.loadRemoteMD(self.take(size))
        return at

    def take(self, size):
        taken = b""
        while len(taken) < size:
            more = self.line.recv(size - len(taken))
            if not more:
                sys.exit("the other process ended")
            taken += more
        return taken

    def transfer(self, operation, at, peer, word):
        here, there = nixl.nixlXferDList(self.memory.kind), nixl.nixlXferDList(self.memory.kind)
        here.addDesc((self.memory.at, SIZE, 0))
        there.addDesc((at, SIZE, 0))
        request = self.agent.createXferReq(operation, here, there, peer, word, [self.backend])
        status = self.agent.postXferReq(request)
        while status == nixl.NIXL_IN_PROG:
            status = self.agent.getXferStatus(request)
        self.agent.releaseXferReq(request)
        if status != nixl.NIXL_SUCCESS:
            sys.exit(f"{operation}: {status}")


def pattern(step):
    return bytes((i * step + i // 251) & 0xFF for i in range(1 << 16)) * (SIZE >> 16)


def target(line):
    agent = Agent("target", line)
    agent.memory.write(pattern(3))
    agent.meet()
    words = []
    while WRITTEN not in words:
        words += sum(agent.agent.getNotifs({}).values(), [])
        time.sleep(0.001)
    if agent.memory.read() != pattern(5):
        sys.exit("the target's memory is not what was written")
    line.sendall(b"!")
    agent.take(1)


def initiator(line):
    agent = Agent("initiator", line)
    at = agent.meet()
    agent.transfer(nixl.NIXL_READ, at, "target", b"read")
    if agent.memory.read() != pattern(3):
        sys.exit("what was read is not the target's memory")
    agent.memory.write(pattern(5))
    agent.transfer(nixl.NIXL_WRITE, at, "target", WRITTEN)
    agent.take(1)
    with open("/proc/self/maps", encoding="ascii") as maps:
        print("library:", *sorted(set(re.findall(r"/\S*libfabric\.so\S*", maps.read()))))
    line.sendall(b"!")


signal.alarm(60)
lines = socket.socketpair()
child = os.fork()
lines[1 if child else 0].close()
(initiator if child else target)(lines[0 if child else 1])
sys.stdout.flush()
if not child:
    os._exit(0)
status = os.waitpid(child, 0)[1]
os._exit(0 if status == 0 else 1)
