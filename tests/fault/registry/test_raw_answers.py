"""Answers that no HTTP library would send: lines, chunks and trailers without end. Each wait and each body is bounded."""

import base64
import contextlib
import socket
import threading
import time

import pytest

from envbuilder.digest import describe
from envbuilder.oci.reference import RegistryReference
from envbuilder.registry import head
from envbuilder.registry.client import RegistryClient
from envbuilder.registry.errors import Denied, RegistryDown, Unauthorized
from envbuilder.registry.settings import HttpSettings
from envbuilder.registry.target import RegistryTarget

DATA = b"x" * 1000
BLOB = describe(DATA)
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
WHOLE = CHUNKED + b"3e8\r\n" + DATA + b"\r\n0\r\n"
#: What is sent once, what is sent again and again behind it, and the seconds between.
ENDLESS = {
    "a header that drips": (b"HTTP/1.1 200 OK\r\nX: ", b"a", 0.02),
    "a chunk's size that drips": (CHUNKED, b"0", 0.02),
    "a trailer that drips": (WHOLE + b"X: ", b"a", 0.02),
    "trailers": (WHOLE, b"A: b\r\n" * 100, 0),
    "answers of 100": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100, 0),
    "a chunk of -1 bytes": (CHUNKED + b"-1\r\n", b"z" * (1 << 20), 0),
}


class Sender:
    """Answers each connection's first request with ``first`` and then ``more`` until the client goes; counts bytes."""

    def __init__(self, first, more=b"", pause_s=0.0):
        self.first, self.more, self.pause_s, self.sent = first, more, pause_s, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.host = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self.answer, args=(self.listener.accept()[0],), daemon=True).start()

    def answer(self, connection):
        with connection, contextlib.suppress(OSError):
            connection.recv(1 << 16)
            connection.sendall(self.first)
            until_s = time.monotonic() + 30
            while self.more and self.sent < 256 << 20 and time.monotonic() < until_s:
                connection.sendall(self.more)
                self.sent += len(self.more)
                time.sleep(self.pause_s)

    def target(self):
        client = RegistryClient(sleep=lambda _seconds: None)
        return RegistryTarget(RegistryReference(self.host, "a/b"), client)


@pytest.mark.parametrize("kind", ENDLESS)
def test_what_never_ends_is_not_waited_for_nor_kept(monkeypatch, kind):
    monkeypatch.setattr(head, "_HEAD_TIMEOUT_S", 0.1)
    server, start_s = Sender(*ENDLESS[kind]), time.monotonic()

    with pytest.raises(RegistryDown), server.target().fetch(BLOB) as stream:
        stream.read()

    assert time.monotonic() - start_s < 15
    assert server.sent < 64 << 20


def test_an_interim_answer_and_trailers_are_no_hindrance():
    server = Sender(b"HTTP/1.1 100 Continue\r\nX: y\r\n\r\n" + WHOLE + b"Digest: none\r\n\r\n")

    with server.target().fetch(BLOB) as stream:
        assert stream.read() == DATA


def test_what_comes_behind_an_answer_is_not_taken_for_the_next():
    behind = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + b"y" * 1000
    target = Sender(WHOLE + b"\r\n" + behind).target()

    for _ in range(2):
        with target.fetch(BLOB) as stream:
            assert stream.read() == DATA


@pytest.mark.parametrize(("status", "error"), [(407, Unauthorized), (403, Denied)])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxys_no_is_asked_for_once_and_its_password_is_not_shown(scheme, status, error):
    password = base64.b64encode(b"us:open sesame").decode()
    server = Sender(f"HTTP/1.1 {status} No\r\nContent-Length: 50\r\n\r\nyou sent Basic {password}".ljust(150).encode())
    settings = HttpSettings(
        plain_hosts=frozenset({"r.test"} if scheme == "http" else ()),
        proxies={scheme: f"http://us:open%20sesame@{server.host}"},
    )
    waits = []
    target = RegistryTarget(RegistryReference("r.test", "a/b"), RegistryClient(settings, sleep=waits.append))

    with pytest.raises(error) as caught:
        target.lookup("v1")

    assert waits == []
    assert password[:10] not in str(caught.value)
    if (scheme, status) != ("http", 403):  # that looks like the registry's own
        assert "proxy" in f"{caught.value} {caught.value.hint}"
