"""Compiled modules: the .pyc files that Python would else make, or fail to make, at each start.

The format is "unchecked hash" (PEP 552). A timestamp .pyc names its source's mtime, and whoever
rewrites mtimes (BuildKit's rewrite-timestamp, cp, a squashing tool) would turn every .pyc of a read-only
image stale without a word: each start would then read and compile all sources again. The price: who
edits a module in a session must delete its .pyc, or run with ``--check-hash-based-pycs always``.

CPython's compiler is not a function of the source alone: which strings it interned before shows in the
bytes (cpython#129724). Measured with Debian's 3.13.5 on 9,986 files: in reverse order 16 files differ,
shuffled 6; in the same order, with other hash seeds, 0. So sources are compiled in a fixed order, in
batches whose borders depend on the sources alone, each batch in a fresh process. A fork for each file
gave 0 differences in any order too, for 1.7 times the CPU time.
"""

from __future__ import annotations

import errno
import heapq
import os
import stat
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Protocol

from envbuilder import proc
from envbuilder.digest import Digest, canonical_json
from envbuilder.errors import HostError
from envbuilder.layer.compile_server import warm
from envbuilder.layer.tree import Entry, file
from envbuilder.paths import NAME_MAX, PATH_MAX

#: A batch ends at either: at 25 ms for a process and 4 ms for a file, starting is 2 percent of the work.
_BATCH_FILES, _BATCH_SIZE = 256, 8 << 20
#: Bytes of sources that are read before the first batch is compiled and taken away: all of torch or transformers.
_AHEAD = 64 << 20
#: Processes that one layer gets by default: enough for the largest wheel when it is built alone.
_MAX_JOBS = 4
#: Bytes of source above which a module is left to be compiled at run time; the largest of our locks has 3 MB.
_MAX_SOURCE = 16 << 20
#: Seconds that a batch may take; a slow machine needs 5.
_TIMEOUT_S = 600
#: Where Debian keeps modules of the interpreter and of its packages.
_DEBIAN_MODULES = ("usr/lib/python3.", "usr/lib/python3/dist-packages/")


class CompilerDied(HostError):
    """The image's interpreter ended while it compiled."""


class ForeignInterpreter(HostError):
    """The image's interpreter is of an architecture that this host cannot run."""

    hint = (
        "Lock the environment for this host's platform too (its interpreter then compiles), or register an emulator, "
        "or declare bytecode = false: then no image of it has compiled modules."
    )


class Compiler(Protocol):
    """Makes .pyc files. ``identity`` is everything that decides their bytes, and part of a layer's recipe."""

    @property
    def identity(self) -> str: ...

    @property
    def cache_tag(self) -> str:
        """What stands in the names of .pyc files: ``cpython-313``."""

    def compile(self, sources: Iterable[tuple[str, bytes]]) -> Iterator[bytes | None]:
        """The .pyc of each ``(absolute path in the image, source)``, in order; None where it does not compile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalInterpreter:
    """An interpreter that was unpacked on this host: how to start it, and what it is.

    identity: of the packages that decide what it compiles to. home: "" where it finds that itself.
    libraries: what its loader is told of where libraries are, or "".
    """

    argv: tuple[str, ...]
    home: str
    version: str
    identity: str
    libraries: str = ""

    def environment(self) -> dict[str, str]:
        """All that it may know of this host. ``-I`` would make it ignore PYTHONHASHSEED."""
        places = {"PYTHONHOME": self.home, "LD_LIBRARY_PATH": self.libraries}
        always = {"PYTHONHASHSEED": "0", "PYTHONSAFEPATH": "1", "PYTHONUTF8": "1"}
        return {**{name: text for name, text in places.items() if text}, **always}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageCompiler:
    """A Compiler that runs the image's own interpreter, in up to ``jobs`` processes at a time.

    Threading: ``compile`` may run in several threads at once.
    """

    interpreter: LocalInterpreter
    jobs: int = field(default_factory=lambda: min(_MAX_JOBS, len(os.sched_getaffinity(0))))
    runner: proc.Runner = field(default=warm, repr=False)

    @property
    def identity(self) -> str:
        return compiler_identity(self.interpreter.identity)

    @property
    def cache_tag(self) -> str:
        return "cpython-" + self.interpreter.version.replace(".", "")

    def compile(self, sources: Iterable[tuple[str, bytes]]) -> Iterator[bytes | None]:
        """As ``Compiler.compile``.

        Raises:
            ForeignInterpreter: it cannot run here. CompilerDied: it crashed, at the file that is named.
        """
        pool = ThreadPoolExecutor(self.jobs, "compile")
        waiting = _LargestFirst(self._batch)
        begun: deque[tuple[int, Future[list[bytes | None]]]] = deque()
        ahead = 0
        try:
            for batch in _batches(sources):
                size = sum(len(source) for _, source in batch)
                begun.append((size, waiting.add(batch, size)))
                pool.submit(waiting.work)
                ahead += size
                while ahead > _AHEAD:
                    size, answer = begun.popleft()
                    yield from answer.result()
                    ahead -= size
            while begun:
                yield from begun.popleft()[1].result()
        finally:
            pool.shutdown(cancel_futures=True)

    def probe(self) -> None:
        """Check that the interpreter runs here and is of the version that it should be.

        Raises:
            ForeignInterpreter: this host cannot run it. CompilerDied: it starts but does not work.
        """
        (compiled,) = self._batch([("/probe.py", b"import sys\n")])
        if compiled is None:
            raise CompilerDied(f"{self.interpreter.argv[0]}: it does not compile 'import sys'")

    def _batch(self, batch: Sequence[tuple[str, bytes]]) -> list[bytes | None]:
        request = b"".join(part for name, source in batch for part in _question(name, source))
        argv = (*self.interpreter.argv, "-s", "-S", "-B", "-W", "ignore", "-c", _worker())
        try:
            done = self.runner(
                argv,
                env=self.interpreter.environment(),
                stdin=len(request).to_bytes(8, "little") + request,
                check=False,
                timeout_s=_TIMEOUT_S,
            )
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            raise ForeignInterpreter(f"{argv[0]}: this host cannot run it: {error.strerror}") from error
        answers = list(_answers(done.stdout))
        if done.status != 0 or len(answers) != len(batch):
            name = batch[min(len(answers), len(batch) - 1)][0]
            stderr = done.stderr[-2000:].decode(errors="replace").strip()
            raise CompilerDied(
                f"{argv[0]}: exit status {done.status} while it compiled {name}" + (f"\n{stderr}" if stderr else "")
            )
        return answers


class _LargestFirst:
    """Batches that wait for a process; the largest goes first, so that none is left to run alone at the end.

    Threading: ``add`` in one thread, ``work`` in any, once for each batch.
    """

    def __init__(self, compiled: Callable[[Sequence[tuple[str, bytes]]], list[bytes | None]]) -> None:
        self._compiled = compiled
        self._lock = threading.Lock()
        self._added = 0
        self._waiting: list[tuple[int, int, Sequence[tuple[str, bytes]], Future[list[bytes | None]]]] = []

    def add(self, batch: Sequence[tuple[str, bytes]], size: int) -> Future[list[bytes | None]]:
        """What will become of ``batch``, whose sources have ``size`` bytes."""
        answer: Future[list[bytes | None]] = Future()
        with self._lock:
            self._added += 1
            heapq.heappush(self._waiting, (-size, self._added, batch, answer))
        return answer

    def work(self) -> None:
        """Compile one of those that wait."""
        with self._lock:
            _, _, batch, answer = heapq.heappop(self._waiting)
        try:
            answer.set_result(self._compiled(batch))
        except BaseException as error:  # noqa: BLE001 - whoever waits for the answer gets it
            answer.set_exception(error)


@cache
def compiler_identity(interpreter: str) -> str:
    """``Compiler.identity`` of the interpreter with that identity, without starting it."""
    recipe = {
        "interpreter": interpreter,
        "worker": str(Digest.of(_worker().encode())),
        "batch": [_BATCH_FILES, _BATCH_SIZE, _MAX_SOURCE],
    }
    return str(Digest.of(canonical_json(recipe)))


def compiled_path(path: str, cache_tag: str) -> str:
    """Where the .pyc of the module at tree path ``path`` goes (PEP 3147)."""
    parent, _, name = path.rpartition("/")
    return f"{parent}/__pycache__/{name.removesuffix('.py')}.{cache_tag}.pyc"


def is_compilable(path: str, cache_tag: str) -> bool:
    """Whether a .pyc of the module at tree path ``path`` can be a file: its name is longer than the module's."""
    encoded = compiled_path(path, cache_tag).encode("utf-8", "surrogateescape")
    return len(encoded) < PATH_MAX and len(encoded.rpartition(b"/")[2]) <= NAME_MAX


def compile_entries(modules: Iterable[Entry], compiler: Compiler) -> Iterator[Entry]:
    """A .pyc for each of ``modules`` that compiles, beside it, sorted by its path, with the module's owner.

    Give it the modules of one artefact at a time: what is compiled together decides the bytes.

    Raises:
        whatever reading a module or ``compiler`` raises.
    """
    chosen = [entry for entry in modules if stat.S_ISREG(entry.mode) and not entry.link and entry.size <= _MAX_SOURCE]
    chosen = [entry for entry in chosen if is_compilable(entry.path, compiler.cache_tag)]
    chosen.sort(key=lambda entry: entry.path.encode("utf-8", "surrogateescape"))
    compiled = compiler.compile(("/" + entry.path, _read(entry)) for entry in chosen)
    for entry, data in zip(chosen, compiled, strict=True):
        if data is not None:
            yield file(compiled_path(entry.path, compiler.cache_tag), data)


def debian_modules(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Of the entries of a .deb, the modules that its maintainer script would compile."""
    for entry in entries:
        if entry.path.endswith(".py") and entry.path.startswith(_DEBIAN_MODULES):
            yield entry


def _batches(sources: Iterable[tuple[str, bytes]]) -> Iterator[list[tuple[str, bytes]]]:
    batch: list[tuple[str, bytes]] = []
    size = 0
    for source in sources:
        batch.append(source)
        size += len(source[1])
        if len(batch) >= _BATCH_FILES or size >= _BATCH_SIZE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _question(name: str, source: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    encoded = name.encode("utf-8", "surrogateescape")
    return len(encoded).to_bytes(4, "little"), len(source).to_bytes(4, "little"), encoded, source


def _answers(data: bytes) -> Iterator[bytes | None]:
    at = 0
    while at + 4 <= len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        if at + 4 + size > len(data):
            return
        yield data[at + 4 : at + 4 + size] or None
        at += 4 + size


def _read(entry: Entry) -> bytes:
    if entry.open is None:
        return b""
    with entry.open() as stream:
        return stream.read()


def _worker() -> str:
    return files("envbuilder.layer").joinpath("compile_worker.py").read_text("utf-8")
