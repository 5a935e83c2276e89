"""Configuration: ``envbuilder.toml`` of the project, the user's file, ``ENVBUILDER_*``, flags.

Later ones win; ``doctor`` prints which one did. Keys are flat, ``section.name`` in TOML tables:
``store`` is ``ENVBUILDER_STORE``, ``mirrors.debian`` is ``ENVBUILDER_MIRRORS_DEBIAN``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from envbuilder.errors import SpecErrors
from envbuilder.spec.toml import parse_toml, read_document

#: Bytes of a settings file.
_MAX_FILE = 1 << 20
#: Key -> what it is. ``*`` stands for a role or a host.
KEYS = {
    "store": "image store: an OCI image layout",
    "cache": "verified wheels and debs",
    "chunks": "chunks of lazily started images that were fetched so far, and unpacked trees",
    "state": "what is mounted",
    "mount.mode": "auto, erofs, loop, fuse or unpack",
    "mount.wait-limit-s": "seconds that a read waits for a registry that is away",
    "mount.answer-limit-s": "seconds that a process of a mount may not answer before it is replaced",
    "mount.connections": "connections that one mount has to its registry",
    "mount.node-connections": "connections that all mounts of this node have to one registry together; 0: no limit",
    "mount.trace": "on or off: start with the image's start-up trace",
    "mount.layer-indexes": "on or off: believe checkpoint indexes that a registry has beside gzip layers",
    "mount.quota": "what chunks may take: a size (50GB), a share of the file system (80%), none",
    "mount.background": "on or off: fetch the rest of an image while its command runs",
    "run.runtime": "auto, crun, runc or a path",
    "resolve.policy": "trust policy that resolve, run, mount, trace and pull ask images to meet: a file",
    "registries.insecure": "hosts that may be spoken to in plain HTTP, comma separated",
    "registries.unverified": "hosts whose TLS certificate is not checked, comma separated",
    "registries.trusted": "hosts that registries may lead to although they are private or of another site",
    "registries.ca-file": "certificates to trust besides the system's",
    "registries.login-file": "where login writes: auto, docker, containers or a path",
    "registries.connect-timeout-s": "seconds for a connection",
    "registries.idle-timeout-s": "seconds without a byte in either direction",
    "registries.retry-budget-s": "seconds that one request may wait between its attempts in all",
    "registries.*.ca-file": "certificates to trust for one host",
    "registries.*.client-cert": "our certificate for one host",
    "registries.*.client-key": "its key, when it is not in the same file",
    "registries.*.credential-helper": "program that gives credentials for one host, and its arguments",
    "registries.*.mirrors": "hosts, or HOST/PREFIX, that are asked for one host's images before it, comma separated",
    "registries.*.mirror-tags": "who says what a tag names: origin, fallback or mirror",
    "registries.*.mirror-ns": "on or off: tell mirrors whose image is meant (?ns=), for those of several registries",
    "registries.chunked": "registries (HOST or HOST=MIB) that are sent blobs in chunks that resume, comma separated",
    "indexes.*": "Python index of a role",
    "mirrors.*": "Debian archive of a role: debian, debian-security",
}


@dataclass(frozen=True, slots=True)
class Setting:
    """A value and where it came from."""

    value: str
    source: str


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting by key; what is absent has no value anywhere."""

    by_key: Mapping[str, Setting]

    def get(self, key: str, default: str = "") -> str:
        """The value of ``key``, or ``default``."""
        setting = self.by_key.get(key)
        return setting.value if setting else default

    def section(self, name: str) -> dict[str, str]:
        """``section("mirrors")``: role -> value."""
        prefix = name + "."
        return {key[len(prefix) :]: setting.value for key, setting in self.by_key.items() if key.startswith(prefix)}


def load_settings(*, project: Path | None, environ: Mapping[str, str], flags: Mapping[str, str], uid: int) -> Settings:
    """All settings, the built-in defaults included.

    Raises:
        SpecErrors: a file is not TOML, or names an unknown key; all its problems at once.
    """
    home = Path(environ.get("HOME", "/"))
    data = Path("/var/lib") if uid == 0 else Path(environ.get("XDG_DATA_HOME") or home / ".local/share")
    cache = Path("/var/cache") if uid == 0 else Path(environ.get("XDG_CACHE_HOME") or home / ".cache")
    state = Path("/run") if uid == 0 else Path(environ.get("XDG_RUNTIME_DIR") or home / ".local/state")
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "envbuilder" / "config.toml"
    layers = [
        (
            "default",
            {
                "store": str(data / "envbuilder"),
                "cache": str(cache / "envbuilder"),
                "chunks": str(cache / "envbuilder" / "lazy"),
                "state": str(state / "envbuilder"),
                "mount.mode": "auto",
                "mount.wait-limit-s": "300",
                "mount.answer-limit-s": "30",
                "mount.connections": "8",
                "mount.node-connections": "32",
                "mount.trace": "on",
                "mount.layer-indexes": "off",
                "mount.background": "on",
                "mount.quota": "80%",
                "run.runtime": "auto",
                "registries.login-file": "auto",
                "registries.connect-timeout-s": "10",
                "registries.idle-timeout-s": "60",
                "registries.retry-budget-s": "120",
            },
        ),
        *([(str(project / "envbuilder.toml"), _project_file(project / "envbuilder.toml"))] if project else []),
        (str(config), _file(config)),
        ("environment", _variables(environ)),
        ("flag", dict(flags)),
    ]
    merged: dict[str, Setting] = {}
    for source, values in layers:
        merged.update({key: Setting(value, source) for key, value in values.items()})
    return Settings(merged)


def _project_file(file: Path) -> dict[str, str]:
    """A project is found upwards from wherever one stands: it must not choose what is started, nor whom to trust."""
    values = _file(file)
    problems = [f"{key}: a project may not choose this: {why}" for key in values if (why := _only_users(key))]
    if problems:
        raise SpecErrors(
            str(file), problems, hint="Set it in your own configuration file, or as an environment variable."
        )
    return values


def _only_users(key: str) -> str:
    """Why a project's file may not have ``key``, or ""."""
    if key == "run.runtime" or key.endswith(".credential-helper"):
        return "it names a program to start"
    if key in ("registries.insecure", "registries.unverified", "registries.trusted") or key.endswith(".ca-file"):
        return "it decides whom your credentials go to"
    if key in ("cache", "chunks", "state"):
        return "what lies there is believed, started and removed without being looked at again"
    if key.startswith("registries.") and key.endswith((".mirrors", ".mirror-tags", ".mirror-ns")):
        return "it decides who is asked for images"
    if key in ("resolve.policy", "mount.layer-indexes"):
        return "it decides whose images you trust"
    return "it is where your credentials are kept" if key == "registries.login-file" else ""


def _file(file: Path) -> dict[str, str]:
    data = read_document(file, most=_MAX_FILE, source=str(file))
    if data is None:
        return {}
    try:
        document = parse_toml(data.decode(), source=str(file))
    except UnicodeDecodeError as error:
        raise SpecErrors(str(file), [f"not UTF-8: {error.reason} at byte {error.start}"]) from error
    values: dict[str, str] = {}
    problems: list[str] = []
    for key, value in _flatten(document):
        if not _known(key):
            import difflib  # noqa: PLC0415  only for a mistake

            near = difflib.get_close_matches(key, KEYS, 1)
            problems.append(f"{key}: unknown setting" + (f"; did you mean {near[0]}?" if near else ""))
        elif isinstance(value, list) and all(isinstance(item, str) for item in value):
            values[key] = ",".join(value)
        elif isinstance(value, str | int) and not isinstance(value, bool):
            values[key] = str(value)
        else:
            problems.append(f"{key}: want a string, got {type(value).__name__}")
    if problems:
        raise SpecErrors(str(file), problems, hint="See docs/configuration.md for the settings.")
    return values


def _flatten(table: Mapping[str, object], prefix: str = "") -> list[tuple[str, object]]:
    pairs: list[tuple[str, object]] = []
    for key, value in table.items():
        pairs += _flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else [(prefix + key, value)]
    return pairs


def _known(key: str) -> bool:
    section, _, rest = key.partition(".")
    # A host has dots of its own: what it is set to is behind the last one.
    return key in KEYS or f"{section}.*" in KEYS or f"{section}.*.{rest.rpartition('.')[2]}" in KEYS


def _variables(environ: Mapping[str, str]) -> dict[str, str]:
    values: dict[str, str] = {}
    fixed = {"ENVBUILDER_" + key.upper().replace(".", "_").replace("-", "_"): key for key in KEYS if "*" not in key}
    for name, value in environ.items():
        if name in fixed:
            values[fixed[name]] = value
        for section in ("indexes", "mirrors"):
            prefix = f"ENVBUILDER_{section.upper()}_"
            if name.startswith(prefix):
                values[f"{section}.{name[len(prefix) :].lower().replace('_', '-')}"] = value
    return values
