"""Commands of a Python package: entry points and packaged scripts, byte for byte as pip makes them.

Generated for the prefix they will run in, never copied from an installation: an installed
shebang names the interpreter of the machine that built (build.md 2.2).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from envbuilder.errors import IntegrityError
from envbuilder.paths import UnsafePath, file_name

#: Longest first line that every Linux honours: BINPRM_BUF_SIZE was 128 before Linux 5.1 (binfmt_script.c).
_SHEBANG_MAX = 127
#: Sections of entry_points.txt that become commands (packaging.python.org, "Entry points specification").
_GROUPS = ("console_scripts", "gui_scripts")
_REFERENCE = re.compile(r"(?P<module>\w+(?:\.\w+)*)\s*:\s*(?P<attribute>\w+(?:\.\w+)*)\s*(?:\[.*\])?\Z")
#: Endings by which old tools made wrappers that an entry point replaces (pip: is_entrypoint_wrapper).
_WRAPPER_ENDINGS = (".exe", "-script.py", ".pya")
# pip's PipScriptMaker.script_template.
_TEMPLATE = """\
import sys
from {module} import {name}
if __name__ == '__main__':
    sys.argv[0] = sys.argv[0].removesuffix('.exe')
    sys.exit({attribute}())
"""


class BadEntryPoint(IntegrityError):
    """An entry point of a wheel has no callable, or its name is no file name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryPoint:
    """A command ``name`` that calls ``attribute`` of ``module``."""

    name: str
    module: str
    attribute: str


def parse_entry_points(data: bytes, *, source: str) -> tuple[EntryPoint, ...]:
    """The console and GUI commands that entry_points.txt declares, sorted by name.

    Of one name in both groups the GUI's wins, as with pip, which writes it last.

    Raises:
        BadEntryPoint: not UTF-8, or a command that cannot be made.
    """
    try:
        lines = data.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise BadEntryPoint(f"{source}: entry_points.txt: {error}") from error
    found: dict[str, dict[str, EntryPoint]] = {group: {} for group in _GROUPS}
    group = ""
    for raw in lines:
        line = raw.strip()
        if line.startswith("[") and line.endswith("]"):
            group = line[1:-1].strip()
        elif line and not line.startswith(("#", ";")) and group in found:
            name, _, value = (part.strip() for part in line.partition("="))
            found[group][name] = _entry_point(name, value, source)
    merged = {**found["console_scripts"], **found["gui_scripts"]}
    return tuple(merged[name] for name in sorted(merged))


def for_python(entry_points: tuple[EntryPoint, ...], version: str) -> Iterator[EntryPoint]:
    """``entry_points`` with those of pip and easy_install as Python ``version`` wants them.

    Their wheels serve every Python, so the versioned names in them are those of the machine
    that made the wheel (pip: get_console_script_specs).
    """
    for stem, dash, aliases in (("pip", "", ("pip", "pip3", f"pip{version}")), ("easy_install", "-", ())):
        original = next((entry for entry in entry_points if entry.name == stem), None)
        if original is None:
            continue
        names = aliases or (stem, f"{stem}-{version}")
        yield from (EntryPoint(name=name, module=original.module, attribute=original.attribute) for name in names)
        versioned = re.compile(rf"{stem}({dash}\d+(\.\d+)?)?\Z")
        entry_points = tuple(entry for entry in entry_points if not versioned.match(entry.name))
    yield from entry_points


def is_wrapper(name: str, entry_points: tuple[EntryPoint, ...]) -> bool:
    """Whether the packaged script ``name`` is a wrapper that an entry point replaces."""
    ending = next((ending for ending in _WRAPPER_ENDINGS if name.lower().endswith(ending)), "")
    stem = name[: -len(ending)] if ending else name
    return any(entry.name == stem for entry in entry_points)


def shebang(interpreter: str) -> bytes:
    """The first line that starts ``interpreter``, an absolute path; for long paths a trampoline.

    The trampoline is shell and Python at once: sh runs the second line, Python sees a string (distlib).
    """
    line = f"#!{interpreter}\n".encode()
    if len(line) <= _SHEBANG_MAX and b" " not in line:
        return line
    quoted = f'"{interpreter}"' if " " in interpreter else interpreter
    return f"#!/bin/sh\n'''exec' {quoted} \"$0\" \"$@\"\n' '''\n".encode()


def command(entry_point: EntryPoint, interpreter: str) -> bytes:
    """The script that runs ``entry_point``."""
    text = _TEMPLATE.format(
        module=entry_point.module, name=entry_point.attribute.partition(".")[0], attribute=entry_point.attribute
    )
    return shebang(interpreter) + text.encode()


def needs_interpreter(head: bytes) -> bool:
    """Whether the first line of a script that starts with ``head`` stands for the interpreter (``#!pythonw`` too)."""
    return head.startswith(b"#!python")


def with_interpreter(script: bytes, interpreter: str) -> bytes:
    """``script`` with its first line replaced; its arguments are dropped, as by pip."""
    return shebang(interpreter) + script.partition(b"\n")[2]


def _entry_point(name: str, value: str, source: str) -> EntryPoint:
    match = _REFERENCE.match(value)
    try:
        if match:
            return EntryPoint(name=file_name(name, source=source), module=match["module"], attribute=match["attribute"])
    except UnsafePath as error:
        raise BadEntryPoint(f"{source}: entry_points.txt: {name[:200]!r} is no file name") from error
    raise BadEntryPoint(f"{source}: entry_points.txt: {name[:200]!r}: want module:callable, got {value[:200]!r}")
