"""Wire: a TCP connection in the middle that records, cuts and slows what passes.

It knows bytes only, so it stands before real servers and fake ones alike.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_BLOCK = 1 << 16
#: Seconds that both sides may take to see an end.
_END_S = 2.0
#: SO_LINGER of 0 seconds: closing resets the connection instead of ending it.
_RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Where one connection is cut: after ``up`` bytes of the client or ``down`` bytes of the server; None: never.

    Both sides see a reset (RST); or with ``gently`` an end in order (FIN), as of a process that closes its socket.
    """

    up: int | None = None
    down: int | None = None
    gently: bool = False


@dataclass(slots=True)
class _Way:
    """One direction of a connection. data: read and not sent on yet."""

    source: socket.socket
    sink: socket.socket
    limit: int | None
    data: bytes = b""
    passed: int = 0
    ended: bool = False

    @property
    def room(self) -> int:
        return _BLOCK if self.limit is None else min(_BLOCK, self.limit - self.passed)


class Wire:
    """Forwards each connection to ``to`` (``HOST:PORT``) from a free port of this machine; a context manager.

    cuts: of the first connections, in order; later ones pass. up_rate: bytes a second that a client may send; 0: all.
    passed: called with the bytes that clients sent so far, before they are sent on.
    """

    def __init__(
        self,
        to: str,
        *,
        cuts: Sequence[Cut] = (),
        up_rate: int = 0,
        passed: Callable[[int], None] = lambda _count: None,
    ) -> None:
        host, _, port = to.rpartition(":")
        self._to, self._rate, self._passed = (host, int(port)), up_rate, passed
        self.cuts = list(cuts)
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.host = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.sent = bytearray()  # all that clients sent, as it came
        self.up = self.down = self.connections = 0

    def __enter__(self) -> Wire:  # noqa: PYI034  # typing.Self is of Python 3.11
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            cut = self.cuts.pop(0) if self.cuts else Cut()
            threading.Thread(target=self._join, args=(client, cut), daemon=True).start()

    def _join(self, client: socket.socket, cut: Cut) -> None:
        with client, contextlib.suppress(OSError), socket.create_connection(self._to, timeout=30) as server:
            for end in (client, server):
                end.setblocking(False)
            try:
                is_cut = self._pump(client, server, cut)
            except OSError:  # one side reset it: so does the other see it
                is_cut = True
            if is_cut and not cut.gently:
                for end in (client, server):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            elif is_cut:
                _end_in_order(client, server)

    def _pump(self, client: socket.socket, server: socket.socket, cut: Cut) -> bool:
        """Pass bytes until both sides ended, or one passed its limit: then True."""
        ways = (_Way(client, server, cut.up), _Way(server, client, cut.down))
        while not all(way.ended for way in ways):
            if any(way.passed == way.limit and not way.data for way in ways):
                return True
            reading = [way.source for way in ways if not way.data and not way.ended]
            can_read, can_write, _ = select.select(reading, [way.sink for way in ways if way.data], [])
            for way in ways:
                if way.data and way.sink in can_write:
                    way.data = way.data[way.sink.send(way.data) :]
                elif not way.data and way.source in can_read:
                    way.data = way.source.recv(way.room)
                    way.passed += len(way.data)
                    if way.data:
                        self._note(way.data, is_up=way is ways[0])
                    else:
                        way.ended = True
                        way.sink.shutdown(socket.SHUT_WR)
        return False

    def _note(self, data: bytes, *, is_up: bool) -> None:
        with self._lock:
            if is_up:
                self.sent += data
                self.up += len(data)
            else:
                self.down += len(data)
        if is_up:
            self._passed(self.up)
            if self._rate:
                time.sleep(len(data) / self._rate)


def _end_in_order(*ends: socket.socket) -> None:
    """What is unread when a socket is closed would turn its end into a reset."""
    for end in ends:
        end.shutdown(socket.SHUT_WR)
        end.settimeout(_END_S)
    for end in ends:
        while end.recv(_BLOCK):
            pass
