"""Lock to TOML and back."""

import re
from dataclasses import replace

import pytest

from envbuilder.lock.codec import digest, dump, load
from envbuilder.lock.locktable import InvalidLock
from envbuilder.testing.locks import FULL, SMALL, wheel


@pytest.mark.parametrize("lock", [SMALL, FULL], ids=["small", "full"])
def test_a_lock_comes_back_as_it_went(lock):
    assert load(dump(lock), source="x.lock.toml") == lock


def test_an_artefact_is_one_line_with_name_and_version_first():
    lines = dump(SMALL).decode().splitlines()

    (line,) = (line for line in lines if "numpy" in line)
    assert line.startswith('    { name = "numpy", version = "1", layer = "x/wheels-00", ')


def test_a_bump_changes_one_line():
    before = dump(SMALL).decode().splitlines()
    bumped = replace(SMALL, wheels=(wheel("numpy", "2", layer="x/wheels-00"), SMALL.wheels[1]))
    after = dump(bumped).decode().splitlines()

    assert sum(a != b for a, b in zip(before, after, strict=True)) == 1


def test_the_order_of_variables_does_not_change_the_bytes():
    assert dump(replace(SMALL, env={"B": "1", "A": "2"})) == dump(replace(SMALL, env={"A": "2", "B": "1"}))


def test_the_digest_is_that_of_the_bytes_and_changes_with_any_field():
    assert digest(SMALL) != digest(FULL)
    assert digest(SMALL) == digest(load(dump(SMALL), source="x"))


def damaged(pattern: str, to: str) -> bytes:
    text, count = re.subn(pattern, to, dump(FULL).decode(), count=1)
    assert count == 1, pattern
    return text.encode()


@pytest.mark.parametrize(
    ("pattern", "to", "message"),
    [
        (r"format = 1", "format = 2", "format: want 1, got 2"),
        (r'name = "x"', "name = 3", "name: want str, got int"),
        (r'name = "x"', 'name = "x"\nhost = "h"', "host: unknown key"),
        (r'suite = "trixie"\n', "", "suite: want str, got NoneType"),
        (r"size = 10", "size = -1", r"content.wheels\[0\].size: want 0 or more, got -1"),
        (r"size = 10", "size = true", r"content.wheels\[0\].size: want int, got bool"),
        (r'sha256 = "[0-9a-f]{64}', 'sha256 = "abc', "want sha256:<64 hex digits>"),
        (r'layer = "x/wheels-00"', 'layer = "x/none"', "numpy: layer 'x/none' is not in 'layers'"),
        (r'name = "numpy"', 'name = "zzz"', "content.wheels: want names sorted, each once"),
        (r'name = "numpy"', 'name = "pandas"', "content.wheels: want names sorted, each once"),
        (r'"x/top"', '"x/bottom"', "layers: want distinct ids, last 'x/top'"),
        (r'mode = "0600"', 'mode = "0900"', r"content.files\[0\].mode: want octal digits"),
        (r'platform = "linux/x86_64"', 'platform = "linux/riscv64"', "platform: want"),
        (r'file = "numpy-1', 'file = "../numpy-1', "numpy: not a file name"),
        (r'file = "pool', 'file = "/../pool', "libc6: not a path inside the tree"),
        (r'path = "etc/motd"', 'path = "/etc/motd"', "want 'etc/motd'"),
        (r"# Made", "# made", "not as it was written"),
        (r"glibc", "glibc ", "not as it was written"),
        (r"\A", "\ufeff[[", "not TOML"),
    ],
)
def test_a_damaged_lock_is_refused_and_says_where(pattern, to, message):
    with pytest.raises(InvalidLock, match=message):
        load(damaged(pattern, to), source="x.lock.toml")


def test_bytes_that_are_no_text_are_refused():
    with pytest.raises(InvalidLock):
        load(b"\xff\xfe", source="x.lock.toml")


@pytest.mark.parametrize("archive", ["", "Debian", "debian@now", "debian@20261101T000000Z/../x", "a b"])
def test_an_archive_that_is_no_role_is_refused(archive):
    hostile = replace(FULL, debs=(replace(FULL.debs[0], archive=archive),))

    with pytest.raises(InvalidLock, match="want an archive's role"):
        load(dump(hostile), source="x")


@pytest.mark.parametrize(
    ("version", "tag"),
    [
        ("/../../../tmp/planted/x", "cp313"),
        ("3.13/..", "cp313/.."),
        ("", "cp"),
        ("3", "cp3"),
        ("3.12", "cp313"),
        ("3.13", "py3"),
    ],
)
def test_a_version_of_python_that_is_none_or_has_another_tag_is_refused(version, tag):
    hostile = replace(FULL, python=replace(FULL.python, version=version, tag=tag))

    with pytest.raises(InvalidLock, match="python: want a version"):
        load(dump(hostile), source="x")


def test_a_package_of_a_dated_suite_comes_back():
    dated = replace(SMALL, debs=tuple(replace(deb, archive="debian@20261101T000000Z") for deb in SMALL.debs))

    assert load(dump(dated), source="x") == dated
