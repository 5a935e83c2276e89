"""Lock to TOML and back, byte-stable: one lock is one byte string. Format: docs/formats/lock.md.

An artefact is one line, name and version first, so that a review's diff shows a bump as one
line out and one line in.
"""

from __future__ import annotations

import re

from envbuilder.digest import Digest, InvalidDigest
from envbuilder.errors import SpecError, SpecErrors
from envbuilder.lock.codec_system import parse_system, system_lines
from envbuilder.lock.locktable import InvalidLock, LockTable, array, inline, pairs, value_text
from envbuilder.lock.model import (
    Changed,
    CudaAxis,
    Deb,
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
#: A version of Python is a part of paths, also of where its interpreter is unpacked on this host and started.
_PYTHON = re.compile(r"[0-9]{1,2}\.[0-9]{1,3}\Z")
#: Bytes of a lock file that are read; the AI environment's has 0.06 MB.
MAX_SIZE = 16 << 20


def digest(lock: Lock) -> Digest:
    """The lock's name: sha256 of its bytes."""
    return Digest.of(dump(lock))


def dump(lock: Lock) -> bytes:
    """The one byte string of ``lock``."""
    lines = [
        f"# Made by 'envbuilder lock {lock.name}' from images/{lock.name}/env.toml; do not edit.",
        *pairs(
            format=FORMAT,
            name=lock.name,
            version=lock.version,
            platform=str(lock.platform),
            spec=str(lock.spec_digest),
            suite=lock.suite,
            base=lock.base,
            glibc=lock.glibc,
        ),
        *array("layers", map(value_text, lock.layers)),
    ]
    if lock.start:
        lines += array("start", map(value_text, lock.start))
    if lock.allow_scripts:
        lines += pairs(**{"allow-scripts": lock.allow_scripts})
    lines += [] if lock.bytecode else pairs(bytecode=False)
    lines += ["", "[python]", *pairs(version=lock.python.version, tag=lock.python.tag)]
    lines += ["", "[partition]"]
    lines += pairs(**{"threshold": lock.partition.threshold, "wheel-buckets": lock.partition.wheel_buckets})
    lines += pairs(**{"deb-buckets": lock.partition.deb_buckets})
    if lock.parent:
        lines += ["", "[parent]", *pairs(name=lock.parent.name, lock=str(lock.parent.lock_digest))]
        lines += array("changed", map(_changed_line, lock.parent.changed)) if lock.parent.changed else []
    lines += ["", *system_lines(lock.system)] if lock.system else []
    if lock.cuda:
        lines += ["", "[cuda]"]
        lines += pairs(**{"toolkit": lock.cuda.toolkit, "minimum-driver": lock.cuda.minimum_driver})
        lines += pairs(accelerators=lock.cuda.accelerators)
        lines += pairs(twice=lock.cuda.twice) if lock.cuda.twice else []
    if lock.env:
        lines += ["", "[env]", *pairs(**dict(sorted(lock.env.items())))]
    lines += ["", "[content]", *array("wheels", map(_wheel_line, lock.wheels))]
    lines += array("debs", map(_deb_line, lock.debs))
    if lock.files:
        lines += array("files", map(_file_line, lock.files))
    if lock.substitutions:
        lines += array("substitutions", map(_substitution_line, lock.substitutions))
    return ("\n".join(lines) + "\n").encode()


def _wheel_line(wheel: Wheel) -> str:
    fields: dict[str, object] = {"name": wheel.name, "version": wheel.version, "layer": wheel.layer}
    fields |= {"file": wheel.file, "size": wheel.size, "sha256": wheel.digest.hex}
    if wheel.index != "default":
        fields["index"] = wheel.index
    if not wheel.recorded:
        fields["recorded"] = False
    if wheel.without:
        fields["without"] = wheel.without
    return inline(fields)


def _deb_line(deb: Deb) -> str:
    fields: dict[str, object] = {"name": deb.name, "version": deb.version, "layer": deb.layer}
    fields |= {"architecture": deb.architecture, "source": deb.source}
    fields |= {"file": deb.file, "size": deb.size, "sha256": deb.digest.hex}
    if deb.archive != "debian":
        fields["archive"] = deb.archive
    return inline(fields)


def _file_line(file: LockedFile) -> str:
    return inline(
        {"path": file.path, "source": file.source, "mode": f"{file.mode:04o}", "sha256": file.digest.hex},
    )


def _changed_line(changed: Changed) -> str:
    fields: dict[str, object] = {"name": changed.name, "before": changed.before, "after": changed.after}
    marks = {"coupled": changed.coupled, "deb": changed.deb}
    return inline(fields | {mark: True for mark, holds in marks.items() if holds})


def _substitution_line(each: Substitution) -> str:
    return inline({"name": each.name, "wanted": each.wanted, "got": each.got, "reason": each.reason})


def load(data: bytes, *, source: str) -> Lock:
    """The lock in ``data``; ``source`` is its name in messages.

    Raises:
        InvalidLock: it is not exactly what ``dump`` writes for some lock.
    """
    if len(data) > MAX_SIZE:
        raise InvalidLock(f"{source}: want at most {MAX_SIZE} bytes, got {len(data)}")
    try:
        lock = _lock(LockTable(parse_toml(data.decode(), source=source), ""))
    except SpecErrors as error:
        raise InvalidLock(str(error)) from error
    except InvalidLock as error:
        raise InvalidLock(f"{source}: {error}", hint=error.hint) from error
    except (UnicodeDecodeError, InvalidDigest, UnsafePath, SpecError) as error:
        raise InvalidLock(f"{source}: {error}") from error
    if dump(lock) != data:
        raise InvalidLock(f"{source}: not as it was written: order, spacing or comments differ")
    return lock


def _lock(top: LockTable) -> Lock:
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
        system=parse_system(top.table("system")) if "system" in top.values else None,
        allow_scripts=top.texts("allow-scripts") if "allow-scripts" in top.values else (),
        bytecode=top.take("bytecode", bool, True),
        substitutions=tuple(_substitution(table) for table in content.tables("substitutions"))
        if "substitutions" in content.values
        else (),
    )
    content.end(None)
    _check(lock)
    return top.end(lock)


def _parent(table: LockTable) -> Parent:
    changed = [_changed(each) for each in table.tables("changed")] if "changed" in table.values else []
    return table.end(
        Parent(name=table.take("name", str), lock_digest=table.digest("lock"), changed=tuple(changed)),
    )


def _changed(table: LockTable) -> Changed:
    return table.end(
        Changed(
            name=table.take("name", str),
            before=table.take("before", str),
            after=table.take("after", str),
            coupled=table.take("coupled", bool, False),
            deb=table.take("deb", bool, False),
        )
    )


def _substitution(table: LockTable) -> Substitution:
    return table.end(
        Substitution(
            name=table.take("name", str),
            wanted=table.take("wanted", str),
            got=table.take("got", str),
            reason=table.take("reason", str),
        )
    )


def _cuda(table: LockTable) -> CudaAxis:
    return table.end(
        CudaAxis(
            toolkit=table.take("toolkit", str),
            minimum_driver=table.take("minimum-driver", str),
            accelerators=table.texts("accelerators"),
            twice=table.texts("twice") if "twice" in table.values else (),
        )
    )


def _wheel(table: LockTable) -> Wheel:
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


def _deb(table: LockTable) -> Deb:
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


def _file(table: LockTable) -> LockedFile:
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
    if not _PYTHON.match(lock.python.version) or lock.python.tag != "cp" + lock.python.version.replace(".", ""):
        raise InvalidLock(f"python: want a version such as '3.13' and its tag, got {str(lock.python)[:200]}")
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
