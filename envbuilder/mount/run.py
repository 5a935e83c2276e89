"""Run a command in an image: mount it privately, start a container over it, clear everything away.

The mounts live in a name space of their own; the container runtime is started inside it. The
kernel takes them down with the last process, so nothing can stay mounted, whatever is killed.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from envbuilder.digest import Digest
from envbuilder.errors import UnavailableError
from envbuilder.image.inspect import OpenImage
from envbuilder.mount.ahead import NOTHING, Ahead
from envbuilder.mount.container.bundle import Bind, ProcessOptions, environment, runtime_config
from envbuilder.mount.container.cdi import Edits, device_edits, has_kind
from envbuilder.mount.container.commands import check_command
from envbuilder.mount.container.foreground import Container
from envbuilder.mount.container.host import CDI_DIRECTORIES, host_files, host_limits
from envbuilder.mount.container.program import Program
from envbuilder.mount.container.runtime import find_runtime
from envbuilder.mount.container.users import find_user
from envbuilder.mount.counters import Snapshot
from envbuilder.mount.direct import Whole, blob_size
from envbuilder.mount.host.rootless import adapted
from envbuilder.mount.mount import Mounted, Progress, open_mount, require_root
from envbuilder.mount.settings import MountSettings
from envbuilder.mount.warm import Decision, seen
from envbuilder.store.begun import begun
from envbuilder.store.target import RangeTarget

if TYPE_CHECKING:
    from envbuilder.mount.seen.report import Seen, Watch

_GPU_KIND = "nvidia.com/gpu"


class ImageUnreadable(UnavailableError):
    """The kernel got no data for a file of the image: its source is away, or sends other bytes than it promised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How a command is run. user: "" for the image's. gpus: "auto" takes what the host describes, "all" insists.

    terminal: give the command a terminal of its own (stdin and stdout are one).
    measure: time the first output; stdout then goes through a pipe. reads: a file that gets every read.
    quiet: what it writes to stdout goes nowhere.
    """

    command: tuple[str, ...] = ()
    env: Mapping[str, str] | None = None
    working_dir: str = ""
    user: str = ""
    gpus: Literal["auto", "all", "none"] = "auto"
    devices: tuple[str, ...] = ()  # further CDI devices by full name
    binds: tuple[Bind, ...] = ()
    terminal: bool = False
    full: bool = False
    measure: bool = False
    reads: Path | None = None
    quiet: bool = False
    cdi_directories: Sequence[Path] = CDI_DIRECTORIES
    runtime: str = "auto"  # a name or a path; "auto" takes the first that works


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """How a start went; seconds count from ``begun_s``.

    how: as ``Mounted.how``. first_output_s: None when not measured or when nothing was written.
    at_first_output, at_end: counters of the mount at these moments. traced: whether a trace foresaw the start.
    image_bytes: of all layers as stored. seen: bytes over time and what was waited for, where it was measured.
    decision: what the next start of the same can use, if it is of a whole image.
    """

    image: str
    how: str
    exit_code: int
    mounted_s: float
    first_output_s: float | None
    ended_s: float
    at_mount: Snapshot
    at_first_output: Snapshot | None
    at_end: Snapshot
    traced: bool = False
    image_bytes: int = 0
    command: tuple[str, ...] = ()
    seen: Seen | None = None
    decision: Decision | None = None

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        first = self.at_first_output
        return {
            "image": self.image,
            "how": self.how,
            "exit_code": self.exit_code,
            "seconds": {
                "mounted": round(self.mounted_s, 4),
                "first_output": None if self.first_output_s is None else round(self.first_output_s, 4),
                "ended": round(self.ended_s, 4),
            },
            "fetched_bytes": {
                "before_mount": self.at_mount.fetched_bytes,
                "before_first_output": None if first is None else first.fetched_bytes,
                "in_all": self.at_end.fetched_bytes,
                "from_origin": self.at_end.origin_bytes,
                "from_mirrors": self.at_end.mirror_bytes,
            },
            "trace": self._trace(first or self.at_end) if self.traced else None,
            "counters": self.at_end.to_json(),
            "image_bytes": self.image_bytes,
            "command": list(self.command),
            **self._seen(),
        }

    def _seen(self) -> dict[str, Any]:
        if self.seen is None:
            return {}
        until_s = self.ended_s if self.first_output_s is None else self.first_output_s
        return {"blocked_s": round(self.seen.blocked_s(until_s), 4), **self.seen.to_json()}

    def _trace(self, then: Snapshot) -> dict[str, Any]:
        """How well the trace foresaw the start: a miss is a read that had to be fetched for itself.

        A page that the kernel was given before it asked counts as a read.
        """
        misses, reads = then.waits - then.hot_waits, then.hits + then.pushed_pages
        return {
            "reads": reads,
            "misses": misses,
            "hit_rate": round(1 - misses / reads, 4) if reads else 0.0,
            "waited_for_bundle": then.hot_waits,
            "bundle_bytes": then.hot_bytes,
        }


def run_image(
    image: OpenImage,
    source: RangeTarget,
    settings: MountSettings,
    options: RunOptions,
    *,
    begun_s: float | None = None,
    ahead: Ahead = NOTHING,
    progress: Progress | None = None,
) -> RunReport:
    """Run a command in ``image`` with our stdin, stdout and stderr; wait for its end, and clear away.

    begun_s: when the user began to wait, on the monotonic clock; None: now. ahead: what of it was begun before.

    Raises:
        NeedsRoot, NoRuntime, NoSuchDevice, UnknownUser, NoCommand, and what ``open_mount`` raises.
    """
    # Before the runtime is tried, which would blame itself.
    require_root()
    begun_s = time.monotonic() if begun_s is None else begun_s
    edits = _edits(options)
    runtime = ahead.runtime or begun(
        partial(find_runtime, settings.state_dir, options.runtime), "runtime", finishing=True
    )
    with open_mount(
        image,
        source,
        settings,
        writable=True,
        full=options.full,
        private=True,
        record=options.reads is not None,
        ahead=ahead,
        progress=progress,
    ) as mounted:
        mounted_s = time.monotonic() - begun_s
        at_mount = mounted.counters()
        try:
            config, env = _checked_config(image, options, edits, mounted)
        except OSError as error:
            raise ImageUnreadable(
                f"{image.root.digest}: reading the mounted image failed: {error.strerror or error}",
                hint=f"Read {mounted.folder.log} for why; if the source was away, start it again.",
            ) from error
        program, bundle = runtime.result(), mounted.folder.path
        _write_config(mounted, program.config(config))
        without = {**config, "process": {**config["process"], "env": env}}
        decision = _decision(image, edits, without, mounted, settings, program)
        moments: list[tuple[float, Snapshot]] = []

        def first_output() -> None:
            moments.append((time.monotonic() - begun_s, mounted.counters()))

        argv, pid_file = program.argv(bundle, mounted.id)
        container = Container(argv, pid_file, inside=mounted.keeper, hides=program.hides)
        watch = _watch(mounted, begun_s) if options.measure else None
        with watch.running() if watch else contextlib.nullcontext():
            status = container.run(first_output if options.measure else None, quiet=options.quiet)
        ended_s, at_end = time.monotonic() - begun_s, mounted.counters()
        if options.reads is not None:
            shutil.copyfile(mounted.folder.reads, options.reads)
    return RunReport(
        image=str(image.root.digest),
        how=mounted.how,
        exit_code=status,
        mounted_s=mounted_s,
        first_output_s=moments[0][0] if moments else None,
        ended_s=ended_s,
        at_mount=at_mount,
        at_first_output=moments[0][1] if moments else None,
        at_end=at_end,
        traced=mounted.traced,
        image_bytes=sum(layer.size for layer in image.manifest.layers),
        command=options.command,
        seen=watch.seen(mounted.metadata) if watch else None,
        decision=decision,
    )


def _watch(mounted: Mounted, begun_s: float) -> Watch:
    from envbuilder.mount.seen.report import Watch  # noqa: PLC0415  of a start that is measured

    return Watch(mounted.folder.counters, mounted.folder.waits, begun_s=begun_s)


def _edits(options: RunOptions) -> Edits:
    wanted = list(options.devices)
    if options.gpus == "all" or (options.gpus == "auto" and has_kind(_GPU_KIND, options.cdi_directories)):
        wanted.insert(0, f"{_GPU_KIND}=all")
    edits = Edits()
    for name in wanted:
        edits += device_edits(name, options.cdi_directories)
    return edits


def _checked_config(
    image: OpenImage, options: RunOptions, edits: Edits, mounted: Mounted
) -> tuple[dict[str, Any], list[str]]:
    """The value of config.json, and the environment that it would have without ``options.env``."""
    # The keeper's mounts are not in our name space; through its root they can be read.
    seen = Path(f"/proc/{mounted.keeper}/root") / mounted.directory.relative_to("/")
    user = find_user(seen, options.user or image.config.user)
    process = ProcessOptions(
        command=options.command,
        env=options.env or {},
        working_dir=options.working_dir,
        terminal=options.terminal,
        binds=(*(Bind(source=Path(file), destination=name) for name, file in host_files()), *options.binds),
        limits=host_limits(),
    )
    value = adapted(runtime_config(image.config, process, user, edits, root=mounted.directory))
    check_command(
        seen,
        value["process"]["args"],
        environment(image.config, process, user, edits),
        value["process"]["cwd"],
        outside=[item["destination"] for item in value["mounts"]],
    )
    without = environment(image.config, replace(process, env={}), user, edits)
    return value, [f"{name}={text}" for name, text in without.items()]


def _write_config(mounted: Mounted, value: Mapping[str, Any]) -> None:
    try:
        (mounted.folder.path / "config.json").write_text(json.dumps(value))
    except OSError as error:
        raise mounted.folder.unusable(error) from error


def _decision(
    image: OpenImage,
    edits: Edits,
    config: Mapping[str, Any],
    mounted: Mounted,
    settings: MountSettings,
    runtime: Program,
) -> Decision | None:
    """What the next start of the same can use; None: something of the image may have to be fetched."""
    record = mounted.folder.read()
    if record is None or mounted.metadata is None or not record.how.endswith(" direct"):
        return None
    cache_dir = settings.cache_dir.absolute()
    try:
        whole = Whole(
            image=record.image,
            metadata=str(mounted.metadata),
            metadata_sha256=Digest.of(mounted.metadata.read_bytes()).hex,
            devices=tuple((each, blob_size(cache_dir, each)) for each in record.layers),
            state_dir=str(mounted.folder.state_dir),
            cache_dir=str(cache_dir),
            how=record.how,
            origin=record.origin,
        )
        looked_at = {path: seen(path) for path in (runtime.path, *(node.host_path for node in edits.nodes))}
    except OSError:  # something went in this moment
        return None
    entrypoint, command = image.config.entrypoint, image.config.command
    return Decision(
        whole=whole,
        config=config,
        entrypoint=tuple(entrypoint),
        command=tuple(command),
        runtime=runtime,
        looked_at=looked_at,
    )
