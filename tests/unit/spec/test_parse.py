"""env.toml to EnvSpec."""

from dataclasses import replace

import pytest

from envbuilder.digest import Digest
from envbuilder.errors import SpecError, SpecErrors
from envbuilder.oci.platform import Platform
from envbuilder.spec.model import Base, Cuda, EnvSpec, FileRule, Support, System
from envbuilder.spec.parse import parse

SMALL = """
name = "x"
version = "1"
python = "3.13"
[base]
suite = "trixie"
"""


def parsed(text: str, files: dict[str, bytes] | None = None) -> EnvSpec:
    held = {name: Digest.of(data) for name, data in (files or {}).items()}
    return parse(text, file="env.toml", digest_of=held.get)


def problems(text: str, files: dict[str, bytes] | None = None) -> list[str]:
    with pytest.raises(SpecErrors) as caught:
        parsed(text, files)
    return list(caught.value.problems)


def test_every_key_arrives_in_the_spec():
    spec = parsed(
        """
        name = "ai"
        version = "2"
        python = "3.13"
        platforms = ["linux/arm64", "linux/x86_64"]
        requires = ["Torch>=2", "numpy"]
        constraints = ["numpy<3"]
        extra-indexes = ["pytorch-cu130"]
        [base]
        suite = "trixie"
        packages = ["gcc", "ca-certificates"]
        [cuda]
        toolkit = "13.2"
        minimum-driver = "580.65.06"
        accelerators = ["9.0"]
        [[files]]
        source = "files/motd"
        path = "/etc/motd"
        mode = "0600"
        [env]
        B = "2"
        A = "1"
        [start]
        commands = ["python -c 'import torch'", ["a", "b c"]]
        [support]
        released = 2026-11-30
        ends = 2029-11-30
        """,
        {"files/motd": b"hello"},
    )

    assert spec == EnvSpec(
        name="ai",
        version="2",
        python="3.13",
        platforms=(Platform("aarch64"), Platform("x86_64")),
        requires=("numpy", "torch>=2"),
        constraints=("numpy<3",),
        extra_indexes=("pytorch-cu130",),
        base=Base(suite="trixie", packages=("ca-certificates", "gcc")),
        cuda=Cuda(toolkit="13.2", minimum_driver="580.65.06", accelerators=("9.0",)),
        files=(FileRule(source="files/motd", path="etc/motd", mode=0o600, digest=Digest.of(b"hello")),),
        env={"A": "1", "B": "2"},
        start=(("python", "-c", "import torch"), ("a", "b c")),
        support=Support(released="2026-11-30", ends="2029-11-30"),
    )


def test_all_problems_are_reported_at_once_with_their_paths():
    found = problems(
        SMALL.replace("suite", "siute")
        + """
        packages = ["gcc", "Bad Name"]
        [cuda]
        toolkit = 13
        [env]
        "9X" = "1"
        Y = 2
        [start]
        commands = ["'", [], [1]]
        [support]
        released = "soon"
        [[files]]
        source = "gone"
        path = "../x"
        [[files]]
        source = "gone"
        path = "x"
        mode = "rwx"
        """
        + "\n"
    )

    assert found == [
        "base.suite: missing",
        "base.packages[1]: not a Debian package name: 'Bad Name'",
        "base.siute: unknown key; did you mean 'suite'?",
        "cuda.toolkit: want a string, got an integer",
        "files[0].path: not a path inside the tree: '../x'",
        "files[1].mode: not octal permission bits such as '0644': 'rwx'",
        "files[1].source: no such file beside env.toml: 'gone'",
        "env.9X: not a variable name",
        "env.Y: want a string, got an integer",
        "start.commands[0]: not a command line: No closing quotation",
        "start.commands[1]: empty command",
        "start.commands[2]: want a command line or an array of strings, got an array",
        "support.released: want a date such as 2026-11-30, got 'soon'",
    ]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('allow-records = ["a b"]', "allow-records[0]: not the name of a Python package: 'a b'"),
        ('requires = ["a", "numpy=="]', "requires[1]: not a PEP 508 requirement: 'numpy=='"),
        ('requires = ["a @ https://h/a.whl"]', "requires[0]: want a version, not a URL, got 'a' from a URL"),
        (
            "requires = [\"a ; extra == 'gpu'\"]",
            "requires[0]: nothing here is an extra of something, so this would never be installed: \"a ; extra == 'gpu'\"",
        ),
        ('requires = "numpy"', "requires: want an array, got a string"),
        ("requires = [1]", "requires[0]: want a string, got an integer"),
        ('constraints = ["a[b]<1"]', "constraints[0]: a constraint has no extras: 'a[b]<1'"),
        ('extends = "y"', "extends: excludes 'python', base.suite and base.system, which come from the parent"),
        ('require = ["x"]', "require: unknown key; did you mean 'requires'?"),
        ('extra_indexes = ["x"]', "extra_indexes: unknown key; did you mean 'extra-indexes'?"),
        ("zzz = 1", "zzz: unknown key"),
        ("platforms = []", "platforms: want one platform or more"),
        ('platforms = ["mac"]', "platforms[0]: platform: want linux/x86_64 or linux/aarch64, got 'mac'"),
        ("env = 3", "env: want a table, got an integer"),
        ('env = { A = "x\\ny" }', "env.A: want one line"),
    ],
)
def test_a_problem_says_where_it_is_and_what_was_wanted(line, problem):
    assert problems(line + SMALL) == [problem]


def test_a_name_and_a_version_must_fit_their_uses():
    found = problems(SMALL.replace('"x"', '"X_"').replace('"1"', '"a/b"'))

    assert found == [
        "name: not a name of lower-case letters, digits and inner '-': 'X_'",
        "version: not a version that can be a tag: 'a/b'",
    ]


def test_neither_parent_nor_base_is_refused():
    assert problems('name = "x"\nversion = "1"\n') == [
        "want either 'extends' or both 'python' (\"3.13\") and [base] (suite = \"trixie\")"
    ]


def test_an_environment_cannot_extend_itself():
    assert problems('name = "x"\nversion = "1"\nextends = "x"\n') == ["extends: an environment cannot extend itself"]


@pytest.mark.parametrize("number", ["0x" + "f" * 5000, "0x8000000000000000", "-9223372036854775809"])
def test_an_integer_that_toml_does_not_have_is_refused(number):
    assert problems(f'name = "x"\n[support]\nends = [{number}]\n') == ["not TOML: an integer of more than 64 bits"]


def test_text_that_is_no_toml_is_refused_with_its_line():
    (problem,) = problems("name = \n")
    assert problem.startswith("not TOML: ")
    assert "line 1" in problem


def test_a_refused_source_becomes_a_problem():
    def refuse(source: str) -> Digest:
        raise SpecError(f"{source}: leads out")

    with pytest.raises(SpecErrors, match=r"env.toml: a: leads out"):
        parse(SMALL + '[[files]]\nsource = "a"\npath = "b"\n', file="env.toml", digest_of=refuse)


@pytest.mark.parametrize("source", ["/etc/passwd", "a//b", "./a", "a/../../b"])
def test_a_source_is_a_plain_relative_path(source):
    (problem,) = problems(SMALL + f'[[files]]\nsource = "{source}"\npath = "b"\n', {source: b""})
    assert problem.startswith("files[0].source: ")


def test_key_order_and_comments_do_not_change_the_digest():
    text = 'requires = ["b", "A"]\n' + SMALL + '[env]\nX = "1"\nY = "2"\n'
    other = (
        '# a comment\nversion = "1"\nname = "x"\nrequires = ["a", "b"]\npython = "3.13"\n'
        '[env]\nY = "2"\nX = "1"\n[base]\nsuite = "trixie"\n'
    )

    assert parsed(text).digest == parsed(other).digest


def test_bytes_of_a_file_change_the_digest():
    text = SMALL + '[[files]]\nsource = "a"\npath = "b"\n'

    assert parsed(text, {"a": b"1"}).digest != parsed(text, {"a": b"2"}).digest


PINS = 'name = "x"\nversion = "1"\npython = "3.12"\n[base]\nsystem = "ubuntu-24.04"\ninterpreter = "3.12.3"\nglibc = "2.39"\n'


def pinned(text, pins="torch==2.9.0+cu129\nPyGObject==3.48.2\n"):
    return parse(PINS + text, file="x", digest_of=lambda _: None, text_of={"pins.txt": pins}.get)


def test_a_foreign_system_and_a_frozen_environment_are_read():
    spec = pinned('[pins]\nfile = "pins.txt"\nlocal = { cu129 = "pytorch-cu129" }\npublic = true\n')

    assert spec.base.system == System(name="ubuntu-24.04", interpreter="3.12.3", glibc="2.39")
    assert spec.pins.versions == (("pygobject", "3.48.2"), ("torch", "2.9.0+cu129"))
    assert (spec.pins.local, spec.pins.public) == ({"cu129": "pytorch-cu129"}, True)
    assert spec.digest != pinned('[pins]\nfile = "pins.txt"\n').digest


@pytest.mark.parametrize(
    ("pins", "problem"),
    [
        ("a==1\n-e git+https://h/b\n", "pins.txt:2: want name==version, got '-e git+https://h/b'"),
        ("a @ file:///x/a.whl", "pins.txt:1: want name==version, got 'a @ file:///x/a.whl'"),
        ("a==1\nA==2", "pins.txt:2: a stands twice: 1, 2"),
        ("a==one", "pins.txt:1: not a version: 'one'"),
    ],
)
def test_a_line_that_is_no_pin_is_told_with_its_number(pins, problem):
    with pytest.raises(SpecErrors) as caught:
        pinned('[pins]\nfile = "pins.txt"\n', pins)
    assert list(caught.value.problems) == [problem]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[pins]\nfile = "gone"\n', "pins.file: no such file beside env.toml: 'gone'"),
        ('[replace]\na = { with = "b ==" , reason = "r" }\n', "replace.a.with: not a PEP 508 requirement: 'b =='"),
        ('[replace]\na = { with = "b" }\n', "replace.a.reason: missing"),
        ('[sources]\n"a b" = "corp"\n', "sources.a b: not a package's name or a pattern with '*': 'a b'"),
        ('snapshot = "20261101T000000Z"\n', "base.snapshot: goes with base.suite only: a child takes its parent's"),
        ('[leave-out]\na = ["/etc/x"]\n', "leave-out.a[0]: not a path as RECORD lists it: '/etc/x'"),
        ('[sources]\na = "Corp!"\n', "sources.a: not an index role such as 'pytorch-cu130': 'Corp!'"),
        (
            'image = "ai"\n',
            (
                "base.image: want host/name:tag, host/name@sha256:..., oci:DIR, oci-archive:FILE or docker-archive:FILE, "
                "got 'ai'"
            ),
        ),
        ('image = "docker-archive:"\n', "base.image: no path in 'docker-archive:'"),
        (
            'packages = ["git"]\n',
            "base.system: excludes packages and allow-scripts: envbuilder does not make that system",
        ),
        ('suite = "trixie"\n', "base.system: excludes base.suite"),
    ],
)
def test_what_is_wrong_with_the_packages_or_the_system_is_told(text, problem):
    with pytest.raises(SpecErrors) as caught:
        pinned(text)
    assert list(caught.value.problems) == [problem]


def test_declared_platforms_and_what_came_later_do_not_change_the_digest():
    spec = parse(SMALL, file="x", digest_of=lambda _: None)

    assert replace(spec, platforms=(Platform("aarch64"),)).digest == spec.digest
    assert replace(spec, sources={"a": "corp"}).digest != spec.digest
