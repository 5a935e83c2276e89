"""Requests and round trips: a push of an unchanged image of 60 layers, and 200 references, at 50 ms a round trip.

A relay before Debian's registry holds every byte back for half a round trip in each direction. Peers: crane and
skopeo push the same unchanged image through the same relay; crane looks the references up one by one, as it does.
"""

from __future__ import annotations

import contextlib
import io
import queue
import socket
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from measure import measured
from product import COMMAND
from record import Outcome, Target
from registry_blobs import make_layout
from scratch import Bench, tool
from servers import registry

from envbuilder.digest import describe
from envbuilder.oci import media_types
from envbuilder.oci.manifest import Manifest
from envbuilder.oci.reference import RegistryReference
from envbuilder.registry.client import RegistryClient
from envbuilder.registry.target import RegistryTarget

_ROUND_TRIP_S = 0.05
_LAYERS, _REFERENCES = 60, 200


def run(bench: Bench) -> Outcome:
    layout = bench.folder("layout")
    make_layout(layout, [4096 + number for number in range(_LAYERS)])
    warm, cold = bench.folder("cache"), bench.folder("empty-cache")
    with registry(bench.folder("registry")) as direct, relay(direct.host, _ROUND_TRIP_S / 2) as host:
        ours = f"{host}/b/ours:1"
        _push(bench, layout, ours, warm)
        columns = {
            "ours, warm": {"unchanged push s": _push(bench, layout, ours, warm)},
            "ours, cold": {"unchanged push s": _push(bench, layout, ours, cold)},
        }
        crane, skopeo = tool("crane"), tool("skopeo")
        peers = {
            "crane": [crane, "push", "--insecure", layout, f"{host}/b/c:1"],
            "skopeo": [skopeo, "copy", "--dest-tls-verify=false", f"oci:{layout}:1", f"docker://{host}/b/s:1"],
        }
        for title, argv in peers.items():
            measured(argv, log=bench.log)
            columns[title] = {"unchanged push s": measured(argv, log=bench.log).seconds}
        columns["ours, warm"]["200 references s"] = references_s = _references(bench, direct.host, host)
        columns["crane"]["200 references s"] = (
            measured([crane, "digest", "--insecure", ours], log=bench.log).seconds * _REFERENCES
        )
    best = min(columns["crane"]["unchanged push s"], columns["skopeo"]["unchanged push s"])
    return Outcome(
        columns=columns,
        ratios={"unchanged push: best peer / ours warm": best / columns["ours, warm"]["unchanged push s"]},
        targets=[
            Target(name="200 references at 50 ms, s", limit=2, got=references_s),
        ],
        notes=[
            "crane asks for the manifest alone and believes that its blobs are there (docs/decisions/0008-pushes.md)",
            "requests of each push are asserted by tests/fault/registry/test_request_counts.py",
            "crane's 200 references: one digest, times 200; ours: one resolve of all, start of the program included",
        ],
    )


def _push(bench: Bench, layout: Path, destination: str, cache: Path) -> float:
    argv = [COMMAND, "copy", f"oci:{layout}:1", destination, "--quiet"]
    return measured(argv, log=bench.log, environ={"ENVBUILDER_CACHE": str(cache)}).seconds


def _references(bench: Bench, direct: str, host: str) -> float:
    """Seconds of one ``envbuilder resolve`` of as many images, each with a manifest and a config of its own."""
    with RegistryClient() as client:
        target = RegistryTarget(RegistryReference(direct, "b/many"), client, writable=True)
        for number in range(_REFERENCES):
            _push_image(target, f"t{number}")
    references = [f"{host}/b/many:t{number}" for number in range(_REFERENCES)]
    return measured([COMMAND, "resolve", *references, "--json"], log=bench.log).seconds


def _push_image(target: RegistryTarget, tag: str) -> None:
    data = (
        b'{"architecture":"amd64","os":"linux","author":"%s","rootfs":{"diff_ids":[],"type":"layers"}}' % tag.encode()
    )
    what = describe(data, media_types.OCI_CONFIG)
    target.push(what, partial(io.BytesIO, data))
    manifest = Manifest(config=what, layers=()).dump()
    target.push_tagged(describe(manifest, media_types.OCI_MANIFEST), manifest, tag)


@contextlib.contextmanager
def relay(host: str, delay_s: float) -> Iterator[str]:
    """A listener whose connections reach ``host`` with every byte ``delay_s`` late, in both directions."""
    name, _, port = host.rpartition(":")
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)

    def serve() -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            far = socket.create_connection((name, int(port)))
            for one, other in ((near, far), (far, near)):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                late: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
                threading.Thread(target=_read, args=(one, late, delay_s), daemon=True).start()
                threading.Thread(target=_write, args=(other, late), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()


def _read(one: socket.socket, late: queue.SimpleQueue[tuple[float, bytes]], delay_s: float) -> None:
    data = b"?"
    while data:
        try:
            data = one.recv(1 << 18)
        except OSError:
            data = b""
        late.put((time.monotonic() + delay_s, data))


def _write(other: socket.socket, late: queue.SimpleQueue[tuple[float, bytes]]) -> None:
    with contextlib.suppress(OSError):
        while True:
            due_s, data = late.get()
            time.sleep(max(0.0, due_s - time.monotonic()))
            if not data:
                other.shutdown(socket.SHUT_WR)
                return
            other.sendall(data)
