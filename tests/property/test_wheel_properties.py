"""A wheel's files come out of its entries as they went in, whatever they are called and hold."""

import csv
import io
import stat
import tempfile
import zipfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from envbuilder.digest import Digest
from envbuilder.layer.wheel import wheel_claims, wheel_entries
from envbuilder.layer.wheel_record import dump_record, parse_record
from envbuilder.lock.model import Interpreter
from envbuilder.testing.artifacts import locked_wheel, make_wheel, make_zip, store_file
from envbuilder.testing.layers import tar_of

PYTHON = Interpreter(version="3.13", tag="cp313")
SITE = "opt/env/lib/python3.13/site-packages/"
NAMES = st.text(st.characters(exclude_characters="/\0{}", exclude_categories=["Cs"]), min_size=1, max_size=12).filter(
    lambda name: name not in (".", "..") and not name.endswith((".data", ".dist-info"))
)
#: No path is another's parent: those of one depth each have their own.
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(lambda parts: "/".join([f"d{len(parts)}", *parts]))
FILES = st.dictionaries(PATHS, st.binary(max_size=200), max_size=8)


def entries(data):
    with tempfile.TemporaryDirectory() as folder:
        return list(wheel_entries(store_file(Path(folder), data), locked_wheel("pkg", data), python=PYTHON))


def content(entry):
    return entry.open().read() if entry.open else b""


@given(FILES, st.data())
def test_what_goes_in_comes_out(files, data):
    executable = data.draw(st.sets(st.sampled_from(sorted(files)))) if files else set()
    found = {entry.path: entry for entry in entries(make_wheel("pkg", files=files, executable=executable))}

    assert {path: content(found[SITE + path]) for path in files} == files
    assert {path for path in files if stat.S_IMODE(found[SITE + path].mode) == 0o755} == executable
    record = found[f"{SITE}pkg-1.0.dist-info/RECORD"]
    rows = {row[0] for row in csv.reader(io.StringIO(content(record).decode(), newline=""))}
    assert {SITE + path for path in rows} == set(found)


@given(FILES, st.randoms(use_true_random=False))
def test_the_order_in_the_archive_does_not_matter(files, rng):
    data = make_wheel("pkg", files=files)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = [(item.filename, archive.read(item), 0o644) for item in archive.infolist()]
    rng.shuffle(members)

    assert tar_of(entries(make_zip(members))) == tar_of(entries(data))


@given(FILES)
def test_claims_are_the_paths_of_the_entries(files):
    data = make_wheel("pkg", files=files)
    with tempfile.TemporaryDirectory() as folder:
        claims = wheel_claims(store_file(Path(folder), data), locked_wheel("pkg", data), python=PYTHON)

    assert {path for path, claim in claims.items() if not claim.made_from} == {entry.path for entry in entries(data)}


@given(st.dictionaries(PATHS, st.binary(), max_size=5))
def test_record_is_read_as_it_was_written(files):
    rows = [(path, Digest.of(data), len(data)) for path, data in files.items()]
    parsed = parse_record(dump_record(rows), source="w")

    assert {path: row.matches(files[path]) and row.size for path, row in parsed.items()} == {
        path: len(data) for path, data in files.items()
    }
