"""The architecture as a test: imports follow the data flow, and each room stays a room."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent / "envbuilder"
ORDER = [
    "errors", "digest", "paths", "proc", "oci", "store", "spec", "lock", "layer", "image", "registry", "custom", "resolve",
    "mount", "session", "testing", "cli", "__main__",
]  # fmt: skip
#: Lines a file may have before its docstring must give the reason (style.md C1).
MAX_LINES = 400
PURE = ["oci", "spec/model.py", "spec/parse.py", "lock/model.py", "lock/partition.py", "layer/tree.py", "layer/model.py", "layer/plan.py", "image/assemble.py"]  # fmt: skip
WORLD = {"os", "socket", "subprocess", "time", "random", "urllib3", "tempfile", "shutil"}


def imported(file: Path) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module or "", node.module or ""
            for name in node.names:
                yield f"{node.module}.{name.name}", node.module or ""
        elif isinstance(node, ast.Import):
            for name in node.names:
                yield name.name, name.name


def top(file: Path) -> str:
    return file.relative_to(ROOT).parts[0].removesuffix(".py")


def test_imports_follow_the_data_flow():
    bad = {
        f"{file.relative_to(ROOT)} imports {name}"
        for file in sorted(ROOT.rglob("*.py"))
        if top(file) != "__init__"
        for name, _ in imported(file)
        if name.startswith("envbuilder.")
        for part in [name.split(".")[1]]
        if part in ORDER and ORDER.index(part) > ORDER.index(top(file))
    }

    assert bad == set()


def test_pure_modules_do_not_import_the_outside_world():
    files = [
        file
        for part in PURE
        for file in ([ROOT / part] if part.endswith(".py") else sorted((ROOT / part).rglob("*.py")))
    ]

    bad = {
        f"{file.relative_to(ROOT)} imports {name}"
        for file in files
        for name, _ in imported(file)
        if name.split(".")[0] in WORLD
    }

    assert files
    assert bad == set()


def test_a_long_file_gives_its_reason():
    long = [
        str(file.relative_to(ROOT))
        for file in sorted(ROOT.rglob("*.py"))
        if len(file.read_text().splitlines()) > MAX_LINES
        and "one room" not in (ast.get_docstring(ast.parse(file.read_text())) or "")
    ]

    assert long == []


def test_every_package_says_what_it_is():
    silent = [
        str(file.relative_to(ROOT))
        for file in sorted(ROOT.rglob("*.py"))
        if not ast.get_docstring(ast.parse(file.read_text()))
    ]

    assert silent == []
