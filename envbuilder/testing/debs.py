"""Tiny Debian packages, made without dpkg: for tests of what reads them."""

from __future__ import annotations

import gzip
import io
import lzma
import stat
import tarfile
from collections.abc import Iterable, Mapping

import zstandard

from envbuilder.digest import Digest
from envbuilder.layer.tree import Entry, directory, file
from envbuilder.lock.model import Deb

_SPECIAL = {stat.S_IFCHR: tarfile.CHRTYPE, stat.S_IFBLK: tarfile.BLKTYPE, stat.S_IFIFO: tarfile.FIFOTYPE}


def make_deb(
    entries: Iterable[Entry] = (),
    *,
    name: str = "tiny",
    version: str = "1",
    architecture: str = "all",
    fields: Mapping[str, str] | None = None,
    members: Mapping[str, str] | None = None,
    compression: str = "xz",
) -> bytes:
    """A .deb with ``entries`` as they stand, in their order.

    fields: of the control file, beside the three that are given. members: files of the control
    archive such as ``postinst`` and ``conffiles``. compression: ``xz``, ``zst``, ``gz`` or ``""``.
    """
    values = {"Package": name, "Version": version, "Architecture": architecture, **(fields or {})}
    control = [file("control", "".join(f"{key}: {value}\n" for key, value in values.items()).encode())]
    control += [
        file(path, text.encode(), 0o755 if text.startswith("#!") else 0o644) for path, text in (members or {}).items()
    ]
    return ar(
        {
            "debian-binary": b"2.0\n",
            "control.tar.gz": gzip.compress(tar([directory("."), *control]), mtime=0),
            f"data.tar{compression and '.'}{compression}": compressed(tar([directory("."), *entries]), compression),
        }
    )


def deb_of(data: bytes, *, name: str = "tiny", version: str = "1", architecture: str = "all", layer: str = "") -> Deb:
    """What a lock says of the .deb ``data``."""
    return Deb(
        name=name,
        version=version,
        architecture=architecture,
        file=f"pool/main/{name}_{version}_{architecture}.deb",
        digest=Digest.of(data),
        size=len(data),
        layer=layer,
        source=name,
    )


def ar(members: Mapping[str, bytes]) -> bytes:
    """An ar archive as dpkg-deb writes it."""
    parts = [b"!<arch>\n"]
    for name, data in members.items():
        parts.append(f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(data):<10}`\n".encode())
        parts.append(data + b"\n" * (len(data) % 2))
    return b"".join(parts)


def tar(entries: Iterable[Entry]) -> bytes:
    """A GNU tar of ``entries``; names get the leading ``./`` of Debian's."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for entry in entries:
            info = tarfile.TarInfo("./" + entry.path if entry.path != "." else ".")
            info.mode, info.uid, info.gid = entry.mode & 0o7777, entry.uid, entry.gid
            info.uname = info.gname = ""
            data = entry.open() if entry.open else io.BytesIO()
            if entry.is_directory:
                info.type = tarfile.DIRTYPE
            elif entry.is_symlink:
                info.type, info.linkname = tarfile.SYMTYPE, entry.link
            elif entry.link:
                info.type, info.linkname = tarfile.LNKTYPE, "./" + entry.link
            elif kind := _SPECIAL.get(stat.S_IFMT(entry.mode)):
                info.type, (info.devmajor, info.devminor) = kind, entry.device
            else:
                info.size = entry.size
            archive.addfile(info, data)
    return out.getvalue()


def compressed(data: bytes, suffix: str) -> bytes:
    """``data`` in one of the codecs of a .deb."""
    if suffix == "xz":
        return lzma.compress(data)
    if suffix == "zst":
        return zstandard.ZstdCompressor().compress(data)
    return gzip.compress(data, mtime=0) if suffix == "gz" else data
