import pytest

from envbuilder.layer.debian.control import parse_control
from envbuilder.layer.debian.system import System, _children
from envbuilder.layer.tree import DIRECTORY, FILE, SYMLINK, Placed


def control(name, *, version="1", architecture="all", fields="", **members):
    text = f"Package: {name}\nVersion: {version}\nArchitecture: {architecture}\n{fields}"
    files = {member: (0o755, content.encode()) for member, content in members.items()}
    return parse_control({"control": (0o644, text.encode()), **files}, source=name)


def placed(path, *, link="", soname="", flags=0):
    mode = SYMLINK | 0o777 if link else DIRECTORY | 0o755 if path.endswith("/") else FILE | 0o644
    return Placed(path=path.rstrip("/"), mode=mode, link=link, soname=soname, elf_flags=flags)


def system(*controls, tree=(), contents=None, conffiles=None):
    paths = {item.path: item for item in tree}
    return System(
        controls={item.package: item for item in controls},
        conffiles=conffiles or {},
        contents={path: text.encode() for path, text in (contents or {}).items()},
        tree=paths,
        children=_children(paths),
    )


@pytest.fixture(name="control")
def control_fixture():
    return control


@pytest.fixture(name="placed")
def placed_fixture():
    return placed


@pytest.fixture(name="system")
def system_fixture():
    return system


@pytest.fixture
def text_of():
    def read(entries, path):
        return next(entry for entry in entries if entry.path == path).open().read().decode()

    return read
