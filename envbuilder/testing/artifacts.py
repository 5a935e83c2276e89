"""Tiny wheels from a dict of files, the same bytes on every host: nothing in them is compressed.

For tests of ours and of others; what is malformed on purpose, a test makes itself.
"""

from __future__ import annotations

import io
import re
import stat
import zipfile
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from envbuilder.digest import Digest
from envbuilder.layer.wheel_record import dump_record
from envbuilder.lock.model import Wheel

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


def store_file(folder: Path, data: bytes) -> Path:
    """``data`` in a file of ``folder`` named by its digest, as the artefact cache names it."""
    path = folder / Digest.of(data).hex
    path.write_bytes(data)
    return path
