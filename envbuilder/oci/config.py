"""The image config: OCI image-spec 1.1 config.md. What a runtime needs to start a process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from envbuilder.digest import Digest, InvalidJson, canonical_json, parse_json_object
from envbuilder.errors import SpecError
from envbuilder.oci.platform import Platform


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageConfig:
    """Platform, process defaults and the diff_ids of the layers, base first.

    ``history`` has one text a layer (its ``created_by``). Times are left out: reproducible.
    """

    platform: Platform
    diff_ids: tuple[Digest, ...]
    env: Mapping[str, str] = field(default_factory=dict, hash=False)
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    working_dir: str = "/"
    user: str = ""
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    history: tuple[str, ...] = ()
    os_features: tuple[str, ...] = ()

    def dump(self) -> bytes:
        """Canonical JSON of the config."""
        process: dict[str, Any] = {"WorkingDir": self.working_dir}
        if self.env:
            process["Env"] = [f"{name}={text}" for name, text in sorted(self.env.items())]
        if self.entrypoint:
            process["Entrypoint"] = list(self.entrypoint)
        if self.command:
            process["Cmd"] = list(self.command)
        if self.user:
            process["User"] = self.user
        if self.labels:
            process["Labels"] = dict(self.labels)
        value: dict[str, Any] = {
            **self.platform.to_json(),
            "config": process,
            "rootfs": {"type": "layers", "diff_ids": [str(digest) for digest in self.diff_ids]},
        }
        if self.history:
            value["history"] = [{"created_by": text} for text in self.history]
        if self.os_features:
            value["os.features"] = list(self.os_features)
        return canonical_json(value)


def parse_config(data: bytes, *, source: str) -> ImageConfig:
    """The config in ``data``, whoever wrote it.

    Raises:
        InvalidJson, InvalidDigest, SpecError: not a config, or of a platform we do not know.
    """
    # Such an image starts everywhere else: what the halves stand in is mostly not read.
    value = parse_json_object(data, source=source, surrogates=True)
    process, rootfs = value.get("config", {}), value.get("rootfs")
    process = {} if process is None else process
    if not isinstance(process, dict) or not isinstance(rootfs, dict):
        raise InvalidJson(f"{source}: config, rootfs: want objects")
    diff_ids = rootfs.get("diff_ids")
    if not isinstance(diff_ids, list):
        raise InvalidJson(f"{source}: rootfs.diff_ids: want a list of digests")
    variables = (text.partition("=") for text in _texts(process, "Env", source))
    labels = process.get("Labels") or {}
    if not isinstance(labels, dict):
        raise InvalidJson(f"{source}: config.Labels: want an object")
    history = value.get("history") or []
    try:
        platform = Platform.parse(f"{value.get('os') or '?'}/{value.get('architecture') or '?'}")
    except SpecError as error:
        raise SpecError(f"{source}: {error}") from error
    return ImageConfig(
        platform=platform,
        diff_ids=tuple(Digest.parse(text) for text in diff_ids),
        env={name: text for name, _, text in variables if name},  # no runtime takes a variable without a name
        entrypoint=_texts(process, "Entrypoint", source),
        command=_texts(process, "Cmd", source),
        working_dir=str(process.get("WorkingDir") or "/"),
        user=str(process.get("User") or ""),
        labels={str(name): str(text) for name, text in labels.items()},
        history=tuple(str(item.get("created_by", "")) for item in history if isinstance(item, dict)),
        os_features=_texts(value, "os.features", source),
    )


def _texts(value: Mapping[str, Any], key: str, source: str) -> tuple[str, ...]:
    texts = value.get(key) or []
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise InvalidJson(f"{source}: {key}: want a list of strings")
    return tuple(texts)
