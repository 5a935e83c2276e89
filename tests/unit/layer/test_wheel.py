import base64
import csv
import hashlib
import io
import stat
from dataclasses import replace

import pytest

from envbuilder.digest import Digest
from envbuilder.layer.claims import Conflict, check_conflicts
from envbuilder.layer.prefix import prefix_claims
from envbuilder.layer.scripts import BadEntryPoint
from envbuilder.layer.wheel import NotThere, wheel_claims, wheel_entries
from envbuilder.layer.wheel_file import BadWheel
from envbuilder.layer.wheel_record import BadRecord, dump_record, parse_record
from envbuilder.lock.model import Interpreter
from envbuilder.testing.artifacts import locked_wheel, make_wheel, store_file
from envbuilder.testing.zoo import wheel_zoo

PYTHON = Interpreter(version="3.13", tag="cp313")
SITE = "opt/env/lib/python3.13/site-packages"


class Upper:
    """A compiler whose .pyc is easy to tell; a source with 'print >>' does not compile."""

    identity = "upper"
    cache_tag = "cpython-313"

    def compile(self, sources):
        for path, source in sources:
            yield None if b"print >>" in source else path.encode() + b" " + source.upper()


@pytest.fixture
def tree(tmp_path):
    def make(data, name="pkg", compiler=None, **options):
        wheel = locked_wheel(name, data)
        found = list(wheel_entries(store_file(tmp_path, data), wheel, python=PYTHON, compiler=compiler, **options))
        assert len(found) == len({entry.path for entry in found})
        return {entry.path: entry for entry in found}

    return make


def content(entry):
    if entry.open is None:
        return b""
    with entry.open() as stream:
        return stream.read()


def record_of(tree):
    (path,) = [path for path in tree if path.endswith(".dist-info/RECORD")]
    return {row[0]: tuple(row[1:]) for row in csv.reader(io.StringIO(content(tree[path]).decode()))}


def test_modules_go_to_site_packages_with_root_as_owner_and_plain_modes(tree):
    found = tree(make_wheel("pkg", files={"pkg/__init__.py": b"x = 1\n", "pkg/run": b"#!"}, executable=["pkg/run"]))
    module, program = found[f"{SITE}/pkg/__init__.py"], found[f"{SITE}/pkg/run"]

    assert content(module) == b"x = 1\n"
    assert (module.mode, program.mode) == (stat.S_IFREG | 0o644, stat.S_IFREG | 0o755)
    assert {(entry.uid, entry.gid) for entry in found.values()} == {(0, 0)}


def test_every_data_scheme_goes_to_its_place(tree):
    found = tree(
        make_wheel(
            "pkg",
            files={
                "{data}/purelib/a.py": b"a",
                "{data}/platlib/b.so": b"b",
                "{data}/scripts/run": b"\x7fELF",
                "{data}/headers/sub/c.h": b"c",
                "{data}/data/share/d.txt": b"d",
                "{data}/data/lib64/e.txt": b"e",
            },
        )
    )

    assert {path for path in found if ".dist-info/" not in path} == {
        f"{SITE}/a.py",
        f"{SITE}/b.so",
        "opt/env/bin/run",
        "opt/env/include/site/python3.13/pkg/sub/c.h",
        "opt/env/share/d.txt",
        "opt/env/lib/e.txt",
    }
    assert stat.S_IMODE(found["opt/env/bin/run"].mode) == 0o755


def test_packaged_scripts_start_the_interpreter_of_the_prefix(tree):
    found = tree(
        make_wheel(
            "pkg",
            files={
                "{data}/scripts/run": b"#!python -u\nprint()\n",
                "{data}/scripts/win": b"#!pythonw\r\nx",
                "{data}/scripts/sh": b"#!/bin/sh\n",
            },
        )
    )

    assert content(found["opt/env/bin/run"]) == b"#!/opt/env/bin/python3\nprint()\n"
    assert content(found["opt/env/bin/win"]) == b"#!/opt/env/bin/python3\nx"
    assert content(found["opt/env/bin/sh"]) == b"#!/bin/sh\n"


def test_entry_points_become_commands_and_replace_packaged_wrappers(tree):
    found = tree(
        make_wheel(
            "pkg",
            files={"{data}/scripts/run-script.py": b"old", "{data}/scripts/other": b"kept"},
            entry_points="[console_scripts]\nrun = pkg.cli:main\n[gui_scripts]\nshow = pkg:App.start [gui]\n",
        )
    )

    assert sorted(path for path in found if "/bin/" in path) == [f"opt/env/bin/{n}" for n in ("other", "run", "show")]
    assert content(found["opt/env/bin/show"]) == (
        b"#!/opt/env/bin/python3\nimport sys\nfrom pkg import App\nif __name__ == '__main__':\n"
        b"    sys.argv[0] = sys.argv[0].removesuffix('.exe')\n    sys.exit(App.start())\n"
    )
    assert stat.S_IMODE(found["opt/env/bin/run"].mode) == 0o755


def test_record_lists_what_is_installed_with_true_digests(tree):
    files = {"pkg/a.py": b"a", "{data}/scripts/run": b"#!python\n", "{data}/data/etc/x,y": b"z"}
    found = tree(make_wheel("pkg", files=files, entry_points="[console_scripts]\ngo=pkg:go\n"), compiler=Upper())
    record = record_of(found)

    assert {f"{SITE}/{path}" if not path.startswith("../") else "opt/env/" + path[9:] for path in record} == set(found)
    for path, entry in found.items():
        name = path.removeprefix(SITE + "/") if path.startswith(SITE) else "../../../" + path.removeprefix("opt/env/")
        if path.endswith(("/RECORD", ".pyc")):
            assert record[name] == ("", "")
        else:
            digest = base64.urlsafe_b64encode(hashlib.sha256(content(entry)).digest()).rstrip(b"=").decode()
            assert record[name] == (f"sha256={digest}", str(entry.size))


def test_the_installer_is_named_and_what_only_installers_write_is_not_taken_from_the_wheel(tree):
    files = {"{info}/INSTALLER": b"evil", "{info}/REQUESTED": b"", "{info}/direct_url.json": b"{}"}
    found = tree(make_wheel("pkg", files=files))
    info = f"{SITE}/pkg-1.0.dist-info"

    assert content(found[f"{info}/INSTALLER"]) == b"envbuilder\n"
    assert set(found) == {f"{info}/{name}" for name in ("INSTALLER", "METADATA", "RECORD", "WHEEL")}


def test_modules_that_compile_get_a_pyc_and_others_none(tree):
    files = {
        "pkg/a.py": b"a",
        "pkg/old.py": b"print >>f",
        "pkg/empty.py": b"",
        "{data}/scripts/run.py": b"r",
        "{data}/data/x.py": b"",
        "pkg/__pycache__/a.cpython-313.pyc": b"stale",
        "pkg/__pycache__/a.cpython-312.pyc": b"other",
    }
    found = tree(make_wheel("pkg", files=files), compiler=Upper())

    assert {path: content(entry) for path, entry in found.items() if path.endswith("313.pyc")} == {
        f"{SITE}/pkg/__pycache__/a.cpython-313.pyc": f"/{SITE}/pkg/a.py A".encode(),
        f"{SITE}/pkg/__pycache__/empty.cpython-313.pyc": f"/{SITE}/pkg/empty.py ".encode(),
    }
    assert content(found[f"{SITE}/pkg/__pycache__/a.cpython-312.pyc"]) == b"other"


def test_a_module_whose_pyc_could_have_no_name_is_installed_without_one(tree, claims):
    data = make_wheel("pkg", files={"n" * 239 + ".py": b"a", "n" * 240 + ".py": b"b"})

    found = tree(data, compiler=Upper())

    assert [path for path in found if path.endswith(".pyc")] == [f"{SITE}/__pycache__/{'n' * 239}.cpython-313.pyc"]
    assert found.keys() == claims("pkg", data).keys()


def test_pip_gets_the_command_names_of_the_images_python(tree):
    points = "[console_scripts]\npip = pip:main\npip3 = pip:main\npip3.9 = pip:main\n"
    found = tree(make_wheel("pip", entry_points=points), name="pip")

    assert sorted(path for path in found if "/bin/" in path) == [f"opt/env/bin/pip{n}" for n in ("", "3", "3.13")]


def test_another_prefix_moves_everything(tree):
    found = tree(make_wheel("pkg", entry_points="[console_scripts]\ngo=pkg:go\n"), prefix="srv/x")

    assert all(path.startswith("srv/x/") for path in found)
    assert content(found["srv/x/bin/go"]).startswith(b"#!/srv/x/bin/python3\n")


def test_large_files_are_streamed_and_can_be_opened_again(tree):
    data = bytes(range(256)) * (5 << 12)
    entry = tree(make_wheel("pkg", files={"pkg/big.so": data}))[f"{SITE}/pkg/big.so"]

    assert entry.size == len(data)
    assert content(entry) == content(entry) == data


def test_longer_digests_in_record_are_checked_and_become_sha256(tree):
    def record(payload):
        digest = base64.urlsafe_b64encode(hashlib.sha512(payload).digest()).rstrip(b"=").decode()
        rows = [f"pkg/a.py,sha512={digest},1"]
        for name, data in (("METADATA", METADATA), ("WHEEL", WHEEL)):
            text = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()
            rows.append(f"pkg-1.0.dist-info/{name},sha256={text},")
        return "\n".join(rows).encode()

    found = tree(make_wheel("pkg", files={"pkg/a.py": b"a"}, record=record(b"a")))

    assert record_of(found)["pkg/a.py"][0].startswith("sha256=")
    with pytest.raises(BadRecord, match=r"pkg/a\.py"):
        tree(make_wheel("pkg", files={"pkg/a.py": b"a"}, record=record(b"b")))


METADATA = b"Metadata-Version: 2.1\nName: pkg\nVersion: 1.0\n"
WHEEL = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@pytest.fixture
def claims(tmp_path):
    return lambda name, data: wheel_claims(store_file(tmp_path, data), locked_wheel(name, data), python=PYTHON)


def test_claims_name_the_paths_and_bytes_of_the_entries_without_reading_them(claims, tree):
    data = make_wheel("pkg", files={"pkg/a.py": b"a", "{data}/scripts/run": b"#!python\nx"}, executable=["pkg/a.py"])
    found, claimed = tree(data, compiler=Upper()), claims("pkg", data)

    assert claimed.keys() == found.keys()
    assert {path: (claim.digest.hex, claim.mode) for path, claim in claimed.items() if "a.py" in path} == {
        f"{SITE}/pkg/a.py": (hashlib.sha256(b"a").hexdigest(), 0o755)
    }
    assert claimed["opt/env/bin/run"].digest.hex == hashlib.sha256(content(found["opt/env/bin/run"])).hexdigest()
    assert not claimed.keys() & prefix_claims("opt/env", PYTHON).keys()


@pytest.mark.parametrize(
    "path", ["pkg/a.py", "pkg-1.0.dist-info/RECORD", "pkg/__pycache__/a.cpython-313.pyc", "pkg/a.py/x", "pkg"]
)
def test_no_wheel_may_take_what_is_anothers(claims, path):
    victim = make_wheel("pkg", files={"pkg/a.py": b"a"})
    other = make_wheel("other", files={f"{{data}}/data/lib/python3.13/site-packages/{path}": b"mine"})

    with pytest.raises(Conflict, match=r"pkg.* and other|in other.* in pkg|in pkg.* in other"):
        check_conflicts([("pkg", claims("pkg", victim)), ("other", claims("other", other))])


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"{data}/bogus/x": b""}, "scheme"),
        ({"{data}/x": b""}, "scheme"),
        ({"other-2.dist-info/METADATA": b""}, "one .dist-info"),
        ({"{data}/purelib/a.py": b"1", "a.py": b"2"}, "two different files"),
    ],
)
def test_a_wheel_with_files_that_belong_nowhere_is_refused(tree, files, message):
    with pytest.raises(BadWheel, match=message):
        tree(make_wheel("pkg", files=files))


@pytest.mark.parametrize(("text", "got"), [(b"Wheel-Version: 2.0\n", "2.0"), (b"", "none")])
def test_another_version_of_the_wheel_format_is_refused(tree, text, got):
    with pytest.raises(BadWheel, match=f"want Wheel-Version 1.x, got {got}"):
        tree(make_wheel("pkg", wheel_file=text))


def test_a_wheel_of_another_package_is_refused(tree):
    with pytest.raises(BadWheel, match="want a wheel of other, got one with 'pkg-1"):
        tree(make_wheel("pkg"), name="other")


def test_equal_files_at_one_path_are_one_file(tree):
    found = tree(make_wheel("pkg", files={"{data}/purelib/a.py": b"1", "a.py": b"1"}))

    assert content(found[f"{SITE}/a.py"]) == b"1"


@pytest.mark.parametrize("value", ["pkg", "pkg:", "pkg:a b", "pkg:a);import os", ":main", "a..b:c"])
def test_an_entry_point_without_a_callable_is_refused(tree, value):
    with pytest.raises(BadEntryPoint, match="want module:callable"):
        tree(make_wheel("pkg", entry_points=f"[console_scripts]\ngo = {value}\n"))


@pytest.mark.parametrize("name", ["../go", "a/b", ".", "..", ""])
def test_an_entry_point_whose_name_is_no_file_name_is_refused(tree, name):
    with pytest.raises(BadEntryPoint, match="no file name"):
        tree(make_wheel("pkg", entry_points=f"[console_scripts]\n{name} = pkg:go\n"))


def test_a_wheel_from_an_index_has_no_direct_url_even_if_it_brought_one(tmp_path):
    # PEP 610: only of what was installed from a direct reference, which a lock never has.
    (specimen,) = (each for each in wheel_zoo() if each.name == "record")
    path = tmp_path / "record.whl"
    path.write_bytes(specimen.data)
    entries = {entry.path: entry for entry in wheel_entries(path, locked_wheel("record", specimen.data), python=PYTHON)}
    record = next(entry for name, entry in entries.items() if name.endswith("/RECORD")).open().read()

    assert not [name for name in entries if name.endswith(("direct_url.json", "REQUESTED"))]
    assert b"direct_url.json" not in record
    assert (
        next(entry for name, entry in entries.items() if name.endswith("/INSTALLER")).open().read() == b"envbuilder\n"
    )


def wrongly_recorded():
    """A wheel whose RECORD has another size, another digest, and misses a file."""
    files = {"pkg/a.py": b"a = 1\n", "pkg/b.bin": b"bytes", "pkg/c.py": b""}
    wheel_file = b"Wheel-Version: 1.0\n"
    rows = [("pkg/a.py", Digest.of(b"a = 1\n"), 7), ("pkg/b.bin", Digest.of(b"other"), 5)]
    record = dump_record([*rows, ("pkg-1.0.dist-info/WHEEL", Digest.of(wheel_file), len(wheel_file))])
    return make_wheel("pkg", files=files, record=record, wheel_file=wheel_file)


def test_a_wrong_record_is_refused_and_the_way_out_is_told(tree):
    with pytest.raises(BadRecord, match="RECORD wants 7 bytes, the archive has 6") as caught:
        tree(wrongly_recorded())
    assert "name it in allow-records" in caught.value.hint


def test_where_a_wrong_record_is_allowed_the_files_are_the_locked_ones_and_the_written_record_is_true(tmp_path):
    data = wrongly_recorded()
    path = tmp_path / "pkg.whl"
    path.write_bytes(data)
    wheel = replace(locked_wheel("pkg", data), recorded=False)
    entries = {entry.path: entry for entry in wheel_entries(path, wheel, python=PYTHON)}
    site = "opt/env/lib/python3.13/site-packages"
    record = parse_record(entries[f"{site}/pkg-1.0.dist-info/RECORD"].open().read(), source="written")

    assert entries[f"{site}/pkg/b.bin"].open().read() == b"bytes"
    assert record["pkg/a.py"].size == 6
    assert record["pkg/b.bin"].matches(b"bytes")
    assert "pkg/c.py" in record
    assert {claim for claim in wheel_claims(path, wheel, python=PYTHON) if not claim.endswith(".pyc")} == {*entries}


def test_a_file_that_is_left_out_is_neither_installed_nor_compiled_nor_recorded(tmp_path):
    data = make_wheel("pkg", files={"pkg/a.py": b"", "b.py": b"1\n", "{data}/scripts/go": b"#!/bin/sh\n"})
    path = tmp_path / "pkg.whl"
    path.write_bytes(data)
    wheel = replace(locked_wheel("pkg", data), without=("../../../bin/go", "b.py"))
    entries = {entry.path: entry for entry in wheel_entries(path, wheel, python=PYTHON, compiler=Upper())}

    assert not [path for path in entries if path.endswith(("/b.py", "bin/go")) or "b.cpython" in path]
    assert f"{SITE}/pkg/a.py" in entries
    assert b"b.py" not in content(entries[f"{SITE}/pkg-1.0.dist-info/RECORD"])
    assert not [path for path in wheel_claims(path, wheel, python=PYTHON) if path.endswith(("/b.py", "bin/go"))]
    with pytest.raises(NotThere, match=r"it installs no 'c\.py'"):
        list(wheel_entries(path, replace(wheel, without=("c.py",)), python=PYTHON))
