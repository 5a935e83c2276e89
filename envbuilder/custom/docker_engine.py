"""A Docker engine: images go into it and come out of it as docker-archives (``docker-daemon:NAME:TAG``).

The ``docker`` extra is imported only here and only when an engine is spoken to. Its ``push`` and ``pull`` are not
used: what the engine says is checked, and digests are ours.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from envbuilder.custom.docker_archive import DockerArchiveTarget, write_docker_archive
from envbuilder.digest import Digest, InvalidDigest
from envbuilder.errors import HostError, UnavailableError
from envbuilder.image.inspect import OpenImage
from envbuilder.store.files import disk_errors
from envbuilder.store.target import NotFound, Target

#: Seconds without a word of the engine: it unpacks a whole image before it answers (docker-py#2985).
_IDLE_S = 3600
_AWAY = "Start the engine, or name another one in DOCKER_HOST."


class ExtraMissing(HostError):
    """A feature needs an optional dependency of this package that is not installed."""


class EngineAway(UnavailableError):
    """The Docker engine does not answer, or broke off."""


class EngineRefused(HostError):
    """The Docker engine says no."""


class DockerEngine:
    """The engine at ``host``, such as ``unix:///var/run/docker.sock``; a context manager.

    Raises:
        ExtraMissing: the ``docker`` extra is not installed. EngineAway: nobody answers at ``host``.
    """

    def __init__(self, host: str) -> None:
        self._host, self._docker = host, _docker()
        if host.startswith("unix://") and not Path(host.removeprefix("unix://")).is_socket():
            raise EngineAway(f"{host}: no engine listens there", hint=_AWAY)
        with self._errors("connect"):
            self._api = self._docker.APIClient(base_url=host, version="auto", timeout=_IDLE_S)

    def __enter__(self) -> DockerEngine:  # noqa: PYI034  # typing.Self is of Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self._api.close()

    def load(self, source: Target, image: OpenImage, name: str, *, spool: Path) -> Digest:
        """Let the engine have ``image`` as ``name`` (``NAME:TAG``); the digest of its config, which is its ID there.

        Layers that the engine has are not sent. ``spool`` takes one uncompressed layer at a time.

        Raises:
            EngineRefused, EngineAway: from the engine. DigestMismatch, BadArchive: from ``source``.
        """
        archive = write_docker_archive(source, image, name, spool=spool, present=self._present(image))
        with self._errors(f"load {name}"):
            for said in self._api.load_image(archive):
                if error := said.get("errorDetail") or said.get("error"):
                    text = error.get("message", "") if isinstance(error, dict) else str(error)
                    raise EngineRefused(f"{self._host}: load {name}: {text[:500]}")
            layers = self._api.inspect_image(name)["RootFS"].get("Layers") or []
        want = [str(digest) for digest in image.config.diff_ids]
        if layers != want:
            raise EngineRefused(f"{self._host}: load {name}: want layers {want}, got {layers}")
        return image.manifest.config.digest

    def open(self, name: str, *, spool: Path) -> DockerArchiveTarget:
        """The engine's image ``name``; its archive lies in ``spool``, without a name there, until it is dropped.

        Raises:
            NotFound: no such image. BadArchive: the engine saved something else.
        """
        with disk_errors(spool), tempfile.TemporaryFile(dir=spool) as file:
            with self._errors(f"save {name}"):
                for block in self._api.get_image(name, chunk_size=1 << 20):
                    file.write(block)
            file.flush()
            return DockerArchiveTarget(os.dup(file.fileno()), f"docker-daemon:{name}")

    def _present(self, image: OpenImage) -> frozenset[Digest]:
        """The layers at the bottom of ``image`` that an image of the engine has at its bottom, too.

        Only the classic store takes an archive that lacks them; containerd's wants every layer.
        """
        with self._errors("list images"):
            if "io.containerd.snapshotter.v1" in str(self._api.info().get("DriverStatus")):
                return frozenset()
            chains = []
            for item in self._api.images(quiet=True):
                with contextlib.suppress(self._docker.errors.NotFound):  # removed just now
                    chains.append(self._api.inspect_image(item)["RootFS"].get("Layers") or [])
        return common_base(image.config.diff_ids, chains)

    @contextlib.contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        where = f"{self._host}: {what}"
        try:
            yield
        except self._docker.errors.NotFound as error:
            raise NotFound(f"{where}: {_said(error)}", hint="List what there is: docker images.") from error
        except self._docker.errors.APIError as error:
            raise EngineRefused(f"{where}: {_said(error)}") from error
        except (self._docker.errors.DockerException, OSError) as error:
            raise EngineAway(f"{where}: {error!s:.300}", hint=_AWAY) from error


def common_base(diff_ids: tuple[Digest, ...], chains: list[list[str]]) -> frozenset[Digest]:
    """The longest start of ``diff_ids`` that is a start of one of ``chains``."""
    longest = 0
    for chain in chains:
        length = 0
        for mine, theirs in zip(diff_ids, chain, strict=False):
            try:
                if Digest.parse(theirs) != mine:
                    break
            except InvalidDigest:
                break
            length += 1
        longest = max(longest, length)
    # A layer that stands a second time above must be sent all the same if it is named there.
    return frozenset(diff_ids[:longest]) - frozenset(diff_ids[longest:])


def _said(error: Any) -> str:
    text = error.explanation or str(error)
    with contextlib.suppress(ValueError, TypeError, AttributeError):
        text = json.loads(text).get("message", text)
    return str(text)[:500]


def _docker() -> ModuleType:
    try:
        return importlib.import_module("docker")
    except ImportError as error:
        raise ExtraMissing(
            f"docker-daemon: needs the docker extra: {error}", hint="Install it: pip install 'envbuilder[docker]'."
        ) from error
