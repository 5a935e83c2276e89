"""oras-py over our transport: code that was written for ``oras.provider.Registry`` keeps working, and is verified.

oras-py hashes nothing that it downloads (oras-py#247), holds a pushed file in memory, and knows no resume, mount or
token per scope. Here its registry is one whose blobs and manifests go through RegistryTarget, and whose other requests
go through our client. The ``oras`` extra is imported only here and only when it is asked for; it is in no trust path.
"""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from envbuilder.digest import BLOCK_SIZE, Descriptor, Digest, describe
from envbuilder.errors import HostError
from envbuilder.oci import media_types
from envbuilder.oci.reference import RegistryReference
from envbuilder.registry.client import Call, RegistryClient
from envbuilder.registry.errors import BadAnswer
from envbuilder.registry.target import RegistryTarget

_NAME = re.compile(r"/v2/(.+)/(?:blobs|manifests|tags|referrers)/")
#: Bytes of an answer that oras-py gets whole: lists of tags and errors; blobs never come this way.
_MAX_ANSWER = 8 << 20


class OrasMissing(HostError):
    """The ``oras`` extra of this package is not installed."""


def oras_registry(client: RegistryClient, host: str) -> Any:
    """An ``oras.provider.Registry`` for ``host``, whose every request is sent by ``client``.

    Raises:
        OrasMissing: the ``oras`` extra is not installed.
    """
    provider, requests = _module("oras.provider"), _module("requests")

    class Registry(provider.Registry):  # type: ignore[misc, name-defined]  # a class of an extra that may be missing
        """What oras-py does over HTTP, done by our client."""

        def __init__(self) -> None:
            super().__init__(hostname=host, insecure=client.registry(host).origin.scheme == "http")
            self._targets: dict[str, RegistryTarget] = {}

        def upload_blob(self, blob: str, container: Any, layer: dict[str, Any], *_: Any, **__: Any) -> Any:
            """Upload the file ``blob``: streamed, verified, only if it is missing."""
            file = Path(blob)
            what = Descriptor(
                media_type=str(layer["mediaType"]), digest=Digest.parse(layer["digest"]), size=file.stat().st_size
            )
            self._target(container).push(_as_blob(what), lambda: file.open("rb"))
            return self._answer(201, {"Docker-Content-Digest": str(what.digest)})

        def upload_manifest(self, manifest: dict[str, Any], container: Any) -> Any:
            """Store ``manifest`` under its digest and the container's tag."""
            data = json.dumps(manifest).encode()
            what = describe(data, manifest.get("mediaType") or media_types.OCI_MANIFEST)
            target, parsed = self._target(container), self.get_container(container)
            target.push_tagged(what, data, parsed.tag)
            return self._answer(201, {"Docker-Content-Digest": str(what.digest)})

        def get_manifest(self, container: Any, *_: Any, **__: Any) -> Any:
            """Give the verified manifest."""
            target, parsed = self._target(container), self.get_container(container)
            with target.fetch(target.lookup(parsed.digest or parsed.tag)) as stream:
                return json.loads(stream.read())

        def download_blob(self, container: Any, digest: str, outfile: str) -> str:
            """Write the verified blob to ``outfile``; what cannot be verified leaves no file."""
            target, file = self._target(container), Path(outfile)
            what = self._described(container, Digest.parse(digest))
            file.parent.mkdir(parents=True, exist_ok=True)
            part = file.with_name(file.name + ".part")
            try:
                with target.fetch(what) as stream, part.open("wb") as out:
                    while block := stream.read(BLOCK_SIZE):
                        out.write(block)
                part.replace(file)
            finally:
                part.unlink(missing_ok=True)
            return outfile

        def do_request(  # the signature is oras-py's
            self,
            url: str,
            method: str = "GET",
            data: Any = None,
            headers: dict[str, str] | None = None,
            json: dict[str, Any] | None = None,
            stream: bool = False,  # noqa: FBT001, FBT002
        ) -> Any:
            """Send anything else that oras-py asks for."""
            del stream
            registry, path = client.registry(host), urlsplit(url)
            name = _NAME.match(path.path)
            actions = "pull" if method in ("GET", "HEAD") else "pull,push,delete"
            body = _dumps(json) if json is not None else data
            answer = registry.request(
                Call(
                    method=method,
                    url=registry.url(path.path + (f"?{path.query}" if path.query else "")),
                    scopes=(f"repository:{name[1]}:{actions}",) if name else (),
                    headers=headers or {},
                    body=body if isinstance(body, bytes) else None,
                    retry=method in ("GET", "HEAD"),
                ),
                range(200, 500),
            )
            content = answer.read_all(_MAX_ANSWER) if method != "HEAD" else b""
            return self._answer(answer.status, dict(answer.headers), content, url)

        def _target(self, container: Any) -> RegistryTarget:
            name = self.get_container(container).api_prefix
            if name not in self._targets:
                self._targets[name] = RegistryTarget(RegistryReference(host, name), client)
            return self._targets[name]

        def _described(self, container: Any, digest: Digest) -> Descriptor:
            """A blob's descriptor: oras-py hands on its digest only, so its size is asked for."""
            container = self.get_container(container)
            found = self.do_request(f"{self.prefix}://{container.get_blob_url(str(digest))}", "HEAD")
            size = found.headers.get("Content-Length", "")
            if not size.isdecimal() or len(size) > 18:  # digits of a size
                raise BadAnswer(f"{host}: {digest}: want the size of a blob, got {size[:40]!r}")
            return Descriptor(media_type="application/octet-stream", digest=digest, size=int(size))

        def _answer(self, status: int, headers: dict[str, str], content: bytes = b"", url: str = "") -> Any:
            made = requests.Response()
            made.status_code, made.url, made._content = status, url, content  # noqa: SLF001  # as requests' adapters do
            made.headers.update(headers)
            made.request = requests.Request("GET", url or f"{self.prefix}://{host}/").prepare()
            return made

    return Registry()


def _as_blob(what: Descriptor) -> Descriptor:
    """A file that is a manifest by its media type is stored as a blob all the same: oras-py means a layer."""
    return Descriptor(media_type="application/octet-stream", digest=what.digest, size=what.size)


def _dumps(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode()


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise OrasMissing(
            f"{name}: needs the oras extra: {error}", hint="Install it: pip install 'envbuilder[oras]'."
        ) from error
