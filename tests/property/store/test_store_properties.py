import io
import os
import re
import tarfile
import tempfile
from functools import partial
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from envbuilder.digest import describe
from envbuilder.errors import EnvbuilderError
from envbuilder.oci import media_types
from envbuilder.oci.manifest import Index, Manifest
from envbuilder.store.copy import copy
from envbuilder.store.layout import LayoutTarget
from envbuilder.store.memory import MemoryTarget
from envbuilder.store.tarscan import BadArchive, scan

LAYERS = st.lists(st.binary(max_size=20), max_size=4)


@given(st.lists(LAYERS, min_size=1, max_size=4), st.integers(1, 5))
def test_a_copy_gives_the_same_digests_whatever_is_shared(images, jobs):
    source, target, manifests = MemoryTarget(), MemoryTarget(), []
    everything = [b"{}"]
    for layers in images:
        for data in (*layers, b"{}"):
            source.push(describe(data), partial(io.BytesIO, data))
        found = tuple(describe(data, media_types.OCI_LAYER_TAR) for data in layers)
        data = Manifest(config=describe(b"{}", media_types.OCI_CONFIG), layers=found).dump()
        manifests.append(describe(data, media_types.OCI_MANIFEST))
        source.push(manifests[-1], partial(io.BytesIO, data))
        everything += [*layers, data]
    index = Index(manifests=tuple(manifests)).dump()
    root = describe(index, media_types.OCI_INDEX)
    source.push(root, partial(io.BytesIO, index))

    report = copy(source, root, target, tag="v1", jobs=jobs)

    distinct = {*everything, index}
    assert target.lookup("v1") == root
    assert all(target.has(describe(data)) for data in distinct)
    assert report.copied == len(distinct)
    assert report.copied_bytes == sum(map(len, distinct))


@given(st.binary(max_size=3000), st.integers(0, 2000))
def test_no_tar_breaks_the_scanner(noise, at):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in ("oci-layout", "index.json"):
            member = tarfile.TarInfo(name)
            member.size = 10
            tar.addfile(member, io.BytesIO(b"0123456789"))
    data = bytearray(buffer.getvalue())
    data[at : at + len(noise)] = noise
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        try:
            found = scan(file.fileno(), re.compile(r"oci-layout|index\.json"), source="x")
        except BadArchive:
            return
        size = os.fstat(file.fileno()).st_size

    assert all(0 <= extent.offset <= extent.offset + extent.size <= size for extent in found.values())


@given(st.binary(max_size=200))
def test_any_index_json_is_read_or_refused(data):
    with tempfile.TemporaryDirectory() as directory:
        layout = LayoutTarget(Path(directory), create=True)
        (Path(directory) / "index.json").write_bytes(data)

        try:
            layout.lookup("v1")
        except EnvbuilderError:
            return
    raise AssertionError("found a tag that nobody wrote")
