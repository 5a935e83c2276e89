"""A lock for other tools, read back by their own parsers."""

from dataclasses import replace

from packaging.pylock import Pylock

from envbuilder.digest import Digest
from envbuilder.lock.export import delta, pylock, requirements
from envbuilder.spec.toml import parse_toml
from envbuilder.testing.locks import FULL, SMALL, wheel


def test_pylock_is_one_that_packaging_reads():
    text = pylock(FULL, lock_digest=str(Digest.of(b"lock")))

    read = Pylock.from_dict(parse_toml(text, source="x"))

    assert [(package.name, str(package.version)) for package in read.packages] == [
        (each.name, each.version) for each in FULL.wheels
    ]
    assert [package.wheels[0].hashes["sha256"] for package in read.packages] == [w.digest.hex for w in FULL.wheels]
    assert read.packages[2].tool == {"envbuilder": {"layer": "x/wheels-00", "index": "pytorch-cu130"}}
    assert read.tool == {"envbuilder": {"name": "x", "version": "1", "lock": str(Digest.of(b"lock"))}}
    assert str(read.requires_python) == "==3.13.*"


def test_pylock_is_for_the_target_alone():
    read = Pylock.from_dict(parse_toml(pylock(SMALL, lock_digest="x"), source="x"))

    (marker,) = read.environments
    assert marker.evaluate({"sys_platform": "linux", "platform_machine": "x86_64"})
    assert not marker.evaluate({"sys_platform": "linux", "platform_machine": "aarch64"})


def test_requirements_have_hashes_and_say_who_asked():
    text = requirements(SMALL, who={"numpy": ["pandas", "-r env.toml"], "pandas": ["-r env.toml"]})

    assert f"numpy==1 \\\n    --hash=sha256:{SMALL.wheels[0].digest.hex}\n    # via\n    #   -r env.toml\n" in text
    assert text.endswith("    # via -r env.toml\n")


def test_a_delta_has_what_the_parent_has_not():
    child = replace(SMALL, name="y", wheels=(wheel("numpy", "2", layer="y/w"), wheel("torch", layer="y/w")))

    text = delta(child, SMALL)

    assert "# 1 in x\nnumpy==2 \\\n" in text
    assert "torch==1 \\\n" in text
    assert "# not here: pandas==1\n" in text
    assert "\npandas==1 \\" not in text
