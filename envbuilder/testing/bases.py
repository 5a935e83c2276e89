"""Small images of others that Python packages can lie over: their interpreter and C library only say what they are."""

from __future__ import annotations

import io
import json
import struct
import tarfile
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from envbuilder.digest import Descriptor, describe
from envbuilder.oci import media_types
from envbuilder.oci.manifest import Manifest
from envbuilder.store.target import Target
from envbuilder.testing.foreign import ForeignBlob, foreign_tar, gzip_layer, member

#: A tar's member and its data.
Member = tuple[tarfile.TarInfo, bytes]


def elf(text: str, *, machine: int = 62) -> bytes:
    """A shared object of x86_64 (62) without a segment, and ``text`` as a string behind its header."""
    head = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 3, machine, 1, 0, 64, 0, 0, 64, 56, 0, 0, 0, 0)
    return head + b"\0" + text.encode() + b"\0"


def link(name: str, target: str, **fields: Any) -> Member:
    """A symbolic link."""
    return member(name, b"", type=tarfile.SYMTYPE, linkname=target, mode=0o777, **fields)


def system(*, python: str = "3.12.3", glibc: str = "2.39", machine: int = 62) -> list[Member]:
    """What a base must have, as Ubuntu has it; ``python`` "" for none."""
    version = python.rpartition(".")[0]
    files = [
        member("./"),
        member("usr/"),
        link("lib", "usr/lib"),
        link("bin", "usr/bin"),
        member("opt/", mode=0o750, uid=7),
        member("etc/"),
        member("usr/lib/os-release", b'NAME="Ubuntu"\nID=ubuntu\nVERSION_ID="24.04"\n'),
        link("etc/os-release", "../usr/lib/os-release"),
        member(
            "usr/lib/x86_64-linux-gnu/libc.so.6",
            elf(f"GNU C Library (Ubuntu GLIBC {glibc}-0ubuntu8) stable release version {glibc}.\n", machine=machine),
            mode=0o755,
        ),
        member(
            "var/lib/dpkg/status",
            b"Package: bash\nStatus: install ok installed\nArchitecture: amd64\nVersion: 5.2.21-2ubuntu4\n\n"
            b"Package: gone\nStatus: deinstall ok config-files\nArchitecture: amd64\nVersion: 1\n",
        ),
        member("usr/lib/python3/dist-packages/dbus_python-1.3.2.egg-info", b"Name: dbus-python\n"),
    ]
    if python:
        files += [
            member(f"usr/bin/python{version}", elf(python, machine=machine), mode=0o755),
            link("usr/bin/python3", f"python{version}"),
            member(f"usr/lib/python{version}/os.py", b"import sys\n"),
        ]
    return files


def push_base(
    target: Target,
    layers: Sequence[Sequence[Member] | ForeignBlob],
    *,
    tag: str = "base",
    process: Mapping[str, Any] | None = None,
    architecture: str = "amd64",
    diff_ids: Sequence[str] = (),
) -> Descriptor:
    """Push an image of gzip layers as Docker makes them, and tag it; its manifest. ``process``: its config."""
    blobs = [each if isinstance(each, ForeignBlob) else gzip_layer(foreign_tar(each)) for each in layers]
    history = [{"created_by": f"COPY {number} /"} for number in range(len(blobs))]
    value = {
        "architecture": architecture,
        "os": "linux",
        "config": {"Env": ["PATH=/usr/local/bin:/usr/bin"], **(process or {})},
        "rootfs": {"type": "layers", "diff_ids": [*(diff_ids or (str(describe(each.tar).digest) for each in blobs))]},
        "history": [*history, {"created_by": 'CMD ["bash"]', "empty_layer": True}],
    }
    config = json.dumps(value).encode()
    what = describe(config, media_types.DOCKER_CONFIG)
    document = Manifest(
        config=what, layers=tuple(each.descriptor for each in blobs), media_type=media_types.DOCKER_MANIFEST
    ).dump()
    root = describe(document, media_types.DOCKER_MANIFEST)
    for blob, data in (*((each.descriptor, each.blob) for each in blobs), (what, config), (root, document)):
        target.push(blob, partial(io.BytesIO, data))
    target.tag(root, tag)
    return root
