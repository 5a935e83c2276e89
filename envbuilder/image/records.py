"""What builds noted of layers, beside their image: a machine without layers and packages goes on from there.

One blob a layer, so that a bump sends that of the layer that it changed: its paths (layer/record.py), its licences,
and of Debian packages what the computed layer takes from them. Whoever reads them was told the digest of the whole by
the file of predicted digests (lock/predicted.py): a registry cannot make up the paths of an image.

That file is one project's, and nothing here proves it: neither what it says nor what is made of that (the computed
layer) is noted in the store, which builds of other projects believe. Only the blobs are kept, by their digests.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import zstandard

from envbuilder.digest import Descriptor, Digest, canonical_json, describe
from envbuilder.errors import EnvbuilderError, IntegrityError
from envbuilder.image.licences import licences, record_name
from envbuilder.layer.build import has_layer
from envbuilder.layer.computed import part_name
from envbuilder.layer.model import Layer, Recipe
from envbuilder.layer.record import load_blobs, load_layer, without_id
from envbuilder.layer.top import TopPlan
from envbuilder.lock.model import Deb, Lock
from envbuilder.lock.predicted import Predicted, PredictedLayer
from envbuilder.oci import media_types
from envbuilder.oci.artifact import plain
from envbuilder.oci.manifest import MAX_MANIFEST_SIZE, Manifest, parse_document
from envbuilder.store.layout import LayoutTarget
from envbuilder.store.records import RecordStore
from envbuilder.store.referrers import attach
from envbuilder.store.target import NotFound, RangeTarget, Target
from envbuilder.store.whole import fetch_whole

#: Folder below the cache where ``computed_entries`` remembers packages.
PARTS = "debs"
_FORMAT = 2
_LEVEL = 9
#: Bytes of one blob, packed and plain: a million paths are some 20 and 100 MB.
_MAX_PACKED, _MAX_PLAIN = 64 << 20, 256 << 20
#: Questions and blobs at a time.
_TOGETHER = 16


class BadRecords(IntegrityError):
    """The records beside an image are not of the form that its predicted digest promises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a project's predicted digests say, by way of the records that they name: for its own builds.

    layers: digests of those that the destination has and of which enough is known. records, parts: as a store, and
    the folder ``debs`` of the cache, would have them, by name. proven: keys (hex) of plans that become layers of
    verified packages alone: what these become here is anybody's to believe.
    """

    layers: frozenset[Digest] = frozenset()
    records: MutableMapping[str, bytes] = field(default_factory=dict)
    parts: MutableMapping[str, bytes] = field(default_factory=dict)
    proven: AbstractSet[str] = frozenset()


class _RecordsBeside(RecordStore):
    """Records of a store, and those that were ``told``; what may rest on these is kept with them, in memory."""

    def __init__(self, directory: Path, told: MutableMapping[str, bytes], proven: AbstractSet[str]) -> None:
        super().__init__(directory)
        self._told, self._proven = told, proven

    def get(self, key: str) -> bytes | None:
        found = super().get(key)
        return self._told.get(key) if found is None else found

    def put(self, key: str, data: bytes) -> None:
        # What is noted of a layer besides ends with the key of its plan.
        if key.rpartition("-")[2] in self._proven:
            super().put(key, data)
        else:
            self._told[key] = data


class StoreBeside(LayoutTarget):
    """A store that takes layers for present that the destination of a build has, and gives no name to what lacks them.

    told: which, and what is known of them. there: the destination; parts of them are read from it.
    """

    def __init__(self, directory: Path, told: Told, there: RangeTarget | None = None) -> None:
        super().__init__(directory)
        self.told = told
        self._there = there
        self._records = _RecordsBeside(self._records.directory, told.records, told.proven)

    def has(self, what: Descriptor) -> bool:
        return what.digest in self.told.layers or super().has(what)

    def fetch_range(self, what: Descriptor, offset: int, size: int) -> bytes:
        if self._there is None or what.digest not in self.told.layers or super().has(what):
            return super().fetch_range(what, offset, size)
        return self._there.fetch_range(what, offset, size)

    def tag(self, what: Descriptor, tag: str) -> None:
        """Nothing: the store is not to offer an image that it cannot give."""


class Notes:
    """What a store, and the folder ``cache``, remember of the layers of an image of ``locks``: a blob of each.

    It follows from the layer, so that all who made it note the same. What others attached is not believed.
    """

    def __init__(self, store: LayoutTarget, locks: Sequence[Lock], cache: Path) -> None:
        told = store.told.parts if isinstance(store, StoreBeside) else {}
        self._store, self._parts = store, _RecordsBeside(cache / PARTS, told, frozenset())
        self._debs: dict[str, list[Deb]] = {}
        for deb in {deb.digest: deb for lock in locks for deb in lock.debs}.values():
            self._debs.setdefault(deb.layer, []).append(deb)

    def of(self, row: PredictedLayer, layer: Layer | None = None) -> Descriptor | None:
        """The blob, in the store; None if not all is known. ``layer``: saves reading its record, if it is at hand.

        Raises:
            whatever reading the licences in the layer raises.
        """
        names = tuple(map(part_name, self._debs.get(row.id, ())))
        return _known(row.key, names, self._store) or _bundle(row, names, self._store, self._parts, layer)


def attach_records(
    store: LayoutTarget, locks: Sequence[Lock], subject: Descriptor, layers: Sequence[PredictedLayer], cache: Path
) -> Descriptor | None:
    """What is noted of ``layers``, attached to their image ``subject``; None if not of all of them."""
    notes = Notes(store, locks, cache)
    blobs = []
    for layer in layers:
        blob = notes.of(layer)
        if blob is None:
            return None
        blobs.append((blob, partial(store.fetch, blob)))
    return plain(attach(store, subject, media_types.RECORDS, blobs))


def _known(key: Digest, names: Sequence[str], store: LayoutTarget) -> Descriptor | None:
    """The blob that was made of the layer of ``key`` for an earlier image: of 60 layers, a bump changes two."""
    try:
        blob = Descriptor.from_json(json.loads(store.records.get(_name(key, names)) or b"null"))
    except (ValueError, KeyError, TypeError, EnvbuilderError):
        return None
    return blob if store.has(blob) else None


def _bundle(
    row: PredictedLayer, names: Sequence[str], store: LayoutTarget, parts: RecordStore, layer: Layer | None
) -> Descriptor | None:
    """A blob of all that is remembered of a layer: all or nothing, as it must not depend on what one machine did."""
    known = {name: data for name in names if (data := parts.get(name))}
    record = store.records.get(row.key.hex)
    if record is None or len(known) < len(names):
        return None
    layer = layer or load_layer(record, key=row.key)
    if layer is None or layer.listed.blob.digest != row.digest:
        return None
    if store.has(layer.blob):
        licences([layer], store)  # remembers them
    said = store.records.get(record_name(row.key))
    if said is None:
        return None
    data = _packed(without_id(record), said, known)
    blob = describe(data, media_types.RECORDS, annotations={media_types.PLAN_KEY: str(row.key)})
    store.push(blob, partial(io.BytesIO, data))
    store.records.put(_name(row.key, names), json.dumps(blob.to_json()).encode())
    return blob


def _name(key: Digest, names: Sequence[str]) -> str:
    return f"records-{_FORMAT}-{Digest.of(canonical_json([str(key), *sorted(names)])).hex}"


def _packed(record: bytes, said: bytes, parts: Mapping[str, bytes]) -> bytes:
    value = {
        "layer": record.decode("ascii"),
        "licences": said.decode("ascii"),
        "parts": {name: data.decode("ascii") for name, data in parts.items()},
    }
    plain = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    return zstandard.ZstdCompressor(level=_LEVEL).compress(plain)


def adopt_records(target: Target, predicted: Predicted, plans: Sequence[Recipe], store: LayoutTarget) -> Told:
    """What is known of layers of ``plans`` that ``store`` lacks and ``target`` has.

    Raises:
        BadRecords, DigestMismatch: the records are not what was predicted. Whatever the target raises.
    """
    rows = {row.key: row for row in predicted.layers}
    lacking = [rows[plan.key] for plan in plans if plan.key in rows and not has_layer(plan, store)]
    if not lacking or predicted.records is None:
        return Told()

    def there(row: PredictedLayer) -> bool:
        return target.has(Descriptor(media_type=media_types.OCI_LAYER_TAR_ZSTD, digest=row.digest, size=row.size))

    told = Told(proven={plan.key.hex for plan in plans if not isinstance(plan, TopPlan)})
    with ThreadPoolExecutor(_TOGETHER, "records") as pool:
        answers = list(pool.map(there, lacking))
        found = {row.key: row for row, answer in zip(lacking, answers, strict=True) if answer}
        unknown = {key for key in found if not _is_noted(key, store.records)}
        blobs = list(_blobs_of(store, target, predicted.records, unknown)) if unknown else []
        fetched = pool.map(lambda pair: _fetch(store, target, pair[1]), blobs)
        for (key, blob), bundle in zip(blobs, fetched, strict=True):
            if bundle is None:
                continue
            record, said, theirs = bundle
            told.records[key.hex] = record
            told.records[record_name(key)] = said
            told.records[_name(key, [*theirs])] = json.dumps(blob.to_json()).encode()
            told.parts.update(theirs)
    known = _RecordsBeside(store.records.directory, told.records, told.proven)
    usable: set[Digest] = set()
    for key, row in found.items():
        data = _is_noted(key, known)
        named = load_blobs(data, key=key) if data else ()
        # Of a layer of others a build needs the device too, which stands before it.
        if named and named[-1].digest == row.digest and all(map(target.has, named[:-1])):
            usable.update(each.digest for each in named)
    return replace(told, layers=frozenset(usable))


def _is_noted(key: Digest, records: RecordStore) -> bytes | None:
    """The record of the layer of ``key``, if its licences are known too: an image's documents need both."""
    return None if records.get(record_name(key)) is None else records.get(key.hex)


def _blobs_of(
    store: LayoutTarget, target: Target, what: Descriptor, keys: set[Digest]
) -> Iterator[tuple[Digest, Descriptor]]:
    try:
        data = fetch_whole(store if store.has(what) else target, what, MAX_MANIFEST_SIZE, BadRecords)
    except NotFound:
        return  # their layers are then made here
    manifest = parse_document(data, source=f"{target.name}: {what.digest}")
    if not isinstance(manifest, Manifest):
        raise BadRecords(f"{target.name}: {what.digest}: want a manifest of records, got an index")
    for blob in manifest.layers:
        key = Digest.parse(blob.annotations.get(media_types.PLAN_KEY, ""))
        if key in keys:
            yield key, blob


def _fetch(store: LayoutTarget, target: Target, blob: Descriptor) -> tuple[bytes, bytes, dict[str, bytes]] | None:
    """A layer's record, its licences, and what is remembered of its packages, by name; None when it is gone.

    The blob is in ``store`` afterwards.
    """
    where = f"{target.name}: {blob.digest}"
    try:
        packed = fetch_whole(store if store.has(blob) else target, blob, _MAX_PACKED, BadRecords)
        size = zstandard.frame_content_size(packed)
        if not 0 <= size <= _MAX_PLAIN:
            raise BadRecords(f"{where}: want at most {_MAX_PLAIN} bytes unpacked, got {size}")
        value = json.loads(zstandard.ZstdDecompressor().decompress(packed))
        parts = {str(name): _bytes(text) for name, text in value["parts"].items()}
        found = _bytes(value["layer"]), _bytes(value["licences"]), parts
    except NotFound:
        return None
    except (zstandard.ZstdError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadRecords(f"{where}: {error!r}") from error
    store.push(blob, partial(io.BytesIO, packed))
    return found


def _bytes(text: object) -> bytes:
    if not isinstance(text, str):
        raise TypeError(f"want a string, got {type(text).__name__}")
    return text.encode("ascii")
