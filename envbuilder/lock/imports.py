"""Other tools' files as a declaration: what is asked for by name, and every version they chose as a constraint.

uv.lock, pylock.toml, requirements files (what pip-compile wrote too) and the pip section of a conda environment. The
versions stand as constraints: the first lock takes them, and whoever then removes one lets that package move.
What has no place in a declaration (a URL, a path, an editable project, a conda package) is left out and said.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from packaging.markers import InvalidMarker
from packaging.pylock import Pylock, PylockValidationError

from envbuilder.errors import SpecErrors
from envbuilder.lock.import_draft import OPTIONAL, CannotImport, Draft, Imported, add_requirement
from envbuilder.lock.import_requirements import requirements
from envbuilder.lock.import_words import oldest_python, unquoted, without_secrets
from envbuilder.spec.toml import parse_toml, read_document

#: Bytes of a file to import; a uv.lock of 400 packages for all platforms has 1.5 MB.
MAX_SIZE = 64 << 20
_URL = "comes from a URL or a path: give a wheel of it an index"


def read_import(file: Path) -> Imported:
    """What ``file`` asks for; its kind is told by name and content.

    Raises:
        CannotImport: it is of no kind that is known, or damaged. SpecError: it cannot be read.
    """
    text = _text(file)
    if file.suffix == ".toml" or file.name == "uv.lock":
        try:
            document = parse_toml(text, source=file.name)
        except SpecErrors as error:
            raise CannotImport(str(error)) from error
        try:
            return _pylock(document) if "lock-version" in document else _uv_lock(document, file.name)
        except (KeyError, TypeError, AttributeError, PylockValidationError, InvalidMarker) as error:
            raise CannotImport(f"{file.name}: neither a pylock.toml nor a uv.lock: {error!r}") from error
    if file.suffix in (".yml", ".yaml"):
        return _conda(text, file)
    imported = requirements(file, text)
    if imported.left_out and not imported.requires and not imported.constraints:
        what, why = imported.left_out[0]
        raise CannotImport(
            f"{file.name}: want requirements, got none among {len(imported.left_out)} lines; the first: {what}: {why}",
            hint="Name a uv.lock, pylock.toml, requirements file or environment.yml.",
        )
    return imported


def _text(file: Path) -> str:
    data = read_document(file, most=MAX_SIZE, source=str(file))
    if data is None:
        raise CannotImport(f"{file}: no such file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CannotImport(f"{file}: not UTF-8: {error.reason} at byte {error.start}") from error


def _pylock(document: Mapping[str, Any]) -> Imported:
    lock, draft = Pylock.from_dict(document), Draft()
    for package in lock.packages:
        if package.version is None or not (package.wheels or package.sdist):
            draft.leave(package.name, "has no version or no file of an index")
            continue
        marker = str(package.marker or "")
        draft.pin(package.name, str(package.version), marker)
        # PEP 751 does not say who was asked for by name: all of them are.
        draft.require(package.name + (f" ; {marker}" if marker else ""))
    return draft.done(oldest_python(str(lock.requires_python or "")))


def _uv_lock(document: Mapping[str, Any], source: str) -> Imported:
    if not isinstance(document.get("package"), list):
        raise CannotImport(f"{source}: want a pylock.toml or a uv.lock, got neither")
    draft = Draft()
    for package in document["package"]:
        origin = package.get("source") or {}
        if "registry" in origin:
            markers = " or ".join(f"({marker})" for marker in package.get("resolution-markers", ()))
            draft.pin(package["name"], package["version"], markers)
        elif origin.keys() & {"virtual", "editable", "directory"}:
            for each in (package.get("metadata") or {}).get("requires-dist", ()):
                if each.keys() & {"git", "url", "path", "editable", "directory"}:
                    draft.leave(each["name"], _URL)
                else:
                    draft.require(_uv_requirement(each))
            for group in ((package.get("metadata") or {}).get("requires-dev") or {}).values():
                for each in group:
                    draft.leave(each["name"], OPTIONAL)
        else:
            draft.leave(package["name"], _URL)
    return draft.done(oldest_python(str(document.get("requires-python") or "")))


def _uv_requirement(each: Mapping[str, Any]) -> str:
    extras = f"[{','.join(each['extras'])}]" if each.get("extras") else ""
    marker = f" ; {each['marker']}" if each.get("marker") else ""
    return f"{each['name']}{extras}{each.get('specifier', '')}{marker}"


def _conda(text: str, file: Path) -> Imported:
    """The ``pip:`` list below ``dependencies:``, one item a line as conda writes it; other styles are refused."""
    draft, python, section, indent = Draft(), "", "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = re.sub(r"(^|\s)#.*", "", raw).rstrip()
        if not line:
            continue
        depth = len(line) - len(line.lstrip())
        item = line.strip()
        if not item.startswith("-"):
            if depth and section in ("dependencies", "pip"):
                raise CannotImport(f"{file.name}:{number}: want '- item' lines, got {without_secrets(item)[:60]!r}")
            if depth:
                continue
            section, _, rest = item.partition(":")
            if section == "variables":
                draft.leave(section, "variables of the environment: write them below [env]")
            if section == "dependencies" and rest.strip():
                raise CannotImport(f"{file.name}:{number}: want one dependency a line")
        elif section in ("dependencies", "pip"):
            word = unquoted(item[1:].strip())
            if section == "pip" and depth > indent:
                if word.startswith("-"):
                    draft.leave(word, "an option of pip")
                else:
                    add_requirement(word, draft)
            elif word == "pip:":
                section, indent = "pip", depth
            elif word.startswith("pip:"):
                raise CannotImport(f"{file.name}:{number}: want one dependency a line")
            else:
                section = "dependencies"
                if match := re.match(r"python\s*([<>=!~ ].*)", word):
                    python = oldest_python(re.sub(r"\s+|^=+", "", match[1]))
                draft.leave(word, "a conda package")
    return draft.done(python)


#: Python of each Debian suite: what an imported environment may stand on.
SUITES = {"3.9": "bullseye", "3.11": "bookworm", "3.13": "trixie"}


def declaration(imported: Imported, name: str, *, extends: str = "", source: str) -> str:
    """An env.toml that asks for the same."""
    python = imported.python if imported.python in SUITES else "3.13"
    lines = [f"# Imported from {source}. A constraint that is removed lets its package move at the next upgrade."]
    lines += [f"# Left out: {what}: {why}".replace("\n", " ") for what, why in imported.left_out]
    if not extends and imported.python not in ("", python):
        lines.append(f"# Was made for Python {imported.python}, which no Debian suite known here brings.")
    lines += [f'name = "{name}"', 'version = "1"']
    lines += [f'extends = "{extends}"'] if extends else [f'python = "{python}"']
    lines += _array("requires", imported.requires) + _array("constraints", imported.constraints)
    if not extends:
        packages = ("ca-certificates", "libstdc++6")
        lines += ["", "[base]", f'suite = "{SUITES[python]}"', *_array("packages", packages)]
    return "\n".join(lines) + "\n"


def _array(key: str, values: tuple[str, ...]) -> list[str]:
    return [f"{key} = [", *(f"    {_string(value)}," for value in values), "]"] if values else []


def _string(value: str) -> str:
    return "'" + value + "'" if '"' in value and "'" not in value else '"' + value.replace('"', "'") + '"'
