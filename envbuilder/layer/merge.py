"""Several layers as the one tree that a container sees, with what hides what.

Source: OCI image-spec 1.1 layer.md, "Applying Changesets": later layers win, a directory keeps
its children and takes the attributes of the last layer that names it, whiteouts hide what is below.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from envbuilder.layer.pax import encode
from envbuilder.layer.tree import DIRECTORY, OPAQUE, WHITEOUT, Placed

#: Symbolic links followed to find a parent that a layer does not name itself (Linux MAXSYMLINKS).
_MAX_LINKS = 40
#: Layer number of directories that no layer names.
IMPLIED = -1


@dataclass(slots=True)
class Node:
    """One name of the merged tree: what is there, the number of its layer, and what is below."""

    placed: Placed
    layer: int
    children: dict[str, Node] = field(default_factory=dict)

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.placed.mode)

    @property
    def inode(self) -> tuple[int, str]:
        """Equal for two names of one inode, that is hard links."""
        linked = self.placed.link if stat.S_ISREG(self.placed.mode) else ""
        return self.layer, linked or self.placed.path


@dataclass(frozen=True, slots=True)
class Replaced:
    """A path that ``above`` (of layer number ``above_layer``) takes from ``below``.

    Equal directories are not reported. ``is_type_change`` breaks other runtimes (build.md 2.2).
    """

    below: Placed
    below_layer: int
    above: Placed
    above_layer: int

    @property
    def is_type_change(self) -> bool:
        return stat.S_IFMT(self.below.mode) != stat.S_IFMT(self.above.mode)


@dataclass(frozen=True, slots=True)
class Merged:
    """The merged tree and every path that hid another, in the order of the layers."""

    root: Node
    replaced: tuple[Replaced, ...]

    def walk(self) -> Iterator[tuple[str, Node]]:
        """Path and node of everything below the root, parents first, siblings by the bytes of their names."""
        stack = [("", self.root)]
        while stack:
            path, node = stack.pop()
            if path:
                yield path, node
            below = f"{path}/" if path else ""
            stack += [(below + name, node.children[name]) for name in sorted(node.children, key=encode, reverse=True)]

    def nodes(self) -> Iterator[Node]:
        """The nodes of ``walk``, in its order: the paths of all of them are a third of its time."""
        stack = [self.root]
        while stack:
            node = stack.pop()
            if node is not self.root:
                yield node
            if node.children:
                stack += [node.children[name] for name in sorted(node.children, key=encode, reverse=True)]


def merge(layers: Sequence[Iterable[Placed]], *, onto: Node | None = None, first: int = 0) -> Merged:
    """Lay ``layers`` over each other, base first. Each is in the order of its tar.

    onto: the root of what is below them all, which is changed; ``first``: the number of the first layer then.
    """
    root = onto or Node(Placed(path="", mode=DIRECTORY | 0o755), IMPLIED)
    replaced: list[Replaced] = []
    for number, layer in enumerate(layers, first):
        entries = list(layer)
        for placed in entries:
            name = placed.path.rpartition("/")[2]
            if name.startswith(WHITEOUT):
                _hide(root, placed.path, name)
        folder, parent = "", root
        for placed in entries:
            above, _, name = placed.path.rpartition("/")
            if name.startswith(WHITEOUT):
                continue
            # A tar is sorted: neighbours share their parent, and finding it is most of the work.
            if above != folder:
                folder, parent = above, _parent(root, above.split("/"))
            if _add(parent, name, placed, number, replaced):
                folder, parent = "", root
    return Merged(root, tuple(replaced))


def _hide(root: Node, path: str, name: str) -> None:
    parent = _find(root, path.split("/")[:-1])
    if parent is None:
        return
    if name == OPAQUE:
        parent.children.clear()
    else:
        parent.children.pop(name.removeprefix(WHITEOUT), None)


def _find(root: Node, parts: Sequence[str]) -> Node | None:
    node: Node | None = root
    for part in parts:
        if node is None:
            break
        node = node.children.get(part)
    return node


def _add(parent: Node, name: str, placed: Placed, number: int, replaced: list[Replaced]) -> bool:
    """Put ``placed`` into ``parent``; whether it took another's place."""
    node = parent.children.get(name)
    parent.children[name] = above = Node(placed, number)
    if node is None:
        return False
    if node.is_directory and above.is_directory:
        above.children = node.children
    if not (node.is_directory and _alike(node.placed, placed)):
        replaced.append(Replaced(node.placed, node.layer, placed, number))
    return True


def _alike(one: Placed, two: Placed) -> bool:
    return (one.mode, one.uid, one.gid, one.xattrs) == (two.mode, two.uid, two.gid, two.xattrs)


def _parent(root: Node, parts: Sequence[str]) -> Node:
    """The directory ``parts``; links on the way are followed inside the tree, what is missing is made."""
    stack, todo, links = [root], list(reversed(parts)), 0
    while todo:
        part, here = todo.pop(), stack[-1]
        if part in {"", "."}:
            continue
        if part == "..":
            stack = stack[:-1] or stack
            continue
        node = here.children.get(part)
        if node is not None and stat.S_ISLNK(node.placed.mode) and links < _MAX_LINKS:
            links += 1
            stack = [root] if node.placed.link.startswith("/") else stack
            todo += reversed(node.placed.link.split("/"))
            continue
        if node is None or not node.is_directory:
            path = f"{here.placed.path}/{part}" if here.placed.path else part
            node = here.children[part] = Node(Placed(path=path, mode=DIRECTORY | 0o755), IMPLIED)
        stack.append(node)
    return stack[-1]
