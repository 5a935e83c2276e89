"""What differs: a lock and the one before it, an image and its parent. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from envbuilder.lock.model import Artifact, Changed, Lock, Substitution, Wheel

#: Packages that others are compiled against, or load by their SONAME: a change of one may break what has not changed.
_COUPLED = re.compile(
    r"(?:numpy|torch|torchvision|torchaudio|triton|jaxlib|jax-cuda.*|tensorflow|nvidia-.+|cuda-.+|cupy.*)\Z"
)
#: The same of Debian: C and C++ libraries of everything, the interpreter, NVIDIA's libraries.
_COUPLED_DEB = re.compile(
    r"(?:libc6|libstdc\+\+6|libgcc-s1|libgomp1|(?:lib)?python3\..*|lib(?:cu|nccl|nv|npp).*|cuda-.+)\Z"
)


def changed(parent: Sequence[Artifact], here: Sequence[Artifact]) -> tuple[Changed, ...]:
    """What the parent has and ``here`` has otherwise or not at all: Python packages, then Debian's, sorted by name."""
    after = {_key(artifact): artifact for artifact in here}
    return tuple(
        Changed(
            name=was.name,
            before=was.version,
            after=now.version if (now := after.get(_key(was))) else "",
            coupled=bool((_COUPLED if isinstance(was, Wheel) else _COUPLED_DEB).match(was.name)),
            deb=not isinstance(was, Wheel),
        )
        for was in sorted(parent, key=_key)
        if _key(was) not in after or after[_key(was)].digest != was.digest
    )


def changes(old: Lock | None, new: Lock, parent: Lock | None = None) -> tuple[str, ...]:
    """What a reader wants to know of ``new`` against ``old``: a line for each artefact, then the axes.

    Of the first lock of a child it is what it has besides its ``parent``.
    """
    lines = []
    before, after = _by_name(old), _by_name(new)
    if old is None and parent:
        theirs = _by_name(parent)
        same = sum(each.digest == theirs[key].digest for key, each in after.items() if key in theirs)
        lines.append(f"{same} package{'s' * (same != 1)} as in {parent.name}")
        # What it has otherwise than its parent is told below.
        after = {key: each for key, each in after.items() if key not in theirs}
    for key in sorted(before.keys() | after.keys()):
        was, now = before.get(key), after.get(key)
        if was is None and now is not None:
            lines.append(f"+ {key[1]} {now.version}")
        elif now is None and was is not None:
            lines.append(f"- {key[1]} {was.version}")
        elif was and now and was.version != now.version:
            lines.append(f"{key[1]} {was.version} -> {now.version}")
        elif was and now and was.digest != now.digest:
            lines.append(f"{key[1]} {now.version}: other file")
    if old is not None:
        for what in (
            "version",
            "suite",
            "system",
            "glibc",
            "layers",
            "files",
            "env",
            "start",
            "cuda",
            "allow_scripts",
            "bytecode",
        ):
            if getattr(old, what) != getattr(new, what):
                lines.append(f"{what} changed")
        if not lines and replace(old, spec_digest=new.spec_digest, parent=new.parent) != old:
            lines.append("declaration changed")
    if old is None and new.system and not new.parent:
        lines.append(f"+ {new.system.name}, Python {new.system.interpreter}, glibc {new.glibc}: not made here")
    if old is None or new.substitutions != old.substitutions:
        lines += [_substituted(each) for each in new.substitutions]
    if new.parent and (old is None or old.parent is None or new.parent.changed != old.parent.changed):
        lines += [_against(new.parent.name, each) for each in new.parent.changed]
    return tuple(lines)


def _substituted(each: Substitution) -> str:
    return f"! {each.name} {each.wanted or 'wanted by others'} -> {each.got or 'nothing'}: {each.reason}"


def _against(parent: str, each: Changed) -> str:
    coupled = ": compiled packages are built against it" if each.coupled else ""
    return f"! {each.name} {each.before} of {parent} -> {each.after or 'nothing'}{coupled}"


def _by_name(lock: Lock | None) -> dict[tuple[int, str], Artifact]:
    artifacts: list[Artifact] = [*lock.wheels, *lock.debs] if lock else []
    return {_key(artifact): artifact for artifact in artifacts}


def _key(artifact: Artifact) -> tuple[int, str]:
    return (0 if isinstance(artifact, Wheel) else 1, artifact.name)
