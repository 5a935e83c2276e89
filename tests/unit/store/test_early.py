"""Blobs that are sent while their image is still being made."""

from __future__ import annotations

import io
import threading
from functools import partial
from pathlib import Path

import pytest

from envbuilder.digest import Descriptor, describe
from envbuilder.store.archive import ArchiveWriter
from envbuilder.store.early import EarlyPush
from envbuilder.store.memory import MemoryTarget
from envbuilder.store.movement import CopyCancelled
from envbuilder.store.pace import FIRST, Pace
from envbuilder.store.target import NotFound, Opener


def _filled(count: int) -> tuple[MemoryTarget, list[Descriptor]]:
    source = MemoryTarget()
    blobs = []
    for number in range(count):
        data = b"%d" % number * 100
        blobs.append(describe(data))
        source.push(blobs[-1], partial(io.BytesIO, data))
    return source, blobs


class _Slow(MemoryTarget):
    """A target with a pace that counts how many push at once, and lets none end before it may."""

    def __init__(self) -> None:
        super().__init__()
        self.pace = Pace()
        self.may_end, self.full = threading.Event(), threading.Event()
        self.inside = self.most = 0
        self._guard = threading.Lock()

    def push(self, what: Descriptor, content: Opener) -> None:
        with self._guard:
            self.inside += 1
            self.most = max(self.most, self.inside)
            if self.inside == FIRST:
                self.full.set()
        self.may_end.wait(10)
        super().push(what, content)
        with self._guard:
            self.inside -= 1


def test_what_was_pushed_is_there_at_the_end_and_counted() -> None:
    source, blobs = _filled(9)
    target = MemoryTarget()
    target.push(blobs[0], lambda: source.fetch(blobs[0]))
    with EarlyPush(source, target) as early:
        for blob in blobs:
            early.push(blob)
    assert all(target.has(blob) for blob in blobs)
    assert early.sent == sum(blob.size for blob in blobs[1:])


def test_no_more_are_sent_at_a_time_than_the_host_bears() -> None:
    source, blobs = _filled(12)
    target = _Slow()
    with EarlyPush(source, target) as early:
        for blob in blobs:
            early.push(blob)
        assert target.full.wait(10)
        assert not threading.Event().wait(0.05)
        assert target.most == FIRST
        target.may_end.set()
    assert all(target.has(blob) for blob in blobs)


def test_an_error_of_a_blob_comes_up_at_the_end() -> None:
    source, _ = _filled(1)
    with pytest.raises(NotFound, match="source"), EarlyPush(source, MemoryTarget()) as early:
        early.push(describe(b"nowhere"))


def test_a_failed_build_stops_what_is_on_its_way() -> None:
    source, blobs = _filled(12)
    target = _Slow()

    with pytest.raises(ZeroDivisionError), EarlyPush(source, target) as early:
        for blob in blobs:
            early.push(blob)
        assert target.full.wait(10)
        # They go on only once the block was left: until then nothing is stopped.
        threading.Timer(0.05, target.may_end.set).start()
        raise ZeroDivisionError
    assert early.sent == 0
    assert not any(target.has(blob) for blob in blobs)
    assert all(isinstance(future.exception(), CopyCancelled) for future in early._sent if not future.cancelled())


def test_nothing_is_sent_early_to_an_archive_or_to_nowhere(tmp_path: Path) -> None:
    source, blobs = _filled(2)
    archive = ArchiveWriter(tmp_path / "image.tar")
    for target in (archive, None):
        with EarlyPush(source, target) as early:
            early.push(blobs[0])
        assert early.sent == 0
    assert not archive.has(blobs[0])
