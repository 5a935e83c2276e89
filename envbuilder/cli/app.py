"""What every verb shares: the options, the settings, and how a Result is shown."""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from envbuilder.cli.output import Output, Result
from envbuilder.cli.settings import Settings, load_settings
from envbuilder.errors import SpecError
from envbuilder.spec.project import NoProject, find_project

if TYPE_CHECKING:
    from envbuilder.mount.settings import MountSettings

#: More would not be kept open between requests (pools.py).
_MAX_CONNECTIONS = 32
#: As many bytes are kept for slots in the file that counts them (slots.py); far more than a registry likes.
_MAX_NODE_CONNECTIONS = 1024


class _CacheUse:
    """Under which ``shared`` has the descriptor that says that this process uses the cache."""


@dataclass(frozen=True, slots=True)
class App:
    """One call of the command: its settings and its output. ``project`` is None outside a project.

    shared: what is made once and then used by all who need it.
    """

    settings: Settings
    output: Output
    project: Path | None
    shared: dict[type, object] = field(default_factory=dict, compare=False, repr=False)

    def need_project(self) -> Path:
        """The project's folder.

        Raises:
            NoProject: there is none here.
        """
        return self.project or find_project(_here())

    @property
    def store_directory(self) -> Path:
        return self._folder("store")

    @property
    def cache_directory(self) -> Path:
        return self._folder("cache")

    def use_cache(self) -> Path:
        """The cache, which no collection takes for unused until this process ends."""
        from envbuilder.store.cache import in_use  # noqa: PLC0415  only who locks or builds

        if _CacheUse not in self.shared:
            self.shared[_CacheUse] = in_use(self.cache_directory)
        return self.cache_directory

    def _folder(self, key: str) -> Path:
        folder = self.settings.get(key)
        if not folder or "\0" in folder:
            raise SpecError(f"{key}: want a directory, got {folder!r}", hint="Name one, or leave the setting out.")
        return Path(folder)

    def mount_settings(self) -> MountSettings:
        """Where this node keeps what, and how it mounts.

        Raises:
            SpecError: a setting of ``mount`` is not what it may be.
        """
        # Verbs that mount nothing start a tenth of a second of CPU earlier without it.
        from envbuilder.mount.chunks.quota import Quota  # noqa: PLC0415  see above
        from envbuilder.mount.settings import Mode, MountSettings  # noqa: PLC0415  see above

        mode, limit = self.settings.get("mount.mode"), self.settings.get("mount.wait-limit-s")
        modes: tuple[Mode, ...] = get_args(Mode)
        if mode not in modes:
            raise SpecError(f"mount.mode: want {', '.join(modes)}, got {mode!r}")
        if not limit.isdecimal():
            raise SpecError(f"mount.wait-limit-s: want seconds, got {limit!r}")
        answer = self.settings.get("mount.answer-limit-s")
        if not answer.isdecimal() or int(answer) < 1:
            raise SpecError(f"mount.answer-limit-s: want seconds, at least 1, got {answer!r}")
        connections = self.settings.get("mount.connections")
        if not connections.isdecimal() or not 1 <= int(connections) <= _MAX_CONNECTIONS:
            raise SpecError(f"mount.connections: want 1 to {_MAX_CONNECTIONS}, got {connections!r}")
        on_node = self.settings.get("mount.node-connections")
        if not on_node.isdecimal() or int(on_node) > _MAX_NODE_CONNECTIONS:
            raise SpecError(f"mount.node-connections: want 0 to {_MAX_NODE_CONNECTIONS}, got {on_node!r}")
        return MountSettings(
            state_dir=self._folder("state").absolute(),
            cache_dir=self._folder("chunks").absolute(),
            mode=modes[modes.index(mode)],
            connections=int(connections),
            node_connections=int(on_node),
            wait_limit_s=float(limit),
            answer_limit_s=float(answer),
            trace=self.switch("mount.trace"),
            layer_indexes=self.switch("mount.layer-indexes"),
            background=self.switch("mount.background"),
            quota=Quota.parse(self.settings.get("mount.quota")),
        )

    def switch(self, key: str) -> bool:
        """Whether the setting ``key`` is on.

        Raises:
            SpecError: it is neither on nor off.
        """
        word = self.settings.get(key)
        if word not in ("on", "off"):
            raise SpecError(f"{key}: want on or off, got {word!r}")
        return word == "on"


def common(verb: Callable[..., Result]) -> Callable[..., int]:
    """Give ``verb`` the options that every verb has, an App as first argument, and print its Result."""

    @click.option(
        "--project",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="Folder with images/ (default: found upwards).",
    )
    @click.option("--store", metavar="DIR", help="Image store, an OCI image layout.")
    @click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
    @click.option("--quiet", is_flag=True, help="Print nothing but the result and errors.")
    @click.option("--debug", is_flag=True, help="Log every request and program; secrets are redacted.")
    @functools.wraps(verb)
    def wrapped(
        project: Path | None,
        store: str | None,
        as_json: bool,
        quiet: bool,
        debug: bool,
        **arguments: Any,
    ) -> int:
        if quiet:
            logging.getLogger("envbuilder").setLevel(logging.ERROR)
        if debug:
            # Ours alone: the HTTP library would write whole URLs, which may be signed.
            logging.basicConfig(stream=sys.stderr, format="%(relativeCreated)8.0f ms %(name)s: %(message)s")
            logging.getLogger("envbuilder").setLevel(logging.DEBUG)
        where = _project(project)
        flags = {"store": store} if store else {}
        settings = load_settings(project=where, environ=os.environ, flags=flags, uid=os.geteuid())
        app = App(settings, Output(as_json=as_json, quiet=quiet, debug=debug), where)
        result = verb(app, **arguments)
        # A verb whose stdout was a command's own has nothing to add to it.
        if result.text or result.value is not None:
            app.output.result(result)
        return result.exit_code

    return wrapped


def _project(named: Path | None) -> Path | None:
    if named is not None:
        if not (named / "images").is_dir():
            raise NoProject(f"--project: want a folder with images/, got {named}")
        return named.resolve()
    try:
        return find_project(_here())
    except NoProject:
        # Most verbs also work on images alone.
        return None


def _here() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError as error:
        raise NoProject("the working directory was removed", hint="Go to another, or name the project.") from error
