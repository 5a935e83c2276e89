"""Words of other tools in a declaration: what is said of them, and that our own keys are what is named."""

import re
from pathlib import Path

import pytest

from envbuilder.digest import Digest
from envbuilder.errors import SpecErrors
from envbuilder.spec.parse import parse
from envbuilder.spec.table import Table
from envbuilder.spec.words import _SAID, our_word

ROOT = Path(__file__).resolve().parents[3]
SMALL = 'name = "x"\nversion = "1"\npython = "3.13"\n{top}\n[base]\nsuite = "trixie"\n{base}\n{more}'


def problem(top="", base="", more=""):
    with pytest.raises(SpecErrors) as caught:
        parse(SMALL.format(top=top, base=base, more=more), file="env.toml", digest_of=lambda _: Digest.of(b""))
    (found,) = caught.value.problems
    return found


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (
            {"top": 'packages = ["numpy"]'},
            "packages: unknown key; did you mean 'requires' (Python) or 'base.packages' (Debian)?",
        ),
        ({"top": 'dependencies = ["numpy"]'}, "dependencies: unknown key; did you mean 'requires'?"),
        ({"top": 'python_version = "3.12"'}, "python_version: unknown key; did you mean 'python'?"),
        ({"top": 'apt = ["curl"]'}, "apt: unknown key; did you mean 'base.packages'?"),
        (
            {"top": 'run = ["make"]'},
            "run: unknown key; nothing runs while an image is made: it is packages and 'files'",
        ),
        ({"base": 'pip = ["numpy"]'}, "base.pip: unknown key; did you mean 'requires', above all tables?"),
        ({"base": 'distro = "trixie"'}, "base.distro: unknown key; did you mean 'suite'?"),
        (
            {"more": '[cuda]\ntoolkit = "13"\ndriver = "580"'},
            "cuda.driver: unknown key; did you mean 'minimum-driver'?",
        ),
        (
            {"more": '[[files]]\nsource = "a"\npath = "b"\ndest = "c"'},
            "files[0].dest: unknown key; did you mean 'path'?",
        ),
        ({"more": "[support]\neol = 2029-01-01"}, "support.eol: unknown key; did you mean 'ends'?"),
    ],
)  # fmt: skip
def test_a_word_of_another_tool_is_answered_with_ours(written, said):
    assert problem(**written) == said


@pytest.fixture(scope="module")
def keys():
    """Every key that a declaration may have, by table."""
    found = {}
    example = re.search(r"```toml\n(.*?)```", (ROOT / "docs/formats/env.md").read_text(), re.DOTALL)[1]

    def finish(table):
        found.setdefault(re.sub(r"\[\d+\]", "", table.path), set()).update(table.known)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Table, "finish", finish)
        parse(example, file="env.md", digest_of=lambda _: Digest.of(b""), text_of=lambda _: "a==1")
    return found


def test_only_keys_that_there_are_stand_in_answers_and_none_is_a_word_of_others(keys):
    absolute = keys[""] | {f"{table}.{key}" for table, known in keys.items() if table for key in known}

    for table, sayings in _SAID.items():
        for said, words in sayings.items():
            named = re.findall(r"'([^']+)'", said) if " " in said else [said]
            assert named, said
            assert [key for key in named if key not in keys[table] | absolute] == []
            assert [word for word in words.split() if word in keys[table]] == []


def test_a_word_of_nobody_has_no_answer():
    assert our_word("", "zzz") == our_word("nothing", "packages") == ""


def test_no_word_stands_twice():
    for table, sayings in _SAID.items():
        words = [word for each in sayings.values() for word in each.split()]
        assert sorted(words) == sorted(set(words)), table
