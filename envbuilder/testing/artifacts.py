"""Tiny wheels and debs from a dict of files, the same bytes on every host: nothing in them is compressed.

For tests of ours and of others; what is malformed on purpose, a test makes itself.
"""

from __future__ import annotations

import io
import re
import stat
import tarfile
import zipfile
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from envbuilder.digest import Digest
from envbuilder.layer.tree import Entry, directory, file
from envbuilder.layer.wheel_record import dump_record
from envbuilder.lock.model import Deb, Wheel

#: The oldest time that a zip can hold.
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)


def make_wheel(
    name: str,
    version: str = "1.0",
    files: Mapping[str, bytes] | None = None,
    *,
    entry_points: str = "",
    executable: Collection[str] = (),
    requires: Iterable[str] = (),
    record: bytes | None = None,
    wheel_file: bytes = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
) -> bytes:
    """A wheel that holds ``files`` by their names in the archive, with METADATA, WHEEL and RECORD.

    ``{data}`` in a name stands for the wheel's .data directory, ``{info}`` for its .dist-info.
    executable: names whose Unix mode is 0755. record: RECORD, instead of a true one. wheel_file: WHEEL.
    """
    stem = f"{re.sub(r'[-_.]+', '_', name)}-{version}"
    info = f"{stem}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    members = {
        path.format(data=f"{stem}.data", info=info): (data, path in executable)
        for path, data in (files or {f"{stem.split('-', maxsplit=1)[0]}/__init__.py": b""}).items()
    }
    members[f"{info}/METADATA"] = (metadata.encode(), False)
    members[f"{info}/WHEEL"] = (wheel_file, False)
    if entry_points:
        members[f"{info}/entry_points.txt"] = (entry_points.encode(), False)
    if record is None:
        rows = [(path, Digest.of(data), len(data)) for path, (data, _) in members.items()]
        record = dump_record([*rows, (f"{info}/RECORD", None, None)])
    members[f"{info}/RECORD"] = (record, False)
    return make_zip((path, data, 0o755 if executable else 0o644) for path, (data, executable) in members.items())


def make_zip(members: Iterable[tuple[str, bytes, int]]) -> bytes:
    """A zip of ``(name, data, permission bits)``, in the order given; names are not checked."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for path, data, mode in members:
            item = zipfile.ZipInfo(path, _ZIP_EPOCH)
            item.create_system = 3  # Unix, on every host
            item.external_attr = (stat.S_IFREG | mode) << 16
            archive.writestr(item, data)
    return out.getvalue()


def locked_wheel(name: str, data: bytes, *, version: str = "1.0", layer: str = "test/wheels-00") -> Wheel:
    """The wheel ``data`` as a lock names it."""
    return Wheel(
        name=re.sub(r"[-_.]+", "-", name).lower(),
        version=version,
        file=f"{re.sub(r'[-_.]+', '_', name)}-{version}-py3-none-any.whl",
        digest=Digest.of(data),
        size=len(data),
        layer=layer,
    )


def make_deb(
    name: str,
    version: str = "1.0",
    files: Mapping[str, bytes] | None = None,
    *,
    entries: Iterable[Entry] = (),
    scripts: Mapping[str, str] | None = None,
    fields: Mapping[str, str] | None = None,
    architecture: str = "all",
) -> bytes:
    """A Debian package that holds ``files``, mode 0644, and ``entries``, by their tree paths.

    scripts: maintainer scripts and other control files. fields: of ``control``, such as Depends.
    """
    control = {
        "Package": name,
        "Version": version,
        "Architecture": architecture,
        "Maintainer": "Nobody <nobody@example.invalid>",
        "Description": "a test",
        **(fields or {}),
    }
    members = [file("control", "".join(f"{key}: {text}\n" for key, text in control.items()).encode())]
    members += [file(path, text.encode(), 0o755) for path, text in (scripts or {}).items()]
    tree = [*(file(path, data) for path, data in (files or {}).items()), *entries]
    return _ar(
        [
            ("debian-binary", b"2.0\n"),
            ("control.tar", _tar(members)),
            ("data.tar", _tar(_with_parents(tree))),
        ]
    )


def locked_deb(
    name: str, data: bytes, *, version: str = "1.0", architecture: str = "all", layer: str = "test/debs-00"
) -> Deb:
    """The package ``data`` as a lock names it."""
    return Deb(
        name=name,
        version=version,
        architecture=architecture,
        file=f"pool/main/{name[0]}/{name}/{name}_{version}_{architecture}.deb",
        digest=Digest.of(data),
        size=len(data),
        layer=layer,
        source=name,
    )


def store_file(folder: Path, data: bytes) -> Path:
    """``data`` in a file of ``folder`` named by its digest, as the artefact cache names it."""
    path = folder / Digest.of(data).hex
    path.write_bytes(data)
    return path


def _with_parents(entries: Iterable[Entry]) -> list[Entry]:
    tree = {entry.path: entry for entry in entries}
    for path in list(tree):
        while path := path.rpartition("/")[0]:
            tree.setdefault(path, directory(path))
    return [tree[path] for path in sorted(tree)]


def _tar(entries: Iterable[Entry]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        archive.addfile(_header("./", directory("x")))
        for entry in entries:
            header = _header(f"./{entry.path}", entry)
            if entry.open is None:
                archive.addfile(header)
            else:
                with entry.open() as stream:
                    archive.addfile(header, stream)
    return out.getvalue()


def _header(name: str, entry: Entry) -> tarfile.TarInfo:
    header = tarfile.TarInfo(name)
    header.mode, header.uid, header.gid, header.size = stat.S_IMODE(entry.mode), entry.uid, entry.gid, entry.size
    if entry.is_directory:
        header.type = tarfile.DIRTYPE
    elif entry.is_symlink:
        header.type, header.linkname = tarfile.SYMTYPE, entry.link
    elif entry.link:
        header.type, header.linkname = tarfile.LNKTYPE, f"./{entry.link}"
    return header


def _ar(members: Iterable[tuple[str, bytes]]) -> bytes:
    parts = [b"!<arch>\n"]
    for name, data in members:
        parts += [
            f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode(),
            data,
            b"\n" * (len(data) % 2),
        ]
    return b"".join(parts)
