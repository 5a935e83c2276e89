"""Whatever stands in a file of the project: a declaration, a lock, or an error that says what is wrong."""

import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuilder.errors import SpecErrors
from envbuilder.lock.codec import dump, load
from envbuilder.lock.locktable import InvalidLock
from envbuilder.spec.model import EnvSpec
from envbuilder.spec.parse import parse
from envbuilder.testing.locks import SMALL

FULL = """name = "ai"
version = "2"
python = "3.13"
platforms = ["linux/x86_64"]
requires = ["Torch>=2", "numpy"]
constraints = ["numpy<3"]
extra-indexes = ["pytorch-cu130"]
[base]
suite = "trixie"
packages = ["ca-certificates"]
[cuda]
toolkit = "13.2"
minimum-driver = "580.65"
accelerators = ["9.0"]
[[files]]
source = "a"
path = "etc/a"
mode = "0644"
[env]
A = "1"
[start]
commands = ["python -c 1"]
[support]
released = 2026-01-01
ends = 2027-01-01
"""
VALUES = re.compile(r"(?<== ).*")
#: Values of every TOML type, and texts that a later reader may stumble over.
ODD = st.sampled_from(
    [
        *("1", "-0", "1e999", "nan", "true", "[]", "{}", "[[]]", "[{}]", "{a.b = 1}", "07:32:00", "1979-05-27"),
        *("1979-05-27T07:32:00Z", "0001-01-01", "9999-99-99", '""', "'''\n'''", '"\\u0000"', '"\\ud800"', '"../.."'),
        *(
            '["", 1]',
            '["a @ https://x/y.whl"]',
            '["a[", "b;c"]',
            '["\\"", "\\u0000"]',
            "9" * 5000,
            "[" * 3000,
            "{a=" * 2000,
        ),
        *('"' + "a" * 5000 + '"', '["(' + "(" * 5000 + '"]', '"\U0001f600"', "0x" + "f" * 5000),
    ]
) | st.text(max_size=30)


def refused_or_understood(text: str) -> None:
    with suppress(SpecErrors):
        assert isinstance(parse(text, file="env.toml", digest_of=lambda _: None), EnvSpec)


@given(st.text())
def test_any_text_is_a_declaration_or_explained(text):
    refused_or_understood(text)


@given(st.data())
def test_a_declaration_with_any_values_is_one_or_explained(data):
    places = list(VALUES.finditer(FULL))
    text = FULL
    for place in sorted(data.draw(st.sets(st.sampled_from(range(len(places))), min_size=1, max_size=3)), reverse=True):
        text = text[: places[place].start()] + data.draw(ODD) + text[places[place].end() :]

    refused_or_understood(text)


@given(st.data())
def test_a_changed_lock_is_refused_or_the_same_bytes(data):
    text = dump(SMALL).decode()
    places = list(VALUES.finditer(text))
    place = data.draw(st.sampled_from(places))
    changed = (text[: place.start()] + data.draw(ODD) + text[place.end() :]).encode("utf-8", "surrogatepass")

    with suppress(InvalidLock):
        assert dump(load(changed, source="lock")) == changed


@given(st.binary())
def test_bytes_that_are_no_lock_are_refused(data):
    with pytest.raises(InvalidLock, match="lock"):
        load(data, source="lock")
