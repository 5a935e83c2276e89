"""A proxy that lets requests through in rounds, so that a test can count round trips and need no clock.

What a client sends waits until it has nothing more to send; then all of that is let through at once, and is a round.
So requests that do not need each other's answers share one, and a chain of dependent ones takes as many as it is long.
A connection takes a round of its own before its first request, as over TCP.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

#: Seconds without anything new after which a client is taken to wait for an answer.
_QUIET_S = 0.25
_BLOCK = 256 << 10


@dataclass(slots=True, eq=False)
class Rounds:
    """``host``: the proxy. ``rounds``: what was let through in each: ``connect``, or method and path of a request."""

    host: str = ""
    rounds: list[list[str]] = field(default_factory=list)
    _waiting: list[tuple[str, asyncio.Future[None]]] = field(default_factory=list)
    _newest_s: float = 0.0

    def round_of(self, part: str) -> int:
        """The number, from 1 on, of the round of the first request whose path has ``part``; 0: there was none."""
        found = (number for number, names in enumerate(self.rounds, 1) if any(part in name for name in names))
        return next(found, 0)

    async def turn(self, name: str) -> None:
        """Wait for the round of ``name``."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._newest_s = time.monotonic()
        self._waiting.append((name, future))
        await future

    async def go_round(self) -> None:
        """Begin a round whenever the client has nothing more to send."""
        while True:
            await asyncio.sleep(_QUIET_S / 10)
            if self._waiting and time.monotonic() - self._newest_s > _QUIET_S:
                waiting, self._waiting = self._waiting, []
                self.rounds.append([name for name, _ in waiting])
                for _, future in waiting:
                    future.set_result(None)


@contextlib.contextmanager
def in_rounds(upstream: str) -> Iterator[Rounds]:
    """A proxy before ``upstream`` (``address:port``), in a thread of its own, for requests without bodies."""
    rounds = Rounds()
    loop = asyncio.new_event_loop()
    listening = threading.Event()

    async def serve() -> None:
        server = await asyncio.start_server(accepted, "127.0.0.1", 0)
        rounds.host = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        listening.set()
        async with server:
            await rounds.go_round()

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The end of the proxy is none that asyncio shall tell of.
        with contextlib.suppress(asyncio.CancelledError), contextlib.closing(writer):
            await rounds.turn("connect")
            address, _, port = upstream.rpartition(":")
            from_upstream, to_upstream = await asyncio.open_connection(address, int(port))
            with contextlib.closing(to_upstream):
                await asyncio.gather(requests(reader, to_upstream), _pass_on(from_upstream, writer))

    async def requests(reader: asyncio.StreamReader, to_upstream: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                await rounds.turn(head.decode("latin-1").partition(" HTTP/")[0])
                to_upstream.write(head)
        to_upstream.close()

    async def end() -> None:
        left = asyncio.all_tasks(loop) - {asyncio.current_task(loop)}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await asyncio.sleep(0)  # what they closed is closed by the loop

    def run() -> None:
        with contextlib.closing(loop):
            with contextlib.suppress(asyncio.CancelledError):
                loop.run_until_complete(main)
            loop.run_until_complete(end())

    main = loop.create_task(serve())
    thread = threading.Thread(target=run, name="rounds")
    thread.start()
    listening.wait()
    try:
        yield rounds
    finally:
        loop.call_soon_threadsafe(main.cancel)
        thread.join()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_BLOCK):
            writer.write(data)
            await writer.drain()
    writer.close()
