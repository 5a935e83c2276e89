"""Peer: the best pipeline one can write by hand: uv into a folder, tar, ``zstd -T0 -3``, ``crane append``."""

from __future__ import annotations

from pathlib import Path

from contents import Contents
from measure import Cost, measured
from scratch import Bench, need, tool
from servers import Registry

_TAR = "tar --sort=name --mtime=@1 --owner=0 --group=0 --numeric-owner --transform=s,^env,opt/env,"


class Handmade:
    """A registry that has the base image: outside of what is measured.

    from_wheels: uv's cache is empty; else it has every wheel unpacked.
    """

    repository = "handmade/env"  # of tag 1

    def __init__(self, bench: Bench, made: Contents, at: Registry, *, from_wheels: bool = False) -> None:
        need("crane", "zstd", "tar")
        self._bench, self._made, self._at = bench, made, at
        self._folder = bench.folder("handmade")
        self._cache = bench.folder("handmade/cache") if from_wheels else None
        self._base = f"{at.host}/handmade/base:1"
        self._crane("append", "--oci-empty-base", "-f", made.base, "-t", self._base)

    def close(self) -> None:
        """Nothing of it runs on."""

    def build(self) -> Cost:
        """The folder, then the layer."""
        result = self._bench.folder("handmade/result")
        installed = measured(self._made.chroot(result, cache=self._cache), log=self._bench.log)
        pack = f"{_TAR} -C {result} -cf - env | zstd -q -T0 -3 -f -o {self._layer}"
        return installed + measured(["/bin/sh", "-ec", pack], log=self._bench.log)

    def push(self) -> Cost:
        return self._crane("append", "-b", self._base, "-f", self._layer, "-t", f"{self._at.host}/{self.repository}:1")

    @property
    def _layer(self) -> Path:
        return self._folder / "layer.tar.zst"

    def _crane(self, *words: str | Path) -> Cost:
        return measured([tool("crane"), *words, "--insecure"], log=self._bench.log)
