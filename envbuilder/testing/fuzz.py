"""Random damage for every reader of foreign bytes: wheels, debs, tars, zstd frames and chunk indexes.

A reader may refuse what it is given with an error of ours; anything else (a bare ValueError, a
hang, a gigabyte of memory) is a crash. Damage is done twice: to the bytes of an archive, which its
own checksums mostly catch, and to what is in it before the checksums are made, which they do not.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import random
import shutil
import struct
import tempfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import zstandard

from envbuilder.digest import Digest
from envbuilder.errors import EnvbuilderError
from envbuilder.layer.chunks import ChunkIndex, parse_index, skippable
from envbuilder.layer.deb import deb_entries
from envbuilder.layer.frames import FrameWriter, read_chunk
from envbuilder.layer.tar import write_tar
from envbuilder.layer.tree import FILE, Entry, directory, file, symlink
from envbuilder.layer.wheel import wheel_claims, wheel_entries
from envbuilder.layer.wheel_record import dump_record
from envbuilder.lock.model import Interpreter, Wheel
from envbuilder.mount.unpack.untar import unpack_tar
from envbuilder.testing.artifacts import locked_wheel, make_wheel, make_zip
from envbuilder.testing.debs import ar, compressed, deb_of, make_deb
from envbuilder.testing.debs import tar as gnu_tar

#: Reads damaged bytes; raises EnvbuilderError when it refuses them.
Reader = Callable[[bytes, Path], None]
#: Makes one damaged input.
Maker = Callable[[random.Random], bytes]

_PYTHON = Interpreter(version="3.13", tag="cp313")
#: Numbers at which fields overflow, change sign or lie about a size.
_EDGES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**63 - 1, 2**64 - 1)
#: Pieces that mean something to one of the readers.
_TOKENS = (
    *(b"../", b"/", b"//", b".", b"..", b"\0", b"\\", b".wh.", b".wh..wh..opq", b"\xff\xfe", "é".encode(), b"\n"),
    *(b"PK\3\4", b"PK\1\2", b"PK\5\6", b"PK\6\6", b"!<arch>\n", b"ustar\0", b"./@LongLink", b"\x28\xb5\x2f\xfd"),
    *(b"\x50\x2a\x4d\x18", b"sha256=", b"RECORD", b".dist-info/", b".data/scripts/", b"#!python", b"hdrcharset=BINARY"),
    *(b"99999999999", b"-1", b"0o7", b"path=../../x\n", b"GNU.sparse.map=0,1\n", b"SCHILY.xattr.user.a=b\n"),
)


def damaged(data: bytes, rng: random.Random) -> bytes:
    """``data`` with one to six changes: bits, bytes, numbers, tokens, pieces cut, doubled or moved."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        at = rng.randrange(len(out) + 1)
        match rng.randrange(8):
            case 0 if out:
                out[at % len(out)] ^= 1 << rng.randrange(8)
            case 1 if out:
                out[at % len(out)] = rng.randrange(256)
            case 2:
                width = rng.choice((1, 2, 4, 8))
                number = rng.choice(_EDGES) & ((1 << 8 * width) - 1)
                out[at : at + width] = number.to_bytes(width, rng.choice(("little", "big")))
            case 3:
                token = rng.choice(_TOKENS)
                out[at : at + rng.choice((0, len(token)))] = token
            case 4:
                del out[at : at + rng.choice((1, 16, 512, len(out)))]
            case 5:
                end = at + rng.choice((1, 8, 64, 512))
                out[at:at] = out[at:end] * rng.choice((1, 1, 3))
            case 6:
                source = rng.randrange(len(out) + 1)
                piece = out[source : source + rng.choice((4, 30, 512))]
                out[at : at + len(piece)] = piece
            case _:
                out[at:at] = rng.choice((bytes(512), b"7" * 12, b"A" * 300))
    return bytes(out)


def _maybe(data: bytes, rng: random.Random, chance: float = 0.25) -> bytes:
    return damaged(data, rng) if rng.random() < chance else data


def _wheel(rng: random.Random) -> bytes:
    whole = make_wheel(
        "fuzz",
        files={
            "fuzz/__init__.py": b"import os\n",
            "fuzz/données.txt": b"x" * rng.choice((0, 1, 5000)),
            "{data}/scripts/run": b"#!python\nprint()\n",
            "{data}/data/share/a": b"a",
            "{data}/headers/a.h": b"",
        },
        entry_points="[console_scripts]\nfuzz = fuzz:main\n",
        executable=["{data}/scripts/run"],
    )
    if rng.random() < 0.4:
        return damaged(whole, rng)
    info, data = "fuzz-1.0.dist-info", "fuzz-1.0.data"
    members = {
        "fuzz/__init__.py": _maybe(b"import os\n", rng),
        f"{data}/scripts/run": _maybe(b"#!python\nprint()\n", rng),
        f"{info}/METADATA": b"Name: fuzz\nVersion: 1.0\n",
        f"{info}/WHEEL": _maybe(b"Wheel-Version: 1.0\nTag: py3-none-any\n", rng),
        f"{info}/entry_points.txt": _maybe(b"[console_scripts]\nfuzz = fuzz:main\n", rng, 0.5),
    }
    names = {name: _maybe(name.encode(), rng).decode("utf-8", "replace").replace("\0", "") for name in members}
    placed = [(names[name] or "x", content) for name, content in members.items()]
    record = dump_record([*((name, Digest.of(content), len(content)) for name, content in placed)])
    rows = [(name, content, rng.choice((0o644, 0o755, 0o4755, 0))) for name, content in placed]
    rows.append((f"{info}/RECORD", _maybe(record, rng), 0o644))
    return _maybe(make_zip(dict.fromkeys(rows)) if len({row[0] for row in rows}) == len(rows) else whole, rng, 0.1)


def _read_wheel(data: bytes, scratch: Path) -> None:
    path = scratch / "fuzz.whl"
    path.write_bytes(data)
    with contextlib.suppress(EnvbuilderError):  # where a wrong RECORD is allowed, as much must hold
        _read_installed(path, replace(locked_wheel("fuzz", data), recorded=False))
    _read_installed(path, locked_wheel("fuzz", data))


def _read_installed(path: Path, wheel: Wheel) -> None:
    claims = set(wheel_claims(path, wheel, python=_PYTHON))
    entries = list(wheel_entries(path, wheel, python=_PYTHON))
    for entry in entries:
        if entry.open is not None:
            with entry.open() as stream:
                while stream.read(1 << 20):
                    pass
    modules = {claim for claim in claims if claim.endswith(".pyc")}
    assert {entry.path for entry in entries} >= claims - modules, "claims name what entries do not have"
    write_tar(entries, io.BytesIO())


def _tree(rng: random.Random) -> list[Entry]:
    return [
        directory("usr"),
        file("usr/bin", b"x" * rng.choice((0, 1, 511, 512, 513)), 0o4755),
        file("usr/" + "n" * rng.choice((3, 99, 101, 250)), b"data"),
        symlink("usr/link", "../" * rng.choice((0, 1, 9)) + "etc"),
        Entry(path="usr/hard", mode=FILE | 0o644, link="usr/bin"),
    ]


def _retarred(data: bytes, rng: random.Random) -> bytes:
    """A tar with damaged headers whose checksums are right again: damage that readers must find themselves."""
    out = bytearray(data)
    for start in range(0, len(out) - 511, 512):
        if out[start + 257 : start + 262] == b"ustar" and rng.random() < 0.4:
            at, size = rng.choice(
                (
                    (0, 100),
                    (100, 8),
                    (108, 8),
                    (116, 8),
                    (124, 12),
                    (156, 1),
                    (157, 100),
                    (257, 8),
                    (329, 16),
                    (345, 155),
                )
            )
            field = damaged(bytes(out[start + at : start + at + size]), rng)[:size].ljust(size, b"\0")
            out[start + at : start + at + size] = field
            total = sum(out[start : start + 148]) + 8 * 32 + sum(out[start + 156 : start + 512])
            out[start + 148 : start + 156] = b"%06o\0 " % total
    return bytes(out)


def _deb(rng: random.Random) -> bytes:
    if rng.random() < 0.3:
        members = {"postinst": "#!/bin/sh\nldconfig\n", "conffiles": "/etc/a\n", "md5sums": "0 usr/bin\n"}
        return damaged(
            make_deb(_tree(rng), name="fuzz", members=members, compression=rng.choice(("xz", "zst", "gz"))), rng
        )
    control = _maybe(b"Package: fuzz\nVersion: 1\nArchitecture: all\nDescription: a\n b\n", rng)
    suffix = rng.choice(("xz", "zst", "gz", ""))
    return ar(
        {
            "debian-binary": _maybe(b"2.0\n", rng, 0.05),
            "control.tar.gz": compressed(_maybe(gnu_tar([file("control", control)]), rng, 0.1), "gz"),
            f"data.tar{suffix and '.'}{suffix}": _maybe(
                compressed(_retarred(gnu_tar(_tree(rng)), rng), suffix), rng, 0.1
            ),
        }
    )


def _read_deb(data: bytes, scratch: Path) -> None:
    path = scratch / "fuzz.deb"
    path.write_bytes(data)
    for entry in deb_entries(path, deb_of(data, name="fuzz")):
        if entry.open is not None:
            with entry.open() as stream:
                assert len(stream.read()) == entry.size, entry.path


def _tar(rng: random.Random) -> bytes:
    out = io.BytesIO()
    write_tar([file("a/b", b"x" * 5000), symlink("l", "a"), file("é" * 120, b"y")], out)
    data = out.getvalue() if rng.random() < 0.5 else gnu_tar(_tree(rng))
    return _maybe(_retarred(data, rng), rng, 0.6)


def _read_tar(data: bytes, scratch: Path) -> None:
    root = scratch / "root"
    root.mkdir()
    guard = scratch / "etc"
    guard.mkdir(exist_ok=True)
    try:
        unpack_tar(io.BytesIO(data), root, source="fuzz")
    finally:
        # Nothing may have been written beside the root, whatever the paths said.
        outside = {item.name for item in scratch.iterdir()} - {"root", "etc"}
        assert not outside, f"written outside: {outside}"
        assert not list(guard.iterdir()), "written outside: etc"
        shutil.rmtree(root)


def _layer(rng: random.Random) -> bytes:
    """A small blob as four-byte sizes and parts: the index's payload, then a frame that it names."""
    out = io.BytesIO()
    writer = FrameWriter(out)
    writer.write(bytes(rng.randrange(256) for _ in range(2000)) * rng.choice((1, 140)))
    framed = writer.finish()
    chunk = framed.index.chunk_at(0)
    frame = out.getvalue()[chunk.blob_offset : chunk.blob_offset + chunk.blob_size]
    if rng.random() < 0.3:
        frame = zstandard.ZstdCompressor().compress(bytes(rng.choice((0, 1 << 20, 1 << 26))))
    if rng.random() < 0.5:
        # An index that promises the damage: its checksum holds, so the decoder itself has to find it.
        frame = _in_blocks(frame, rng) or b"x"
        size = rng.choice((chunk.size, chunk.size, 1, 16 << 20))
        index = ChunkIndex(
            offsets=(0, size), blob_offsets=(0, len(frame)), checksums=hashlib.sha256(frame).digest()
        ).dump()
        return struct.pack("<I", len(index)) + index + frame
    index = _maybe(framed.index.dump(), rng, 0.7)
    if rng.random() < 0.3:
        index = skippable(index)
    return struct.pack("<I", len(index)) + index + _maybe(frame, rng, 0.7)


def _in_blocks(frame: bytes, rng: random.Random) -> bytes:
    """``frame`` with damage behind its header, which still promises the same size (RFC 8878, 3.1.1)."""
    header = zstandard.frame_header_size(frame)
    body = damaged(frame[header:], rng)
    if rng.random() < 0.3 and len(body) >= 3:
        # A block of another type or size, last or not.
        body = (rng.randrange(len(body) * 16) & 0xFFFFFF).to_bytes(3, "little") + body[3:]
    return frame[:header] + body


def _read_layer(data: bytes, scratch: Path) -> None:  # noqa: ARG001  a Reader's signature
    size = struct.unpack_from("<I", data)[0]
    payload, frame = data[4 : 4 + size], data[4 + size :]
    index = parse_index(payload, end=len(frame), source="fuzz")
    for number in (0, len(index.offsets) // 2):
        if index.offsets[-1]:
            chunk = index.chunk_at(index.offsets[number] if number < len(index.offsets) - 1 else 0)
            read_chunk(chunk, frame[: chunk.blob_size], source="fuzz")


TARGETS: Mapping[str, tuple[Maker, Reader]] = {
    "wheel": (_wheel, _read_wheel),
    "deb": (_deb, _read_deb),
    "tar": (_tar, _read_tar),
    "zstd": (_layer, _read_layer),
}


def check(target: str, data: bytes) -> bool:
    """Whether the reader of ``target`` took ``data``; False where it refused it as it should.

    Raises:
        whatever the reader should not: that is a crash.
    """
    with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch:
        try:
            TARGETS[target][1](data, Path(scratch))
        except EnvbuilderError:
            return False
    return True


def make(target: str, seed: int) -> bytes:
    """The damaged input number ``seed`` of ``target``: the same one on every host."""
    return TARGETS[target][0](random.Random(zlib.crc32(target.encode()) ^ seed))  # noqa: S311  repeatable, not secret
