"""A lock for other tools, read back by their own parsers."""

import os
import sys
from dataclasses import replace

import pytest
from packaging.pylock import Pylock

from envbuilder.digest import Digest
from envbuilder.lock.export import delta, pylock, requirements
from envbuilder.proc import run
from envbuilder.spec.toml import parse_toml
from envbuilder.testing.index import tiny_wheel
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


@pytest.mark.slow
def test_requirements_have_hashes_and_say_who_asked():
    text = requirements(SMALL, who={"numpy": ["pandas", "-r env.toml"], "pandas": ["-r env.toml"]})

    assert f"numpy==1 \\\n    --hash=sha256:{SMALL.wheels[0].digest.hex}\n    # via\n    #   -r env.toml\n" in text
    assert text.endswith("    # via -r env.toml\n")


@pytest.mark.slow
def test_a_delta_has_what_the_parent_has_not():
    child = replace(SMALL, name="y", wheels=(wheel("numpy", "2", layer="y/w"), wheel("torch", layer="y/w")))

    text = delta(child, SMALL)

    assert "# 1 in x\nnumpy==2 \\\n" in text
    assert "torch==1 \\\n" in text
    assert "# not here: pandas==1\n" in text
    assert "\npandas==1 \\" not in text


@pytest.mark.slow
def test_the_lines_are_those_of_pip_compile(tmp_path):
    index = tmp_path / "wheels"
    index.mkdir()
    for name, requires in (("a", ["b"]), ("b", [])):
        file, data = tiny_wheel(name, "1", requires=requires)
        (index / file).write_bytes(data)
    (tmp_path / "in.txt").write_text("a\n")
    argv = [sys.executable, "-m", "piptools", "compile", "--quiet", "--generate-hashes", "--no-header", "--no-index"]
    argv += ["--no-emit-find-links", "--find-links", str(index), "--output-file", "-", "--no-emit-index-url", "in.txt"]
    theirs = run(argv, cwd=tmp_path, env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)}).stdout.decode()

    wheels = []
    for name in ("a", "b"):
        file, data = tiny_wheel(name, "1")
        data = (index / file).read_bytes()
        wheels.append(replace(wheel(name), file=file, digest=Digest.of(data), size=len(data)))
    ours = requirements(replace(SMALL, wheels=tuple(wheels)), who={"a": ["-r in.txt"], "b": ["a"]})

    assert [line for line in ours.splitlines() if not line.startswith("#")] == theirs.strip().splitlines()
