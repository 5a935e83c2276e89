"""The table ``[system]`` of a lock: a system that is not made here, and the image of it that layers lie over."""

from __future__ import annotations

from envbuilder.lock.locktable import InvalidLock, LockTable, array, inline, pairs, value_text
from envbuilder.lock.model import BaseImage, BaseLayer, ForeignSystem
from envbuilder.paths import entry_path


def system_lines(system: ForeignSystem) -> list[str]:
    """The table's lines."""
    lines = ["[system]", *pairs(name=system.name, interpreter=system.interpreter)]
    lines += pairs(image=system.image) if system.image else []
    lines += pairs(asked=system.asked) if system.asked else []
    return lines + (_base_lines(system.base) if system.base else [])


def _base_lines(base: BaseImage) -> list[str]:
    lines = pairs(manifest=str(base.manifest), config=str(base.config), python=base.python)
    for key, value in (("user", base.user), ("working-dir", base.working_dir), ("entrypoint", base.entrypoint)):
        lines += pairs(**{key: value}) if value else []
    for key, named in (("env", base.env), ("labels", base.labels)):
        lines += array(key, (value_text(pair) for pair in named)) if named else []
    return [*lines, *array("layers", map(_base_layer_line, base.layers))]


def _base_layer_line(layer: BaseLayer) -> str:
    fields: dict[str, object] = {"digest": str(layer.digest), "size": layer.size, "diff-id": str(layer.diff_id)}
    return inline({**fields, "media-type": layer.media_type, "by": layer.by})


def parse_system(table: LockTable) -> ForeignSystem:
    """What ``system_lines`` wrote.

    Raises:
        InvalidLock, InvalidDigest, UnsafePath: it did not.
    """
    return table.end(
        ForeignSystem(
            name=table.take("name", str),
            interpreter=table.take("interpreter", str),
            image=table.take("image", str, ""),
            asked=table.take("asked", str, ""),
            base=_base(table) if "manifest" in table.values else None,
        )
    )


def _base(table: LockTable) -> BaseImage:
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


def _named(table: LockTable, key: str) -> tuple[tuple[str, str], ...]:
    """(name, value) of an array of such pairs."""
    found = table.take(key, list, [])
    if not all(isinstance(p, list) and len(p) == 2 and all(isinstance(text, str) for text in p) for p in found):
        raise InvalidLock(f"{table.path}{key}: want pairs of strings")
    return tuple((name, value) for name, value in found)


def _base_layer(table: LockTable) -> BaseLayer:
    return table.end(
        BaseLayer(
            digest=table.digest("digest"),
            size=table.size(),
            diff_id=table.digest("diff-id"),
            media_type=table.take("media-type", str),
            by=table.take("by", str),
        )
    )
