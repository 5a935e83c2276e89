"""Contract checks: what every implementer of a protocol is held to. Shipped, so that others' can be too.

Each takes ``make``, which gives a fresh, empty implementer at each call.
"""

from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from envbuilder.digest import Descriptor, Digest, DigestMismatch, describe
from envbuilder.errors import EnvbuilderError
from envbuilder.oci import media_types
from envbuilder.oci.manifest import Index, Manifest
from envbuilder.store.target import NotFound, RangeTarget, ShortRange, Target


def check_target(make: Callable[[], Target], *, takes_nothing: bool = True) -> None:
    """Assert the Target contract on fresh targets from ``make``.

    ``takes_nothing``: it keeps content of no bytes too; not every registry's storage can.

    Raises:
        AssertionError: names the clause that failed.
    """
    target, blob = make(), b"layer bytes"
    what = describe(blob)
    assert target.name, "a target has a name"
    assert not target.has(what), "a new target is empty"
    _raises(NotFound, partial(target.fetch, what), "fetch of absent content")
    target.push(what, partial(io.BytesIO, blob))
    assert target.has(what), "a target has what was pushed"
    target.push(what, partial(_must_not_be_read, "push of present content"))
    with target.fetch(what) as stream:
        assert stream.read() == blob, "fetch returns what was pushed"
    with target.fetch(what) as stream:
        assert stream.read(3) + stream.read(100) == blob, "fetch can be read in pieces"
    if takes_nothing:
        _check_empty_content(target)
    _check_bad_content(make)
    _check_tags(target)
    _check_failed_opener(target)
    _check_threads(target)


def check_range_target(make: Callable[[], RangeTarget]) -> None:
    """Assert what a RangeTarget adds to a Target.

    Raises:
        AssertionError: names the clause that failed.
    """
    target = make()
    blob = hashlib.shake_256(b"range").digest(300_000)
    what = describe(blob)
    _raises(NotFound, partial(target.fetch_range, what, 0, 1), "range of absent content")
    target.push(what, partial(io.BytesIO, blob))
    for offset, size in [(0, 1), (0, 300_000), (299_999, 1), (1000, 4096), (65_535, 65_537), (123_456, 100_000)]:
        got = target.fetch_range(what, offset, size)
        assert got == blob[offset : offset + size], f"range {offset}+{size} is the slice of the content"
    _raises(ShortRange, partial(target.fetch_range, what, 299_999, 2), "range that ends behind the content")
    _raises(ShortRange, partial(target.fetch_range, what, 300_001, 1), "range that starts behind the content")
    with ThreadPoolExecutor(8) as pool:
        offsets = [(index * 7919) % 290_000 for index in range(64)]
        ranges = list(pool.map(lambda offset: target.fetch_range(what, offset, 4096), offsets))
    assert ranges == [blob[offset : offset + 4096] for offset in offsets], "ranges may be read by several threads"


def check_immutable_target(target: Target, root: Descriptor, tag: str) -> None:
    """Assert the reading half of the Target contract on ``target``, which holds the manifest ``root`` as ``tag``.

    Raises:
        AssertionError: names the clause that failed.
    """
    absent = describe(b"nobody has this")
    assert not target.has(absent), "a target has not what it never got"
    _raises(NotFound, partial(target.fetch, absent), "fetch of absent content")
    _raises(NotFound, partial(target.lookup, "no-such-tag"), "lookup of an absent tag")
    _raises(NotFound, partial(target.lookup, str(absent.digest)), "lookup of an absent digest")
    for name in (tag, str(root.digest)):
        assert _core(target.lookup(name)) == _core(root), f"lookup of {name} gives the manifest"
    assert target.has(root), "a target has what it names"
    with target.fetch(root) as stream:
        assert Digest.of(stream.read()) == root.digest, "fetch returns the content"


def _check_bad_content(make: Callable[[], Target]) -> None:
    target = make()
    for label in ("short", "empty", "long", "endless", "altered"):
        # Content of its own for each case: a shared repository must not answer one with another's.
        good = f"layer bytes, {label}".encode()
        bad = {
            "short": good[:-1],
            "empty": b"",
            "long": good + b"x",
            "endless": good * 1000,
            "altered": good.upper(),
        }[label]
        _raises(DigestMismatch, partial(target.push, describe(good), partial(io.BytesIO, bad)), f"{label} push")
        assert not target.has(describe(good)), f"a {label} push leaves nothing behind"
        target.push(describe(good), partial(io.BytesIO, good))
        assert target.has(describe(good)), f"content can be pushed after a {label} push of it"


def _check_tags(target: Target) -> None:
    _raises(NotFound, partial(target.lookup, "absent"), "lookup of an absent tag")
    manifest, config, layer = _image(b"one")
    _raises(EnvbuilderError, partial(target.tag, describe(manifest, media_types.OCI_MANIFEST), "v1"), "tag of nothing")
    for media_type, data in ((media_types.OCI_CONFIG, config), (media_types.OCI_LAYER_TAR, layer)):
        target.push(describe(data, media_type), partial(io.BytesIO, data))
    root = describe(manifest, media_types.OCI_MANIFEST)
    target.push(root, partial(io.BytesIO, manifest))
    target.tag(root, "v1")
    target.tag(root, "v1")
    target.tag(root, "also")
    for name in ("v1", "also", str(root.digest)):
        assert _core(target.lookup(name)) == _core(root), f"lookup of {name[:6]} gives what was tagged"
    with target.fetch(root) as stream:
        assert stream.read() == manifest, "fetch returns a manifest byte for byte"
    index = Index(manifests=(root,)).dump()
    above = describe(index, media_types.OCI_INDEX)
    target.push(above, partial(io.BytesIO, index))
    target.tag(above, "v1")
    assert _core(target.lookup("v1")) == _core(above), "a tag can move"
    assert _core(target.lookup("also")) == _core(root), "another tag stays when one moves"
    _raises(EnvbuilderError, partial(target.tag, root, "no/tag"), "a tag that is none")


def _check_empty_content(target: Target) -> None:
    nothing = describe(b"")
    target.push(nothing, partial(io.BytesIO, b""))
    assert target.has(nothing), "empty content is content"
    with target.fetch(nothing) as stream:
        assert stream.read() == b"", "empty content can be fetched"


def _check_failed_opener(target: Target) -> None:
    what = describe(b"never read")

    def fail() -> io.BytesIO:
        raise NotFound("the source lacks it")

    _raises(NotFound, partial(target.push, what, fail), "an error of the opener")
    assert not target.has(what), "a failed opener leaves nothing behind"


def _check_threads(target: Target) -> None:
    blobs = [hashlib.shake_256(bytes([index])).digest(10_000) for index in range(8)]
    start = threading.Barrier(8)

    def push(index: int) -> None:
        start.wait(30)
        for blob in blobs[index:] + blobs[:index]:
            target.push(describe(blob), partial(io.BytesIO, blob))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(push, range(8)))
    for blob in blobs:
        with target.fetch(describe(blob)) as stream:
            assert stream.read() == blob, "the same content may be pushed by several threads"


def _image(layer: bytes) -> tuple[bytes, bytes, bytes]:
    config = b'{"architecture":"amd64","config":{},"os":"linux","rootfs":{"diff_ids":[],"type":"layers"}}'
    manifest = Manifest(
        config=describe(config, media_types.OCI_CONFIG), layers=(describe(layer, media_types.OCI_LAYER_TAR),)
    )
    return manifest.dump(), config, layer


def _core(what: Descriptor) -> tuple[str, Digest, int]:
    return what.media_type, what.digest, what.size


def _must_not_be_read(clause: str) -> io.BytesIO:
    raise AssertionError(f"{clause} must not read it")


def _raises(error: type[Exception], call: Callable[[], object], clause: str) -> None:
    try:
        call()
    except error:
        return
    except Exception as other:
        raise AssertionError(f"{clause}: want {error.__name__}, got {type(other).__name__}: {other}") from other
    raise AssertionError(f"{clause}: want {error.__name__}, got no error")
