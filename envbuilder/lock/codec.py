"""Lock to TOML and back, byte-stable: one lock is one byte string. Format: docs/formats/lock.md.

An artefact is one line, name and version first, so that a review's diff shows a bump as one
line out and one line in.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from envbuilder.digest import Digest, InvalidDigest
from envbuilder.errors import SpecError, SpecErrors
from envbuilder.lock.model import (
    BaseImage,
    BaseLayer,
    Changed,
    CudaAxis,
    Deb,
    ForeignSystem,
    Interpreter,
    Lock,
    LockedFile,
    Parent,
    Partition,
    Substitution,
    Wheel,
)
from envbuilder.lock.partition import base_ids
from envbuilder.oci.platform import Platform
from envbuilder.paths import UnsafePath, entry_path, file_name
from envbuilder.spec.toml import parse_toml

#: Version of this format; a reader refuses any other.
FORMAT = 1
#: What ``archive`` of a Debian package may be: the moment becomes a part of an address.
_ARCHIVE = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*(?:@[0-9]{8}T[0-9]{6}Z)?\Z")
#: Bytes of a lock file that are read; the AI environment's has 0.06 MB.
MAX_SIZE = 16 << 20

_T = TypeVar("_T")


class InvalidLock(SpecError):
    """A lock file is not one that this version wrote: damaged, edited by hand or too new."""

    hint = "Restore the file from version control, or make it anew with 'envbuilder lock'."


def digest(lock: Lock) -> Digest:
    """The lock's name: sha256 of its bytes."""
    return Digest.of(dump(lock))


def dump(lock: Lock) -> bytes:
    """The one byte string of ``lock``."""
    lines = [
        f"# Made by 'envbuilder lock {lock.name}' from images/{lock.name}/env.toml; do not edit.",
        *_pairs(
            format=FORMAT,
            name=lock.name,
            version=lock.version,
            platform=str(lock.platform),
            spec=str(lock.spec_digest),
            suite=lock.suite,
            base=lock.base,
            glibc=lock.glibc,
        ),
        *_array("layers", map(_value, lock.layers)),
    ]
    if lock.start:
        lines += _array("start", map(_value, lock.start))
    if lock.allow_scripts:
        lines += _pairs(**{"allow-scripts": lock.allow_scripts})
    lines += [] if lock.bytecode else _pairs(bytecode=False)
    lines += ["", "[python]", *_pairs(version=lock.python.version, tag=lock.python.tag)]
    lines += ["", "[partition]"]
    lines += _pairs(**{"threshold": lock.partition.threshold, "wheel-buckets": lock.partition.wheel_buckets})
    lines += _pairs(**{"deb-buckets": lock.partition.deb_buckets})
    if lock.parent:
        lines += ["", "[parent]", *_pairs(name=lock.parent.name, lock=str(lock.parent.lock_digest))]
        lines += _array("changed", map(_changed_line, lock.parent.changed)) if lock.parent.changed else []
    if lock.system:
        lines += ["", "[system]", *_pairs(name=lock.system.name, interpreter=lock.system.interpreter)]
        lines += _pairs(image=lock.system.image) if lock.system.image else []
        lines += _pairs(asked=lock.system.asked) if lock.system.asked else []
        lines += _base_lines(lock.system.base) if lock.system.base else []
    if lock.cuda:
        lines += ["", "[cuda]"]
        lines += _pairs(**{"toolkit": lock.cuda.toolkit, "minimum-driver": lock.cuda.minimum_driver})
        lines += _pairs(accelerators=lock.cuda.accelerators)
        lines += _pairs(twice=lock.cuda.twice) if lock.cuda.twice else []
    if lock.env:
        lines += ["", "[env]", *_pairs(**dict(sorted(lock.env.items())))]
    lines += ["", "[content]", *_array("wheels", map(_wheel_line, lock.wheels))]
    lines += _array("debs", map(_deb_line, lock.debs))
    if lock.files:
        lines += _array("files", map(_file_line, lock.files))
    if lock.substitutions:
        lines += _array("substitutions", map(_substitution_line, lock.substitutions))
    return ("\n".join(lines) + "\n").encode()


def _base_lines(base: BaseImage) -> list[str]:
    lines = _pairs(manifest=str(base.manifest), config=str(base.config), python=base.python)
    for key, value in (("user", base.user), ("working-dir", base.working_dir), ("entrypoint", base.entrypoint)):
        lines += _pairs(**{key: value}) if value else []
    for key, pairs in (("env", base.env), ("labels", base.labels)):
        lines += _array(key, (_value(pair) for pair in pairs)) if pairs else []
    return [*lines, *_array("layers", map(_base_layer_line, base.layers))]


def _base_layer_line(layer: BaseLayer) -> str:
    fields: dict[str, object] = {"digest": str(layer.digest), "size": layer.size, "diff-id": str(layer.diff_id)}
    return _inline({**fields, "media-type": layer.media_type, "by": layer.by})


def _wheel_line(wheel: Wheel) -> str:
    fields: dict[str, object] = {"name": wheel.name, "version": wheel.version, "layer": wheel.layer}
    fields |= {"file": wheel.file, "size": wheel.size, "sha256": wheel.digest.hex}
    if wheel.index != "default":
        fields["index"] = wheel.index
    if not wheel.recorded:
        fields["recorded"] = False
    if wheel.without:
        fields["without"] = wheel.without
    return _inline(fields)


def _deb_line(deb: Deb) -> str:
    fields: dict[str, object] = {"name": deb.name, "version": deb.version, "layer": deb.layer}
    fields |= {"architecture": deb.architecture, "source": deb.source}
    fields |= {"file": deb.file, "size": deb.size, "sha256": deb.digest.hex}
    if deb.archive != "debian":
        fields["archive"] = deb.archive
    return _inline(fields)


def _file_line(file: LockedFile) -> str:
    return _inline(
        {"path": file.path, "source": file.source, "mode": f"{file.mode:04o}", "sha256": file.digest.hex},
    )


def _changed_line(changed: Changed) -> str:
    fields: dict[str, object] = {"name": changed.name, "before": changed.before, "after": changed.after}
    marks = {"coupled": changed.coupled, "deb": changed.deb}
    return _inline(fields | {mark: True for mark, holds in marks.items() if holds})


def _substitution_line(each: Substitution) -> str:
    return _inline({"name": each.name, "wanted": each.wanted, "got": each.got, "reason": each.reason})


def _pairs(**pairs: object) -> list[str]:
    return [f"{key} = {_value(value)}" for key, value in pairs.items()]


def _array(key: str, values: Iterable[str]) -> list[str]:
    return [f"{key} = [", *(f"    {value}," for value in values), "]"]


def _inline(fields: Mapping[str, object]) -> str:
    return "{ " + ", ".join(f"{key} = {_value(value)}" for key, value in fields.items()) + " }"


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return '"' + str(value).translate(_ESCAPES) + '"'


#: TOML 1.0, "String": what a basic string must escape.
_ESCAPES = {ord('"'): '\\"', ord("\\"): "\\\\"} | {code: f"\\u{code:04x}" for code in [*range(32), 127]}


def load(data: bytes, *, source: str) -> Lock:
    """The lock in ``data``; ``source`` is its name in messages.

    Raises:
        InvalidLock: it is not exactly what ``dump`` writes for some lock.
    """
    if len(data) > MAX_SIZE:
        raise InvalidLock(f"{source}: want at most {MAX_SIZE} bytes, got {len(data)}")
    try:
        lock = _lock(_Table(parse_toml(data.decode(), source=source), ""))
    except SpecErrors as error:
        raise InvalidLock(str(error)) from error
    except InvalidLock as error:
        raise InvalidLock(f"{source}: {error}", hint=error.hint) from error
    except (UnicodeDecodeError, InvalidDigest, UnsafePath, SpecError) as error:
        raise InvalidLock(f"{source}: {error}") from error
    if dump(lock) != data:
        raise InvalidLock(f"{source}: not as it was written: order, spacing or comments differ")
    return lock


class _Table:
    """A table whose keys are taken out one by one; what is left at the end is unknown."""

    def __init__(self, values: dict[str, Any], path: str) -> None:
        self.values, self.path = values, path

    def take(self, key: str, kind: type[_T], default: _T | None = None) -> _T:
        value = self.values.pop(key, default)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise InvalidLock(f"{self.path}{key}: want {kind.__name__}, got {type(value).__name__}")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        values = self.take(key, list)
        if not all(isinstance(value, str) for value in values):
            raise InvalidLock(f"{self.path}{key}: want strings")
        return tuple(values)

    def digest(self, key: str) -> Digest:
        return Digest.parse(self.take(key, str))

    def sha256(self) -> Digest:
        return Digest.parse("sha256:" + self.take("sha256", str))

    def size(self) -> int:
        size = self.take("size", int)
        if size < 0:
            raise InvalidLock(f"{self.path}size: want 0 or more, got {size}")
        return size

    def table(self, key: str) -> _Table:
        return _Table(self.take(key, dict), f"{self.path}{key}.")

    def tables(self, key: str) -> list[_Table]:
        values = self.take(key, list)
        if not all(isinstance(value, dict) for value in values):
            raise InvalidLock(f"{self.path}{key}: want tables")
        return [_Table(value, f"{self.path}{key}[{at}].") for at, value in enumerate(values)]

    def end(self, value: _T) -> _T:
        if self.values:
            raise InvalidLock(f"{self.path}{next(iter(self.values))}: unknown key")
        return value


def _lock(top: _Table) -> Lock:
    version = top.take("format", int)
    if version != FORMAT:
        raise InvalidLock(f"format: want {FORMAT}, got {version}", hint="Use the envbuilder that wrote this lock.")
    python, content, partition = top.table("python"), top.table("content"), top.table("partition")
    start = top.take("start", list, [])
    if not all(isinstance(argv, list) and all(isinstance(word, str) for word in argv) for argv in start):
        raise InvalidLock("start: want arrays of strings")
    env = top.take("env", dict, {})
    if not all(isinstance(value, str) for value in env.values()):
        raise InvalidLock("env: want strings")
    lock = Lock(
        name=top.take("name", str),
        version=top.take("version", str),
        platform=Platform.parse(top.take("platform", str)),
        spec_digest=top.digest("spec"),
        suite=top.take("suite", str),
        base=top.texts("base"),
        glibc=top.take("glibc", str),
        layers=top.texts("layers"),
        start=tuple(tuple(argv) for argv in start),
        env=env,
        python=python.end(Interpreter(version=python.take("version", str), tag=python.take("tag", str))),
        partition=partition.end(
            Partition(
                threshold=partition.take("threshold", int),
                wheel_buckets=partition.take("wheel-buckets", int),
                deb_buckets=partition.take("deb-buckets", int),
            )
        ),
        parent=_parent(top.table("parent")) if "parent" in top.values else None,
        cuda=_cuda(top.table("cuda")) if "cuda" in top.values else None,
        wheels=tuple(_wheel(table) for table in content.tables("wheels")),
        debs=tuple(_deb(table) for table in content.tables("debs")),
        files=tuple(_file(table) for table in content.tables("files")) if "files" in content.values else (),
        system=_system(top.table("system")) if "system" in top.values else None,
        allow_scripts=top.texts("allow-scripts") if "allow-scripts" in top.values else (),
        bytecode=top.take("bytecode", bool, True),
        substitutions=tuple(_substitution(table) for table in content.tables("substitutions"))
        if "substitutions" in content.values
        else (),
    )
    content.end(None)
    _check(lock)
    return top.end(lock)


def _parent(table: _Table) -> Parent:
    changed = [_changed(each) for each in table.tables("changed")] if "changed" in table.values else []
    return table.end(
        Parent(name=table.take("name", str), lock_digest=table.digest("lock"), changed=tuple(changed)),
    )


def _changed(table: _Table) -> Changed:
    return table.end(
        Changed(
            name=table.take("name", str),
            before=table.take("before", str),
            after=table.take("after", str),
            coupled=table.take("coupled", bool, False),
            deb=table.take("deb", bool, False),
        )
    )


def _system(table: _Table) -> ForeignSystem:
    return table.end(
        ForeignSystem(
            name=table.take("name", str),
            interpreter=table.take("interpreter", str),
            image=table.take("image", str, ""),
            asked=table.take("asked", str, ""),
            base=_base(table) if "manifest" in table.values else None,
        )
    )


def _base(table: _Table) -> BaseImage:
    return BaseImage(
        manifest=table.digest("manifest"),
        config=table.digest("config"),
        python="/" + entry_path(table.take("python", str), source=f"{table.path}python"),
        user=table.take("user", str, ""),
        working_dir=table.take("working-dir", str, ""),
        entrypoint=table.texts("entrypoint") if "entrypoint" in table.values else (),
        env=_named(table, "env"),
        labels=_named(table, "labels"),
        layers=tuple(_base_layer(each) for each in table.tables("layers")),
    )


def _named(table: _Table, key: str) -> tuple[tuple[str, str], ...]:
    """(name, value) of an array of such pairs."""
    pairs = table.take(key, list, [])
    if not all(isinstance(p, list) and len(p) == 2 and all(isinstance(text, str) for text in p) for p in pairs):
        raise InvalidLock(f"{table.path}{key}: want pairs of strings")
    return tuple((name, value) for name, value in pairs)


def _base_layer(table: _Table) -> BaseLayer:
    return table.end(
        BaseLayer(
            digest=table.digest("digest"),
            size=table.size(),
            diff_id=table.digest("diff-id"),
            media_type=table.take("media-type", str),
            by=table.take("by", str),
        )
    )


def _substitution(table: _Table) -> Substitution:
    return table.end(
        Substitution(
            name=table.take("name", str),
            wanted=table.take("wanted", str),
            got=table.take("got", str),
            reason=table.take("reason", str),
        )
    )


def _cuda(table: _Table) -> CudaAxis:
    return table.end(
        CudaAxis(
            toolkit=table.take("toolkit", str),
            minimum_driver=table.take("minimum-driver", str),
            accelerators=table.texts("accelerators"),
            twice=table.texts("twice") if "twice" in table.values else (),
        )
    )


def _wheel(table: _Table) -> Wheel:
    return table.end(
        Wheel(
            name=table.take("name", str),
            version=table.take("version", str),
            layer=table.take("layer", str),
            file=table.take("file", str),
            size=table.size(),
            digest=table.sha256(),
            index=table.take("index", str, "default"),
            recorded=table.take("recorded", bool, True),
            without=table.texts("without") if "without" in table.values else (),
        )
    )


def _deb(table: _Table) -> Deb:
    return table.end(
        Deb(
            name=table.take("name", str),
            version=table.take("version", str),
            layer=table.take("layer", str),
            architecture=table.take("architecture", str),
            source=table.take("source", str),
            file=table.take("file", str),
            size=table.size(),
            digest=table.sha256(),
            archive=table.take("archive", str, "debian"),
        )
    )


def _file(table: _Table) -> LockedFile:
    mode = table.take("mode", str)
    if not mode.isdigit() or not mode.isascii() or set(mode) & {"8", "9"}:
        raise InvalidLock(f"{table.path}mode: want octal digits, got {mode!r}")
    return table.end(
        LockedFile(
            path=table.take("path", str), source=table.take("source", str), mode=int(mode, 8), digest=table.sha256()
        )
    )


def _check(lock: Lock) -> None:
    """Refuse a lock that no build could follow: an artefact twice, unsorted, in no layer or under a hostile name."""
    known = set(lock.layers)
    base = base_ids(lock.name, lock.system) if lock.parent is None else ()
    if lock.layers[: len(base)] != base:
        raise InvalidLock(f"layers: want those of the base first, '{lock.name}/base-NN'")
    if len(known) != len(lock.layers) or not lock.layers or lock.layers[-1] != f"{lock.name}/top":
        raise InvalidLock(f"layers: want distinct ids, last '{lock.name}/top'")
    for wheel in lock.wheels:
        file_name(wheel.file, source=wheel.name)
    for name, path in [(deb.name, deb.file) for deb in lock.debs] + [(file.source, file.path) for file in lock.files]:
        if (plain := entry_path(path, source=name)) != path:
            raise InvalidLock(f"{name}: want {plain!r}, got {path!r}")
    for deb in lock.debs:
        if not _ARCHIVE.match(deb.archive):
            raise InvalidLock(f"{deb.name}: want an archive's role, and '@' and a moment, got {deb.archive!r}")
    for kind, artifacts in (("wheels", lock.wheels), ("debs", lock.debs)):
        names = [artifact.name for artifact in artifacts]
        if names != sorted(set(names)):
            raise InvalidLock(f"content.{kind}: want names sorted, each once")
        for artifact in artifacts:
            if artifact.layer not in known:
                raise InvalidLock(f"content.{kind}: {artifact.name}: layer {artifact.layer!r} is not in 'layers'")
