"""Parts of a file on their way into a connection: read and sent, or sent by the system without being read."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from envbuilder.errors import HostError
from envbuilder.store.target import Span

#: Bytes read at a time: they are sent while a core's cache still holds them (decisions/0008).
_READ_SIZE = 128 << 10


class UnreadableBody(HostError):
    """What should be sent could not be read from this machine's disk."""

    def __init__(self, reason: object) -> None:
        super().__init__(f"body: {reason}", hint="Look into the state of the disk it is read from.")


class Senders:
    """How many connections to one registry send parts of files at this moment. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0

    @contextmanager
    def another(self) -> Iterator[bool]:
        """One more sends, until the end; whether it is the only one."""
        with self._lock:
            self._count += 1
            alone = self._count == 1
        try:
            yield alone
        finally:
            with self._lock:
                self._count -= 1


def send_plain(connection: socket.socket, span: Span, senders: Senders) -> None:
    """Send ``span`` to a plain connection in the way that costs the busier end less; its timeout is for each wait.

    A registry takes what one connection sends on one core, which is what a lone sender waits for; a registry of this
    machine takes bytes that were just read a tenth faster than pages that nobody touched. Where several send,
    every core is busy, and not to read at all costs least (decisions/0008).

    Raises:
        UnreadableBody: the file. OSError: the connection.
    """
    with senders.another() as alone:
        if alone:
            send_by_hand(connection.sendall, span)
        else:
            send_by_system(connection, span)


def send_by_system(connection: socket.socket, span: Span) -> None:
    """Send ``span`` to a plain connection; its timeout is for each wait.

    Raises:
        UnreadableBody: the file. OSError: the connection.
    """
    try:
        sent = connection.sendfile(span.file, span.offset, span.size)
    except OSError as error:
        if error.errno == errno.EIO:  # a connection has no such error
            raise UnreadableBody(error) from error
        raise
    if sent != span.size:
        raise _cut(span)


def send_by_hand(send: Callable[[memoryview], None], span: Span) -> None:
    """Read ``span`` and give it to ``send``.

    Raises:
        UnreadableBody: the file. What ``send`` raises.
    """
    offset, end = span.offset, span.offset + span.size
    buffer = memoryview(bytearray(min(_READ_SIZE, span.size)))
    while offset < end:
        try:
            data = buffer[: os.preadv(span.file.fileno(), [buffer[: end - offset]], offset)]
        except OSError as error:
            raise UnreadableBody(error) from error
        if not data:
            raise _cut(span)
        send(data)
        offset += len(data)


def _cut(span: Span) -> UnreadableBody:
    return UnreadableBody(f"the file became shorter than {span.offset + span.size} bytes while it was sent")
