"""System: the packages of an image and the merged tree of its layers, as the computed layer sees them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from envbuilder.layer.deb import control_of, data_members, merged
from envbuilder.layer.debian.ar import BadDeb
from envbuilder.layer.debian.control import Control
from envbuilder.layer.debian.part import Part, Parts
from envbuilder.layer.tree import WHITEOUT, Entry, Placed
from envbuilder.lock.model import Deb
from envbuilder.lock.source import ArtifactSource
from envbuilder.paths import entry_path, resolve_link

#: Symbolic links followed before a path counts as a loop: Linux MAXSYMLINKS.
_MAX_LINKS = 40
#: Bytes of one file that a computed file is made from; the largest (usr/share/base-files) have 20 kB.
_MAX_CONTENT = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """What is installed.

    controls: package name -> control, sorted by name.
    conffiles: package name -> (absolute path, what status says of it: md5 in hex), as the package orders them.
    contents: tree path -> bytes, of the package files that computed files are made from.
    tree: tree path -> what the layers below put there, the highest layer winning.
    """

    controls: Mapping[str, Control]
    conffiles: Mapping[str, tuple[tuple[str, str], ...]]
    contents: Mapping[str, bytes]
    tree: Mapping[str, Placed]
    children: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def follow(self, path: str) -> str | None:
        """The tree path that ``path`` names once every symbolic link is followed; None when it dangles."""
        parts, done = path.split("/"), ""
        for _ in range(_MAX_LINKS):
            while parts:
                done = f"{done}/{parts.pop(0)}" if done else parts.pop(0)
                placed = self.tree.get(done)
                if placed is not None and placed.link and _is_symlink(placed.mode):
                    target = resolve_link(done, placed.link)
                    if target is None:
                        return None
                    parts, done = [part for part in target.split("/") if part] + parts, ""
                    break
            else:
                return done if done in self.tree or done in self.children else None
        return None

    def exists(self, path: str) -> bool:
        """Whether something is at absolute or tree path ``path``, links followed."""
        return self.follow(path.lstrip("/")) is not None

    def listdir(self, path: str) -> tuple[str, ...]:
        """Names in the directory at tree path ``path``, sorted; links followed."""
        real = self.follow(path)
        return self.children.get(real, ()) if real is not None else ()

    def with_links(self, entries: Iterable[Entry]) -> System:
        """The system with the symbolic links of ``entries`` in its tree: alternatives lead to libraries too."""
        links = {
            item.path: Placed(path=item.path, mode=item.mode, link=item.link) for item in entries if item.is_symlink
        }
        if not links:
            return self
        tree = {**self.tree, **links}
        return replace(self, tree=tree, children=_children(tree))

    def read(self, path: str) -> bytes:
        """The bytes of a package file that was collected.

        Raises:
            BadDeb: no package of the image ships it.
        """
        if path not in self.contents:
            raise BadDeb(f"/{path}: no package of the image ships it, and a file of the computed layer needs it")
        return self.contents[path]


def read_system(
    debs: Sequence[Deb],
    artifacts: ArtifactSource,
    placed_below: Sequence[Sequence[Placed]],
    wanted: Callable[[str], bool],
    *,
    parts: Parts | None = None,
) -> System:
    """The System of ``debs`` with the layers ``placed_below``, lowest first.

    wanted: whether the content of a tree path is needed. A package's data is unpacked only if
    its control part names such a file or a conffile. parts: what is remembered of packages, by a rule
    that changes with ``wanted``: of those nothing is opened, nor even fetched.
    """
    controls: dict[str, Control] = {}
    conffiles: dict[str, tuple[tuple[str, str], ...]] = {}
    contents: dict[str, bytes] = {}
    for deb in sorted(debs, key=lambda item: item.name):
        read = partial(_read_part, deb, artifacts, wanted)
        part = parts.of(deb, read) if parts else read()
        controls[deb.name], conffiles[deb.name] = part.control, part.conffiles
        contents.update(part.contents)
    tree = _merged(placed_below)
    return System(controls=controls, conffiles=conffiles, contents=contents, tree=tree, children=_children(tree))


def _merged(layers: Sequence[Sequence[Placed]]) -> dict[str, Placed]:
    """Tree path -> what is there, whiteouts applied; a later layer's directory does not hide what is in it."""
    tree: dict[str, Placed] = {}
    for layer in layers:
        hidden = {
            f"{above}/{name.removeprefix(WHITEOUT)}"
            for above, _, name in (placed.path.rpartition("/") for placed in layer if WHITEOUT in placed.path)
            if name.startswith(WHITEOUT)
        }
        if hidden:
            tree = {path: placed for path, placed in tree.items() if not _below(path, hidden)}
        tree.update({placed.path: placed for placed in layer if WHITEOUT not in placed.path})
    return tree


def _below(path: str, hidden: set[str]) -> bool:
    while path:
        if path in hidden:
            return True
        path = path.rpartition("/")[0]
    return False


def _read_part(deb: Deb, artifacts: ArtifactSource, wanted: Callable[[str], bool]) -> Part:
    path = artifacts.file(deb)
    control = control_of(path)
    names = {merged(name.lstrip("/")) for name in (*control.md5sums, *control.conffiles)}
    if not control.declared_conffiles and control.md5sums and not any(map(wanted, names)):
        return Part(control=control)
    contents: dict[str, bytes] = {}
    hashes: dict[str, str] = {}
    shipped = set(control.conffiles)
    for member, data in data_members(path):
        if not member.size and not _is_regular(member.mode):
            continue
        name = entry_path(member.name, source=path.name)
        keep = wanted(merged(name))
        if keep or "/" + name in shipped:
            if keep and member.size > _MAX_CONTENT:
                raise BadDeb(f"{path.name}: {name}: want at most {_MAX_CONTENT} bytes, got {member.size}")
            digest, parts = hashlib.md5(usedforsecurity=False), []
            while block := data.read(1 << 20):
                digest.update(block)
                if keep:
                    parts.append(block)
            if keep:
                contents[merged(name)] = b"".join(parts)
            hashes["/" + name] = digest.hexdigest()
    declared = control.declared_conffiles
    conffiles = tuple((name, f"{hashes.get(name, 'newconffile')} {flag}".rstrip()) for name, flag in declared)
    return Part(control=control, conffiles=conffiles, contents=contents)


def _children(tree: Iterable[str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, set[str]] = {}
    for path in tree:
        here = path
        while here:
            parent, _, name = here.rpartition("/")
            names = found.get(parent)
            if names is not None:
                names.add(name)
                break  # whoever was first below this parent noted what is above it
            found[parent] = {name}
            here = parent
    return {parent: tuple(sorted(names)) for parent, names in found.items()}


def _is_symlink(mode: int) -> bool:
    return mode & 0o170000 == 0o120000


def _is_regular(mode: int) -> bool:
    return mode & 0o170000 == 0o100000
