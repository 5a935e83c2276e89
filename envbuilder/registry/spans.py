"""Parts of a file on their way into a connection: the system sends them, nobody reads them here."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable

from envbuilder.errors import HostError
from envbuilder.store.target import Span

#: Bytes read at a time where the system cannot send for us (TLS).
_READ_SIZE = 256 << 10


class UnreadableBody(HostError):
    """What should be sent could not be read from this machine's disk."""

    def __init__(self, reason: object) -> None:
        super().__init__(f"body: {reason}", hint="Look into the state of the disk it is read from.")


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


def send_by_hand(send: Callable[[bytes], None], span: Span) -> None:
    """Read ``span`` and give it to ``send``.

    Raises:
        UnreadableBody: the file. What ``send`` raises.
    """
    offset, end = span.offset, span.offset + span.size
    while offset < end:
        try:
            data = os.pread(span.file.fileno(), min(_READ_SIZE, end - offset), offset)
        except OSError as error:
            raise UnreadableBody(error) from error
        if not data:
            raise _cut(span)
        send(data)
        offset += len(data)


def _cut(span: Span) -> UnreadableBody:
    return UnreadableBody(f"the file became shorter than {span.offset + span.size} bytes while it was sent")
