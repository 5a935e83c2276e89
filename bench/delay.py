"""A TCP proxy that gives on what it gets half a round trip later."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
from collections.abc import Iterator
from multiprocessing.connection import Connection

#: Bytes that may be on the way in one direction of one connection: 50 ms at 1 Gbit/s and more.
_ON_THE_WAY = 32 << 20
_BLOCK = 256 << 10


@contextlib.contextmanager
def delaying_proxy(host: str, *, round_trip_s: float) -> Iterator[str]:
    """Serve ``host`` (``address:port``) on a port of its own, in a process of its own; gives that address."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=_serve, args=(host, round_trip_s, theirs), daemon=True)
    process.start()
    try:
        yield f"127.0.0.1:{ours.recv()}"
    finally:
        process.kill()
        process.join()


def _serve(host: str, round_trip_s: float, channel: Connection) -> None:
    asyncio.run(_proxy(host, round_trip_s / 2, channel))


async def _proxy(host: str, delay_s: float, channel: Connection) -> None:
    address, _, port = host.rpartition(":")

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A connection takes a round trip until the first byte can be sent.
        await asyncio.sleep(delay_s * 2)
        up_reader, up_writer = await asyncio.open_connection(address, int(port), limit=_ON_THE_WAY)
        await asyncio.gather(_later(reader, up_writer, delay_s), _later(up_reader, writer, delay_s))

    server = await asyncio.start_server(accepted, "127.0.0.1", 0, limit=_ON_THE_WAY)
    channel.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


async def _later(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    clock = asyncio.get_running_loop().time
    waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_ON_THE_WAY // _BLOCK)

    async def give() -> None:
        while True:
            due, data = await waiting.get()
            if (left := due - clock()) > 0:
                await asyncio.sleep(left)
            if not data:
                break
            writer.write(data)
            await writer.drain()
        writer.close()

    giving = asyncio.create_task(give())
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(_BLOCK):
            await waiting.put((clock() + delay_s, data))
    await waiting.put((clock() + delay_s, b""))
    with contextlib.suppress(ConnectionError):
        await giving
