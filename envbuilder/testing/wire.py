"""Wire: a TCP connection in the middle that records, cuts and slows what passes.

It knows bytes only, so it stands before real servers and fake ones alike.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_BLOCK = 1 << 16
#: SO_LINGER of 0 seconds: closing resets the connection instead of ending it.
_RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Where one connection is reset: after ``up`` bytes of the client or ``down`` bytes of the server; None: never."""

    up: int | None = None
    down: int | None = None


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
        with client:
            try:
                server = socket.create_connection(self._to, timeout=30)
            except OSError:
                return
            server.settimeout(None)
            with server:
                back = threading.Thread(target=self._pass, args=(server, client, cut.down, False), daemon=True)
                back.start()
                self._pass(client, server, cut.up, True)
                back.join()

    def _pass(self, source: socket.socket, sink: socket.socket, limit: int | None, is_up: bool) -> None:  # noqa: FBT001
        passed = 0
        with contextlib.suppress(OSError):
            while limit is None or passed < limit:
                data = source.recv(_BLOCK if limit is None else min(_BLOCK, limit - passed))
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    return
                passed += len(data)
                self._note(data, is_up=is_up)
                sink.sendall(data)
            for end in (source, sink):  # both sides see a reset
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            for end in (source, sink):
                end.shutdown(socket.SHUT_RDWR)

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
