"""The FUSE protocol, spoken over a socket pair in place of /dev/fuse: what a READ brings with it."""

import socket
import struct
import threading

import pytest

from envbuilder.mount.fuse import FuseServer

PAGE = 4096
DATA = bytes(range(256)) * 256  # 16 pages
READ, STORE = 15, 4


class Served:
    """A file whose chunks are of four pages; ``late`` ones are local only once they were asked for."""

    size = len(DATA)

    def __init__(self, *, local: bool = True):
        self.local = local

    def read_now(self, offset, into):
        return self.read_local(offset, into)

    def read_local(self, offset, into):
        if self.local:
            into[:] = DATA[offset : offset + len(into)]
        return self.local

    def stretch(self, offset):
        start = offset // (4 * PAGE) * 4 * PAGE
        return (start, start + 4 * PAGE) if self.local else None

    def when_ready(self, offset, size, done):
        self.local = True
        done(None)


@pytest.fixture
def kernel():
    """Serves one file; gives a function that starts to, and our end of the device."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(10)
    started = []

    def start(file):
        server = FuseServer(theirs.fileno(), [file])
        threads = [threading.Thread(target=body) for body in (server.serve, server.give)]
        started.append((server, threads))
        for thread in threads:
            thread.start()

    yield start, ours
    ours.close()
    for server, threads in started:
        server.end_giving()
        for thread in threads:
            thread.join(10)
    theirs.close()


def ask(ours, unique, offset, size):
    """Send a READ of the file."""
    body = struct.pack("<QQIIQII", 0, offset, size, 0, 0, 0, 0)
    ours.send(struct.pack("<IIQQIIII", 40 + len(body), READ, unique, 2, 0, 0, 0, 0) + body)


def packets(ours, count):
    """The next ``count`` packets as (error or notification, unique, body), replies first."""
    found = [ours.recv(1 << 20) for _ in range(count)]
    parsed = [(*struct.unpack_from("<iQ", packet, 4), packet[16:]) for packet in found]
    assert all(struct.unpack_from("<I", packet)[0] == len(packet) for packet in found)
    return sorted(parsed, key=lambda packet: packet[1] == 0)


@pytest.mark.parametrize("local", [True, False], ids=["local", "fetched"])
def test_a_read_brings_the_whole_chunk_into_the_page_cache(kernel, local):
    start, ours = kernel
    start(Served(local=local))

    ask(ours, 7, 5 * PAGE, PAGE)
    reply, given = packets(ours, 2)

    assert reply == (0, 7, DATA[5 * PAGE : 6 * PAGE])
    assert given[:2] == (STORE, 0)
    assert struct.unpack_from("<QQI", given[2]) == (2, 4 * PAGE, 4 * PAGE)
    assert given[2][24:] == DATA[4 * PAGE : 8 * PAGE]


def test_a_chunk_is_given_once(kernel):
    start, ours = kernel
    start(Served())

    ask(ours, 1, 0, PAGE)
    packets(ours, 2)
    ask(ours, 2, PAGE, PAGE)
    ask(ours, 3, 4 * PAGE, PAGE)
    replies = packets(ours, 3)

    assert [unique for _, unique, _ in replies] == [2, 3, 0]
    assert struct.unpack_from("<QQI", replies[2][2]) == (2, 4 * PAGE, 4 * PAGE)
