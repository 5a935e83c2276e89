"""Which file of an image lies where on its devices, read from its EROFS metadata when somebody wants to know."""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path

from envbuilder.errors import EnvbuilderError
from envbuilder.mount.erofstree import ErofsTree

_REGULAR, _DIRECTORY = 1, 2


class FileMap:
    """Paths by device and offset. Made once: it walks the whole tree, some seconds for 100,000 files."""

    def __init__(self, metadata: Path) -> None:
        """Raises BadTree, OSError: it cannot be read."""
        tree = ErofsTree(metadata)
        found: dict[int, list[tuple[int, int, str]]] = {}
        seen: set[int] = set()
        todo = [(tree.root, "")]
        while todo:
            directory, above = todo.pop()
            for name, (nid, kind) in tree.names(directory).items():
                if name in (b".", b".."):
                    continue
                path = f"{above}/{name.decode('utf-8', 'backslashreplace')}"
                if kind == _DIRECTORY:
                    todo.append((nid, path))
                elif kind == _REGULAR and nid not in seen:
                    seen.add(nid)
                    for extent in tree.extents(nid):
                        found.setdefault(extent.device, []).append((extent.offset, extent.size, path))
        self._extents = {device: sorted(extents) for device, extents in found.items()}
        self._starts = {device: [start for start, _, _ in extents] for device, extents in self._extents.items()}

    def path(self, device: int, offset: int, size: int = 1) -> str:
        """The file that a read of ``size`` bytes there is of; "" when there is none.

        Reads are of pages and read ahead, so that they may begin before the file's first byte.
        """
        starts = self._starts.get(device, [])
        place = bisect_right(starts, offset) - 1
        if place >= 0:
            start, length, path = self._extents[device][place]
            if offset < start + length:
                return path
        if place + 1 < len(starts) and starts[place + 1] < offset + size:
            return self._extents[device][place + 1][2]
        return ""


def file_map(metadata: str | Path) -> FileMap | None:
    """The map of the image in ``metadata``, or None where there is none that can be read."""
    try:
        return FileMap(Path(metadata)) if str(metadata) not in ("", ".") else None
    except (EnvbuilderError, OSError):
        return None
