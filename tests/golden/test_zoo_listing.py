"""What becomes of awkward artefacts, a line for each path: a changed digest shows which file changed it."""

import hashlib
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from envbuilder.layer.build import LocalFiles
from envbuilder.layer.computed import computed_entries
from envbuilder.layer.deb import control_of, deb_entries
from envbuilder.layer.debian.known_scripts import REVIEWED, Reviewed
from envbuilder.layer.debian.maintainer import script_digest
from envbuilder.layer.plan import DEB_WRITER
from envbuilder.layer.wheel import WHEEL_WRITER, wheel_entries
from envbuilder.lock.model import Interpreter
from envbuilder.testing.artifacts import locked_wheel
from envbuilder.testing.debs import deb_of
from envbuilder.testing.layers import layer_of
from envbuilder.testing.locks import SMALL
from envbuilder.testing.zoo import deb_zoo, wheel_zoo

HERE = Path(__file__).parent
PYTHON = Interpreter(version="3.13", tag="cp313")


def lines(name, entries):
    """path, mode, owner, size, sha256 or link of every path; then the digest of the layer they make."""
    for entry in sorted(entries, key=lambda entry: entry.path):
        data = entry.open().read() if entry.open else b""
        what = entry.link or (hashlib.sha256(data).hexdigest() if entry.is_file else "")
        device = "{}:{} ".format(*entry.device) if any(entry.device) else ""
        mode = stat.filemode(entry.mode)
        yield f"{entry.path!r} {mode} {entry.uid}:{entry.gid} {entry.size} {device}{what}".rstrip() + "\n"
    yield f"{name}: {layer_of(entries).layer.diff_id}\n\n"


def listing(kind, folder):
    for specimen in wheel_zoo() if kind == "wheels" else deb_zoo():
        path = folder / specimen.name
        path.write_bytes(specimen.data)
        if kind == "wheels":
            entries = list(wheel_entries(path, locked_wheel(specimen.name, specimen.data), python=PYTHON))
        else:
            entries = list(deb_entries(path, deb_of(specimen.data, name=specimen.name)))
        yield from lines(specimen.name, entries)


def expect(name, text):
    golden = HERE / name
    if os.environ.get("ENVBUILDER_GOLDEN") == "write":
        golden.write_text(text)

    assert text == golden.read_text()


@pytest.mark.parametrize(("kind", "writer"), [("wheels", WHEEL_WRITER), ("debs", DEB_WRITER)])
def test_every_file_of_the_zoo_is_as_it_was(kind, writer, tmp_path):
    expect(f"zoo-{kind}.listing.txt", f"{writer}\n\n" + "".join(listing(kind, tmp_path)))


def test_every_file_that_is_computed_for_the_zoo_is_as_it_was(tmp_path, monkeypatch):
    debs, files, below = [], {}, []
    for specimen in deb_zoo():
        path = tmp_path / specimen.name
        path.write_bytes(specimen.data)
        debs.append(deb_of(specimen.data, name=specimen.name))
        files[debs[-1].digest] = path
        below.append(layer_of(list(deb_entries(path, debs[-1]))).layer.placed)
    script = control_of(tmp_path / "alternatives").script("postinst")
    monkeypatch.setitem(REVIEWED, "alternatives", Reviewed(scripts=(script_digest(script),)))
    lock = replace(SMALL, debs=tuple(debs))
    entries = list(
        computed_entries(lock, below, LocalFiles(files), site_packages="opt/env/lib/python3.13/site-packages")
    )

    expect("zoo-computed.listing.txt", "".join(lines("computed", entries)))
