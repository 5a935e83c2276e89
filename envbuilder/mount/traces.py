"""Traces beside their images: find one, attach one.

They are referrers of the platform's plain manifest (OCI distribution-spec 1.1). Nothing here is trusted: a
trace that is malformed, of another image or of another shape is as good as none.
"""

from __future__ import annotations

import hashlib
import io
import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from envbuilder.digest import BLOCK_SIZE, Descriptor, Digest, describe, verifying
from envbuilder.errors import EnvbuilderError
from envbuilder.image.inspect import OpenImage
from envbuilder.mount.trace import MAX_STORED, InvalidTrace, Trace, parse_trace
from envbuilder.oci import media_types
from envbuilder.oci.manifest import MAX_MANIFEST_SIZE, Index, Manifest, parse_document
from envbuilder.store.target import NotFound, Opener, Target

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTrace:
    """A trace of an image, parsed and as stored; ``hot``: its bundle, or None."""

    trace: Trace
    stored: bytes
    hot: Descriptor | None


def find_trace(source: Target, image: OpenImage) -> FoundTrace | None:
    """The newest trace of ``image`` that ``source`` has; None when there is none, or none that can be read."""
    try:
        known = _traces(source, image)
        return _open(source, image, known[-1]) if known else None
    except EnvbuilderError as error:
        _log.warning("%s: started without its trace: %s", image.descriptor.digest, error)
        return None


def _open(source: Target, image: OpenImage, what: Descriptor) -> FoundTrace:
    where = f"{source.name}: {what.digest}"
    manifest = parse_document(_read(source, what, MAX_MANIFEST_SIZE), source=where)
    if not isinstance(manifest, Manifest) or not manifest.layers:
        raise InvalidTrace(f"{where}: want a manifest with a trace")
    stored = _read(source, manifest.layers[0], MAX_STORED)
    trace = parse_trace(stored, source=where)
    if trace.image != image.descriptor.digest or trace.devices != tuple(each.digest for each in image.manifest.layers):
        raise InvalidTrace(f"{where}: it is a trace of {trace.image}")
    hot = manifest.layers[1] if trace.frames and len(manifest.layers) > 1 else None
    if hot is not None and hot.size != trace.proofs + sum(frame.size for frame in trace.frames):
        raise InvalidTrace(f"{where}: its bundle has {hot.size} bytes, its trace names others")
    return FoundTrace(trace=trace, stored=stored, hot=hot)


def attach_trace(target: Target, image: OpenImage, trace: Trace, bundle: Path | None) -> Descriptor:
    """Store ``trace`` beside ``image``, in place of older ones; ``bundle``: the file with its hot bundle."""
    stored = trace.dump()
    layers = [describe(stored, media_types.TRACE)]
    contents: list[tuple[Descriptor, Opener]] = [(layers[0], partial(io.BytesIO, stored))]
    if bundle is not None:
        layers.append(_describe_file(bundle))
        contents.append((layers[1], lambda: bundle.open("rb")))
    empty = describe(b"{}", media_types.OCI_EMPTY)
    contents.append((empty, partial(io.BytesIO, b"{}")))
    data = Manifest(
        config=empty, layers=tuple(layers), artifact_type=media_types.TRACE_ARTIFACT, subject=_plain(image)
    ).dump()
    what = describe(data, media_types.OCI_MANIFEST, artifact_type=media_types.TRACE_ARTIFACT)
    contents.append((what, partial(io.BytesIO, data)))
    for each, opener in contents:
        target.push(each, opener)
    _list(target, image, what)
    return what


def copy_trace(source: Target, image: OpenImage, target: Target) -> bool:
    """Let the trace of ``image``, which ``target`` has too, follow it there; False when there is none.

    Raises:
        DigestMismatch, UnavailableError, ...: as any copy.
    """
    if find_trace(source, image) is None:
        return False
    what = _traces(source, image)[-1]
    data = _read(source, what, MAX_MANIFEST_SIZE)
    manifest = parse_document(data, source=f"{source.name}: {what.digest}")
    assert isinstance(manifest, Manifest)
    for blob in (manifest.config, *manifest.layers):
        if not target.has(blob):
            target.push(blob, partial(source.fetch, blob))
    target.push(what, partial(io.BytesIO, data))
    _list(target, image, what)
    return True


def _list(target: Target, image: OpenImage, what: Descriptor) -> None:
    """Let ``what`` be the one trace among the referrers of ``image``."""
    others = [each for each in _referrers(target, image) if each.artifact_type != media_types.TRACE_ARTIFACT]
    index = Index(manifests=(*others, what)).dump()
    listed = describe(index, media_types.OCI_INDEX)
    target.push(listed, partial(io.BytesIO, index))
    target.tag(listed, _tag(image))


def _traces(source: Target, image: OpenImage) -> list[Descriptor]:
    return [each for each in _referrers(source, image) if each.artifact_type == media_types.TRACE_ARTIFACT]


def _describe_file(file: Path) -> Descriptor:
    hashed = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(BLOCK_SIZE):
            hashed.update(block)
    digest = Digest("sha256:" + hashed.hexdigest())
    return Descriptor(media_type=media_types.HOT_BUNDLE, digest=digest, size=file.stat().st_size)


def _plain(image: OpenImage) -> Descriptor:
    return Descriptor(
        media_type=image.descriptor.media_type, digest=image.descriptor.digest, size=image.descriptor.size
    )


def _tag(image: OpenImage) -> str:
    """distribution-spec 1.1, "Referrers Tag Schema": what every target can do."""
    return f"sha256-{image.descriptor.digest.hex}"


def _referrers(target: Target, image: OpenImage) -> tuple[Descriptor, ...]:
    try:
        what = target.lookup(_tag(image))
    except NotFound:
        return ()
    listed = parse_document(_read(target, what, MAX_MANIFEST_SIZE), source=f"{target.name}: {what.digest}")
    return listed.manifests if isinstance(listed, Index) else ()


def _read(source: Target, what: Descriptor, most: int) -> bytes:
    where = f"{source.name}: {what.digest}"
    if what.size > most:
        raise InvalidTrace(f"{where}: want at most {most} bytes, got {what.size}")
    with source.fetch(what) as stream:
        return verifying(stream, what, source=where).read()
