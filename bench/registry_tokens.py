"""A push that outlasts its tokens: a slow line to Debian's registry, whose tokens end after a minute.

A relay before the registry lets through so few bytes a second that a push takes three minutes at least, one layer alone
two. Peer: skopeo pushes the same image over a line of the same rate, at the same time. crane sends no login to a token
server on this machine's own address.
"""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from measure import Failed, measured
from product import COMMAND
from record import Outcome, Target
from registry_blobs import make_layout
from scratch import Bench, tool

from envbuilder.testing.servers import PASSWORD, USER, docker_registry

_TOKEN_S = 60
_PUSH_S = 180.0
_LAYERS = (24 << 20, *[2 << 20] * 6)
_BLOCK = 16 << 10


def run(bench: Bench) -> Outcome:
    layout = bench.folder("layout")
    make_layout(layout, list(_LAYERS))
    rate = sum(_LAYERS) / _PUSH_S
    with (
        docker_registry(
            bench.folder("registry"), auth="token", token_life_s=_TOKEN_S, token_ends_s=_TOKEN_S
        ) as registry,
        contextlib.ExitStack() as lines,
        ThreadPoolExecutor(3) as pool,
    ):
        hosts = [lines.enter_context(slow_line(registry.host, rate)) for _ in range(3)]
        ours = [[COMMAND, "copy", f"oci:{layout}:1", f"{host}/b/image{n}:1", "--debug"] for n, host in enumerate(hosts)]
        contenders: dict[str, tuple[list[str | Path], dict[str, str]]] = {
            "ours": (ours[0], {}),
            "ours, chunks": (ours[1], {"ENVBUILDER_REGISTRIES_CHUNKED": f"{hosts[1]}=1"}),
            "skopeo": (
                [tool("skopeo"), "copy", "--dest-tls-verify=false", f"oci:{layout}:1", f"docker://{hosts[2]}/b/s:1"],
                {},
            ),
        }
        logins = {"DOCKER_CONFIG": str(_login(bench, hosts)), "REGISTRY_AUTH_FILE": ""}
        cost = {
            title: pool.submit(_push, bench, title, argv, {**logins, **extra})
            for title, (argv, extra) in contenders.items()
        }
        columns = {title: future.result() for title, future in cost.items()}
    failed = sum(column["push s"] == "failed" for title, column in columns.items() if title.startswith("ours"))
    return Outcome(
        columns=columns,
        targets=[Target(name="pushes of ours that failed", limit=0, got=failed)],
        notes=[f"tokens of {_TOKEN_S} s, which the registry refuses to the second; lines of {rate / 1000:.0f} kB/s"],
    )


def _push(bench: Bench, title: str, argv: list[str | Path], environ: Mapping[str, str]) -> dict[str, float | str]:
    log = bench.work / f"{title.replace(', ', '-')}.log"
    cache = {"ENVBUILDER_CACHE": str(bench.folder(f"cache-{log.stem}"))}
    try:
        cost = measured(argv, log=log, environ={**environ, **cache})
    except Failed as error:
        return {"push s": "failed", "why": str(error)[-200:]}
    lines = log.read_text().splitlines()
    found: dict[str, float | str] = {"push s": cost.seconds, "CPU s": cost.cpu_seconds}
    if title.startswith("ours"):
        found |= {
            "tokens": float(sum("/token" in line and "-> 200" in line for line in lines)),
            "requests sent again after 401": float(sum("again after 401" in line for line in lines)),
        }
    return found


def _login(bench: Bench, hosts: list[str]) -> Path:
    folder = bench.folder("login")
    auth = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    (folder / "config.json").write_text(json.dumps({"auths": {host: {"auth": auth} for host in hosts}}))
    return folder


@contextlib.contextmanager
def slow_line(host: str, rate: float) -> Iterator[str]:
    """A listener whose connections reach ``host`` and send it ``rate`` bytes a second, all of them together."""
    name, _, port = host.rpartition(":")
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    turn = threading.Lock()

    def send(near: socket.socket, far: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := near.recv(_BLOCK):
                with turn:
                    time.sleep(len(data) / rate)
                far.sendall(data)
            far.shutdown(socket.SHUT_WR)

    def answer(far: socket.socket, near: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := far.recv(_BLOCK):
                near.sendall(data)
            near.shutdown(socket.SHUT_WR)

    def serve() -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            # What waits in the kernel is small, so that the line is as slow for the sender.
            near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BLOCK)
            far = socket.create_connection((name, int(port)))
            threading.Thread(target=send, args=(near, far), daemon=True).start()
            threading.Thread(target=answer, args=(far, near), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()
