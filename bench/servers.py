"""Debian's docker-registry: on loopback, or alone in a network behind a link of a given rate.

The network is the registry process's own (no name, no file): when the registry dies, so do the namespace
and both ends of the link, whatever happened to us.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from measure import cpu_seconds
from scratch import Unavailable, need, need_root, tool

#: Addresses of RFC 2544 (benchmarks), seen only by the two ends of the link.
_OURS, _THEIRS, _PREFIX = "198.18.77.1", "198.18.77.2", 30
_PORT = 5000
#: Bucket of tbf: a quarter of a millisecond more than a TCP segment burst of 64 KiB needs.
_BURST = "256kb"
_PR_SET_PDEATHSIG = 1
_MANIFESTS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """A running registry. ``interface``: our end of its link, empty on loopback."""

    host: str
    data: Path
    pid: int
    interface: str = ""

    def stored(self) -> int:
        """Bytes of all blobs that it holds."""
        blobs = self.data / "docker/registry/v2/blobs"
        return sum(file.stat().st_size for file in blobs.rglob("data"))

    def image_size(self, repository: str, reference: str) -> int:
        """Bytes of all layers of an image, those of its base included; of an index, of its first image."""
        request = urllib.request.Request(f"http://{self.host}/v2/{repository}/manifests/{reference}")
        request.add_header("Accept", ", ".join(_MANIFESTS))
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
            manifest = json.load(answer)
        if "manifests" in manifest:
            return self.image_size(repository, manifest["manifests"][0]["digest"])
        return sum(layer["size"] for layer in manifest["layers"])

    def upload(self, repository: str, digest: str, file: Path) -> None:
        """Let a repository have the blob ``digest``, which is ``file``."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        begin = urllib.request.Request(f"http://{self.host}/v2/{repository}/blobs/uploads/", method="POST", data=b"")
        with opener.open(begin, timeout=60) as answer:
            place = answer.headers["Location"]
        with file.open("rb") as body:
            headers = {"Content-Length": str(file.stat().st_size), "Content-Type": "application/octet-stream"}
            end = urllib.request.Request(f"{place}&digest={digest}", method="PUT", data=body, headers=headers)
            opener.open(end, timeout=600).close()

    def cpu_seconds(self) -> float:
        return cpu_seconds(self.pid)

    def received(self) -> int:
        """Bytes that came over the link so far, all headers included."""
        return int(Path(f"/sys/class/net/{self.interface}/statistics/rx_bytes").read_text())


@contextlib.contextmanager
def registry(folder: Path, *, data: Path | None = None) -> Iterator[Registry]:
    """A registry on a free loopback port; its files below ``folder``."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    stored = data or folder / "data"
    with _serve(folder, stored, f"127.0.0.1:{port}", []) as process:
        _wait(f"127.0.0.1:{port}", process, folder)
        yield Registry(host=f"127.0.0.1:{port}", data=stored, pid=process.pid)


@contextlib.contextmanager
def distant_registry(folder: Path, *, data: Path, rate: str) -> Iterator[Registry]:
    """A registry behind ``tc tbf rate`` (what it sends; what we send is not limited)."""
    need_root()
    need("ip", "tc", "unshare", "nsenter")
    ours = f"ebh{os.getpid()}"[:15]
    theirs = f"ebn{os.getpid()}"[:15]
    with _serve(folder, data, f"0.0.0.0:{_PORT}", [tool("unshare"), "--net"]) as process:
        _other_network(process.pid)
        inside = [tool("nsenter"), "--net", "--target", str(process.pid)]
        for words in (
            [tool("ip"), "link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", str(process.pid)],
            [tool("ip"), "addr", "add", f"{_OURS}/{_PREFIX}", "dev", ours],
            [tool("ip"), "link", "set", ours, "up"],
            [*inside, tool("ip"), "addr", "add", f"{_THEIRS}/{_PREFIX}", "dev", theirs],
            [*inside, tool("ip"), "link", "set", "lo", "up"],
            [*inside, tool("ip"), "link", "set", theirs, "up"],
            [
                *inside,
                tool("tc"),
                "qdisc",
                "add",
                "dev",
                theirs,
                "root",
                "tbf",
                "rate",
                rate,
                "burst",
                _BURST,
                "latency",
                "50ms",
            ],
        ):
            done = subprocess.run(words, check=False, capture_output=True, text=True)
            if done.returncode:
                raise Unavailable(f"{' '.join(words)}: {done.stderr.strip()}")
        host = f"{_THEIRS}:{_PORT}"
        _wait(host, process, folder)
        yield Registry(host=host, data=data, pid=process.pid, interface=ours)


def raw_rate(at: Registry, repository: str, digest: str, size: int) -> float:
    """MB/s of one plain ranged read of a blob, of 200 MB at most."""
    wanted = min(size, 200_000_000)
    request = urllib.request.Request(f"http://{at.host}/v2/{repository}/blobs/{digest}")
    request.add_header("Range", f"bytes=0-{wanted - 1}")
    start = time.monotonic()
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
        read = 0
        while block := answer.read(1 << 20):
            read += len(block)
    if read != wanted:
        raise Unavailable(f"{at.host}: a range of {wanted} bytes gave {read}")
    return read / 1e6 / (time.monotonic() - start)


@contextlib.contextmanager
def _serve(folder: Path, data: Path, address: str, before: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "config.yml"
    # The packaged configuration asks for a password file that does not exist: never that one.
    config.write_text(
        "version: 0.1\nlog: {level: warn}\n"
        f"storage: {{filesystem: {{rootdirectory: {data}}}, delete: {{enabled: true}}}}\n"
        f'http: {{addr: "{address}"}}\n'
    )
    environ = {key: value for key, value in os.environ.items() if key != "AWS_CA_BUNDLE"}
    with (folder / "registry.log").open("ab") as log:
        process = subprocess.Popen(
            [*before, tool("docker-registry"), "serve", str(config)],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            env={**environ, "OTEL_TRACES_EXPORTER": "none"},
            preexec_fn=die_with_us,  # noqa: PLW1509  one prctl; this process has no threads yet
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def die_with_us() -> None:
    """For a child between fork and exec: it ends when its parent does."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _other_network(pid: int) -> None:
    """Wait until ``pid`` has left our network."""
    ours = Path("/proc/self/ns/net").readlink()
    for _ in range(200):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/ns/net").readlink() != ours:
                return
        time.sleep(0.01)
    raise Unavailable("unshare --net did not leave this network: network namespaces are not permitted here")


def _wait(host: str, process: subprocess.Popen[bytes], folder: Path) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for _ in range(200):
        if process.poll() is not None:
            break
        try:
            with opener.open(f"http://{host}/v2/", timeout=2):
                return
        except OSError:
            time.sleep(0.05)
    raise Unavailable(f"docker-registry did not answer on {host}:\n{(folder / 'registry.log').read_text()[-800:]}")
