"""The directory of a wheel, read by ranges: all that claims need, a small part of the bytes, and no harm from bad ones."""

import io
import zipfile

import pytest

from envbuilder.layer.wheel import wheel_claims
from envbuilder.lock.download import Http, http_pool
from envbuilder.lock.listing import NoListing, fetch_listing
from envbuilder.lock.model import Interpreter
from envbuilder.testing.artifacts import locked_wheel, make_wheel
from envbuilder.testing.index import Answer, PackageIndex

PYTHON = Interpreter(version="3.13", tag="cp313")
LARGE = bytes(range(256)) * 4000
FILES = {
    "pkg/large.bin": LARGE,
    "{data}/scripts/first": b"#!python\nprint()\n",
    "pkg/larger.bin": LARGE[1:],
    "{data}/scripts/native": b"\x7fELF" + LARGE,
    "pkg/a.py": b"a",
}


@pytest.fixture
def index():
    with PackageIndex() as server:
        yield server


def listed(index, data, tmp_path):
    index.files["/files/w.whl"] = data
    http = Http(pool=http_pool({}), wait=lambda _: None)
    out = tmp_path / "w"
    count = fetch_listing(http, f"{index.address}/files/w.whl", {}, len(data), out)
    return count, out


@pytest.mark.parametrize("directory_last", [True, False], ids=["RECORD last", "RECORD first"])
def test_a_listing_gives_the_same_claims_as_the_wheel(index, tmp_path, directory_last):
    data = make_wheel("pkg", files=FILES, entry_points="[console_scripts]\ngo = pkg:a\n")
    if not directory_last:
        data = _record_first(data)
    whole = tmp_path / "whole"
    whole.write_bytes(data)
    wheel = locked_wheel("pkg", data)
    count, out = listed(index, data, tmp_path)

    assert wheel_claims(out, wheel, python=PYTHON) == wheel_claims(whole, wheel, python=PYTHON)
    assert count < 200_000 < len(data)


def test_a_directory_longer_than_the_first_read_comes_whole(index, tmp_path):
    data = make_wheel("pkg", files={f"pkg/{'n' * 90}{number:04}.txt": b"" for number in range(900)})
    _, out = listed(index, data, tmp_path)

    assert len(wheel_claims(out, locked_wheel("pkg", data), python=PYTHON)) > 900


@pytest.mark.parametrize(
    "data", [b"", b"no zip", b"PK\5\6" + b"\xff" * 18, b"x" * 100_000], ids=["nothing", "text", "far away", "long"]
)
def test_what_is_no_wheel_has_no_listing(index, tmp_path, data):
    with pytest.raises(NoListing):
        listed(index, data, tmp_path)


@pytest.mark.parametrize(
    "answer", [Answer(404), Answer(200, b"x" * 70_000), Answer(206, b"short"), Answer(503)], ids=str
)
def test_an_index_that_gives_no_parts_has_no_listing(index, tmp_path, answer):
    index.faults["/files/w.whl"] = [answer]

    with pytest.raises(NoListing):
        listed(index, make_wheel("pkg", files=FILES), tmp_path)


def test_an_index_without_ranges_is_not_read_whole(index, tmp_path):
    index.ranges = False

    with pytest.raises(NoListing, match="status 200"):
        listed(index, make_wheel("pkg", files=FILES), tmp_path)


def _record_first(data):
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        for item in sorted(old.infolist(), key=lambda item: ".dist-info/" not in item.filename):
            new.writestr(item, old.read(item))
    return out.getvalue()
