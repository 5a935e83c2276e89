"""S3 for a registry of the tests: moto's server, behind a wire that records what clients send it.

A registry over S3 answers GET and HEAD of a blob with a redirect to presigned URLs of another origin, as clouds do.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import urllib3

from envbuilder import proc
from envbuilder.testing.servers import ServerNotStarted
from envbuilder.testing.wire import Wire

_START_TIMEOUT_S = 30.0
_BUCKET = "registry"


@contextlib.contextmanager
def s3_storage(directory: Path) -> Iterator[tuple[dict[str, Any], Wire]]:
    """Start S3; the ``storage`` of a registry's configuration, and the wire that its clients are redirected to.

    Raises:
        ServerNotStarted: moto is not installed.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with (directory / "moto.log").open("wb") as log:
        process = proc.spawn(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            stdout=log.fileno(),
            stderr=log.fileno(),
        )
    try:
        _make_bucket(f"http://127.0.0.1:{port}", process, directory / "moto.log")
        with Wire(f"127.0.0.1:{port}") as wire:
            s3 = {
                "accesskey": "test",
                "secretkey": "test",
                "region": "us-east-1",
                "regionendpoint": f"http://{wire.host}",
                "bucket": _BUCKET,
                "secure": False,
                "forcepathstyle": True,  # distribution 3; 2.8 does so with any regionendpoint
                "v4auth": True,
                "rootdirectory": "/",
            }
            yield {"s3": s3, "delete": {"enabled": True}}, wire
    finally:
        process.terminate()
        process.wait()


def _make_bucket(url: str, process: Any, log: Path) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    with urllib3.PoolManager(retries=False, timeout=5) as http:
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(urllib3.exceptions.HTTPError):
                if http.request("PUT", f"{url}/{_BUCKET}").status == 200:
                    return
            time.sleep(0.05)
    raise ServerNotStarted(f"moto: did not start: {log.read_text(errors='replace')[-2000:]}")
