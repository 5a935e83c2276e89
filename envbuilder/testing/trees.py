"""Random trees for properties of layers and file systems; needs hypothesis, which tests have.

Every kind of entry, odd names, sizes around a block, owners and attributes beyond small fields.
"""

from __future__ import annotations

import io
import stat
from functools import partial
from typing import Any

from hypothesis import strategies as st

from envbuilder.layer.tree import DIRECTORY, FILE, SYMLINK, Entry, file

_RAW = st.binary(min_size=1, max_size=12).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
#: '+', '-' and '#' sort before '.'; some need pax records; some are no UTF-8; some are as long as Linux takes.
NAMES = st.one_of(
    st.text("ab.+-#_~ \tA\\\n", min_size=1, max_size=6),
    st.text(min_size=1, max_size=20),
    _RAW,
    st.integers(90, 255).map(lambda size: "n" * size),
).filter(
    lambda name: (
        name not in {".", ".."} and not name.startswith(".wh.") and not {"/", "\0"} & set(name) and _is_name(name)
    )
)
SIZES = st.one_of(st.sampled_from([0, 1, 511, 512, 513, 4095, 4096, 4097, 8192, 300_000]), st.integers(0, 9000))
_XATTRS = st.dictionaries(
    st.sampled_from(["user.a", "user.b", "user." + "long" * 9, "trusted.t"]), st.binary(max_size=300), max_size=3
).map(lambda values: tuple(sorted(values.items())))
_IDS = st.sampled_from([0, 0, 0, 1000, 65_535, 65_536, 2**31])
_KINDS = st.sampled_from(["file", "file", "directory", "directory", "symlink", "link", "device", "fifo"])


def _is_name(name: str) -> bool:
    try:
        return 0 < len(name.encode("utf-8", "surrogateescape")) <= 255
    except UnicodeEncodeError:
        return False


def content(size: int, seed: int) -> bytes:
    """``size`` bytes that differ from file to file and hold no zero byte."""
    return (b"%d|" % seed * size)[:size]


@st.composite
def trees(draw: st.DrawFn) -> list[Entry]:
    """Entries of one layer that ``write_tar`` takes, in any order; a file's bytes are ``content``."""
    entries: dict[str, Entry] = {}
    directories: list[str] = [""]
    files: list[str] = []
    for number in range(draw(st.integers(0, 14))):
        parent, name = draw(st.sampled_from(directories)), draw(NAMES)
        path = f"{parent}/{name}" if parent else name
        if path in entries or len(path.encode("utf-8", "surrogateescape")) > 3000:
            continue
        kind, mode = draw(_KINDS), draw(st.integers(0, 0o7777))
        owner: dict[str, Any] = {"uid": draw(_IDS), "gid": draw(_IDS)}
        if kind == "directory":
            directories.append(path)
            entries[path] = Entry(path=path, mode=DIRECTORY | mode, xattrs=draw(_XATTRS), **owner)
        elif kind == "symlink":
            target = draw(st.one_of(NAMES, st.integers(1, 4000).map(lambda size: "t" * size)))
            entries[path] = Entry(path=path, mode=SYMLINK | 0o777, link=target, **owner)
        elif kind == "link" and files:
            entries[path] = Entry(path=path, mode=FILE | 0o644, link=draw(st.sampled_from(files)))
        elif kind == "device":
            device = (draw(st.integers(0, 4095)), draw(st.integers(0, 0xFFFFF)))
            entries[path] = Entry(path=path, mode=stat.S_IFCHR | mode, device=device, **owner)
        elif kind == "fifo":
            entries[path] = Entry(path=path, mode=stat.S_IFIFO | mode, **owner)
        else:
            size = draw(SIZES)
            files.append(path)
            opener = partial(_open, size, number)
            xattrs = draw(_XATTRS)
            entries[path] = Entry(path=path, mode=FILE | mode, size=size, open=opener, xattrs=xattrs, **owner)
    return list(entries.values())


def _open(size: int, seed: int) -> io.BytesIO:
    return io.BytesIO(content(size, seed))


def many_names(parent: str, count: int) -> list[Entry]:
    """Files whose directory needs many blocks, names of mixed length."""
    return [file(f"{parent}/{'é' * (number % 40)}{number:05}", b"x") for number in range(count)]
