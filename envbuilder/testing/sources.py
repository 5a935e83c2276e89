"""A source of blobs whose faults are switched on and off by files, so that other processes see them too."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import BinaryIO

from envbuilder.digest import Descriptor
from envbuilder.errors import UnavailableError
from envbuilder.store.layout import LayoutTarget
from envbuilder.store.target import NotFound, Opener


class SourceSwitchedOff(UnavailableError):
    """The test has switched this source off."""


class SwitchedSource:
    """The image layout in ``layout`` as a registry that fails on demand; a RangeTarget that can be pickled.

    Files in ``switches``: ``away`` - nothing answers; ``gone`` - nothing is there; ``altered`` - a byte of every
    range is wrong; ``slow`` - its text is the seconds that each range takes. Every range is noted in ``ranges``.
    """

    def __init__(self, layout: Path, switches: Path) -> None:
        self._layout, self._switches = LayoutTarget(layout), switches
        switches.mkdir(exist_ok=True)

    @property
    def name(self) -> str:
        return "switched"

    def switch(self, name: str, text: str = "1") -> None:
        """Turn a fault on; an empty ``text`` turns it off."""
        if text:
            temporary = self._switches / f".{name}"
            temporary.write_text(text)
            temporary.replace(self._switches / name)
        else:
            (self._switches / name).unlink(missing_ok=True)

    def ranges(self) -> list[tuple[str, int, int]]:
        """Digest, offset and size of every range that was asked for and given."""
        try:
            lines = (self._switches / "ranges").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [(digest, int(offset), int(size)) for digest, offset, size in map(str.split, lines)]

    def has(self, what: Descriptor) -> bool:
        self._check(what)
        return self._layout.has(what)

    def fetch(self, what: Descriptor) -> BinaryIO:
        self._check(what)
        return self._layout.fetch(what)

    def fetch_range(self, what: Descriptor, offset: int, size: int) -> bytes:
        self._check(what)
        if text := self._text("slow"):
            time.sleep(float(text))
        data = self._layout.fetch_range(what, offset, size)
        if self._text("altered"):
            data = bytes([data[0] ^ 1]) + data[1:]
        line = f"{what.digest} {offset} {size}\n".encode()
        log = os.open(self._switches / "ranges", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(log, line)
        finally:
            os.close(log)
        return data

    def push(self, what: Descriptor, content: Opener) -> None:
        self._layout.push(what, content)

    def lookup(self, tag: str) -> Descriptor:
        if self._text("away"):
            raise SourceSwitchedOff(f"{self.name}: {tag}: switched off")
        return self._layout.lookup(tag)

    def tag(self, what: Descriptor, tag: str) -> None:
        self._layout.tag(what, tag)

    def _check(self, what: Descriptor) -> None:
        if self._text("away"):
            raise SourceSwitchedOff(f"{self.name}: {what.digest}: switched off")
        if self._text("gone"):
            raise NotFound(f"{self.name}: no {what.digest}")

    def _text(self, name: str) -> str:
        try:
            return (self._switches / name).read_text()
        except FileNotFoundError:
            return ""
