"""What of a declaration the resolver is asked for, and what the lock says of the rest."""

from dataclasses import replace

import pytest

from envbuilder.lock.model import Substitution
from envbuilder.lock.wanted import NoLocalBuild, Wanted, substitutions, wanted
from envbuilder.spec.model import EnvSpec, Pins, Replacement
from envbuilder.testing.locks import wheel

SPEC = EnvSpec(name="x", version="1")


def frozen(*pins, **options):
    return replace(SPEC, pins=Pins(versions=tuple(sorted(tuple(pin.split("==")) for pin in pins)), **options))


def ask(spec, why="no index is configured for 'pytorch-cu129'"):
    return wanted(spec, lambda *_: why)


def test_pins_are_requirements_beside_the_declared_ones():
    assert ask(replace(frozen("a==1"), requires=("b>2",))).requires == ("a==1", "b>2")


def test_what_the_distribution_installed_is_skipped_with_its_package():
    want = ask(frozen("python-apt==2.7.7+ubuntu5.2", "dbus-python==1.3.2"))

    assert want.requires == ()
    assert [(each.name, each.got) for each in want.substitutions] == [("dbus-python", ""), ("python-apt", "")]
    assert "python3-apt" in want.substitutions[1].reason


def test_a_local_version_comes_from_its_index_alone():
    want = ask(frozen("torch==2.9.0+cu129", local={"cu129": "pytorch-cu129"}), why="")

    assert want.requires == ("torch==2.9.0+cu129",)
    assert want.sources == {"torch": "pytorch-cu129"}
    assert want.substitutions == ()


def test_the_public_build_is_taken_only_where_that_is_allowed_and_the_lock_says_so():
    pins = ("torch==2.9.0+cu129", "nvidia-cublas-cu12==12.9.1.4", "triton==3.5.0", "numpy==2")
    spec = frozen(*pins, local={"cu129": "pytorch-cu129"}, public=True)
    want = ask(spec)
    wheels = [wheel("torch", "2.9.0"), wheel("nvidia-cublas-cu12", "12.8.4.1"), wheel("triton", "3.5.0")]

    assert want.requires == ("numpy==2", "nvidia-cublas-cu12", "torch==2.9.0", "triton")
    assert want.wishes == {"nvidia-cublas-cu12": "12.9.1.4", "triton": "3.5.0"}
    assert [(each.name, each.wanted, each.got) for each in substitutions(spec, want, wheels)] == [
        ("nvidia-cublas-cu12", "12.9.1.4", "12.8.4.1"),
        ("torch", "2.9.0+cu129", "2.9.0"),
    ]
    with pytest.raises(NoLocalBuild, match=r"torch==2\.9\.0\+cu129: no index is configured") as caught:
        ask(replace(spec, pins=replace(spec.pins, public=False)))
    assert "pins.public" in caught.value.hint


def test_a_label_without_an_index_is_told():
    with pytest.raises(NoLocalBuild, match=r"pins\.local names no index for \+cpu"):
        ask(frozen("torch==2.9.0+cpu"))


@pytest.mark.parametrize(
    ("instead", "asked", "wheels", "got"),
    [
        ("", (), [], ""),
        ("psycopg2-binary==2.9", ("psycopg2-binary==2.9",), [wheel("psycopg2-binary", "2.9")], "psycopg2-binary 2.9"),
        ("psycopg2>=2,<3", ("psycopg2>=2,<3",), [wheel("psycopg2", "2.8")], "2.8"),
    ],
)
def test_a_replaced_package_is_left_out_or_another_is_asked_for(instead, asked, wheels, got):
    replacement = Replacement(name="psycopg2", instead=instead, reason="source only")
    spec = replace(frozen("psycopg2==2.9"), replaced=(replacement,))
    want = ask(spec)

    assert want.requires == asked
    assert (want.excluded == ("psycopg2",)) == (not instead.startswith("psycopg2>"))
    assert want.overrides == ((instead,) if instead.startswith("psycopg2>") else ())
    assert substitutions(spec, want, wheels) == (
        Substitution(name="psycopg2", wanted="2.9", got=got, reason="source only"),
    )


def test_the_most_exact_source_wins():
    want = Wanted(requires=(), sources={"torch*": "a", "*": "b", "torchao": "c"})

    assert [want.source_of(name) for name in ("torchao", "torchvision", "numpy")] == ["c", "a", "b"]
    assert Wanted(requires=()).source_of("numpy") is None
