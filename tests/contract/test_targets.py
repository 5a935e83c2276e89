import io
import itertools
from functools import partial

import pytest

from envbuilder.digest import describe
from envbuilder.oci import media_types
from envbuilder.oci.manifest import Manifest
from envbuilder.store.archive import ArchiveTarget, ArchiveWriter
from envbuilder.store.layout import LayoutTarget
from envbuilder.store.memory import MemoryTarget
from envbuilder.testing.checks import check_immutable_target, check_range_target, check_target


@pytest.fixture(params=["memory", "layout", "archive"])
def make(request, tmp_path):
    numbers = itertools.count()
    return {
        "memory": MemoryTarget,
        "layout": lambda: LayoutTarget(tmp_path / str(next(numbers)), create=True),
        "archive": lambda: ArchiveWriter(tmp_path / f"{next(numbers)}.tar"),
    }[request.param]


def test_every_target_keeps_the_contract(make):
    check_target(make)


def test_every_range_target_keeps_the_contract(make):
    check_range_target(make)


def test_an_archive_keeps_the_reading_half_of_the_contract(tmp_path):
    writer = ArchiveWriter(tmp_path / "image.tar")
    writer.push(describe(b"{}"), partial(io.BytesIO, b"{}"))
    data = Manifest(config=describe(b"{}", media_types.OCI_CONFIG), layers=()).dump()
    root = describe(data, media_types.OCI_MANIFEST)
    writer.push(root, partial(io.BytesIO, data))
    writer.tag(root, "v1")
    writer.finish(root)

    check_immutable_target(ArchiveTarget(tmp_path / "image.tar"), root, "v1")
