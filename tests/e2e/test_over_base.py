"""The verbs over a small base of others: in a layout beside the declaration, in an archive, in a registry."""

import json
import random
import shutil

import pytest

from envbuilder.custom.docker_archive import write_docker_archive
from envbuilder.image.inspect import open_image
from envbuilder.oci.platform import Platform
from envbuilder.store.layout import LayoutTarget
from envbuilder.testing.bases import push_base, system
from envbuilder.testing.foreign import foreign_tar, gzip_layer, member
from envbuilder.testing.servers import docker_registry

pytestmark = pytest.mark.slow


@pytest.fixture
def declare(fresh):
    """Writes a declaration over the base that it is told of, without packages: no index is asked."""

    def declare(image, more=""):
        folder = fresh.project / "images/over"
        folder.mkdir(exist_ok=True)
        (folder / "env.toml").write_text(
            f'name = "over"\nversion = "1"\npython = "3.12"\nbytecode = false\n[base]\nimage = "{image}"\n{more}'
        )
        return folder

    return declare


def lock_of(cli):
    return (cli.project / "lockfiles/over/linux-x86_64.lock.toml").read_text()


def test_a_base_in_a_layout_beside_the_declaration_is_locked_built_sent_and_made_again_elsewhere(fresh, declare):
    folder = declare("oci:base:one", 'system = "ubuntu-24.04"\ninterpreter = "3.12.3"\nglibc = "2.35"\n')
    base = LayoutTarget(folder / "base", create=True)
    what = push_base(base, [system(), [member("etc/x", b"x")]], tag="one")
    fresh("lock", "over", "--platform", "linux/x86_64")
    lock = lock_of(fresh)
    to = f"oci:{fresh.project / 'out'}:1"
    planned = fresh.json("plan", "over", "--platform", "linux/x86_64")
    (built,) = fresh.json("build", "over", "--platform", "linux/x86_64", "--to", to)
    push_base(base, [system(python="3.12.4")], tag="one")  # the tag moves
    shown = fresh.json("inspect", to, "--platform", "linux/x86_64")

    assert f'image = "oci:base:{what.digest}"' in lock
    assert 'asked = "oci:base:one"' in lock
    assert str(fresh.project) not in lock
    assert [(row["layer"], row["build"]) for row in planned["layers"]] == [
        ("over/base-00", False), ("over/base-01", False), ("over/top", True),
    ]  # fmt: skip
    assert [each["media_type"].rpartition(".")[2] for each in shown["layers"][:2]] == ["tar+gzip"] * 2
    assert fresh.json("verify", to, "--platform", "linux/x86_64")["digest"] == built["digest"]
    assert fresh("lock", "over", "--frozen").stdout == ""
    fresh("lock", "over", "--upgrade", status=2)  # what it has now is not what was declared
    sbom = json.loads(fresh("inspect", to, "--sbom", "cyclonedx").stdout)
    assert {each["name"] for each in sbom["components"]} == {"bash", "dbus-python", "ubuntu"}


def test_a_base_in_an_archive_of_docker_is_one_too_and_another_interpreter_is_told(fresh, declare):
    folder = declare("docker-archive:saved.tar", 'interpreter = "3.12.4"\n')
    made = LayoutTarget(folder / "made", create=True)
    image = open_image(made, push_base(made, [system()]), Platform("x86_64"))
    with (folder / "saved.tar").open("wb") as out:
        out.writelines(write_docker_archive(made, image, "base:1", spool=folder))
    refused = fresh("lock", "over", "--platform", "linux/x86_64", status=2)
    declare("docker-archive:saved.tar")
    fresh("lock", "over", "--platform", "linux/x86_64")
    fresh("build", "over", "--platform", "linux/x86_64")

    assert "over: base.interpreter: want 3.12.4, docker-archive:saved.tar:sha256:" in refused.stderr
    assert "has 3.12.3" in refused.stderr
    assert 'image = "docker-archive:saved.tar:sha256:' in lock_of(fresh)


def test_a_base_that_is_not_there_or_none_is_told(fresh, declare):
    folder = declare("oci:base:one")
    assert "base" in fresh("lock", "over", "--platform", "linux/x86_64", status=2).stderr
    push_base(LayoutTarget(folder / "base", create=True), [system(python="")], tag="one")
    told = fresh("lock", "over", "--platform", "linux/x86_64", status=2).stderr

    assert "want Python 3.12 on PATH, got none" in told


X86 = ("--platform", "linux/x86_64")


def test_a_base_that_is_gone_is_taken_from_the_archive_and_gives_the_same_image(fresh, declare):
    folder = declare("oci:base:one")
    push_base(LayoutTarget(folder / "base", create=True), [system(), [member("etc/x", b"x")]], tag="one")
    fresh("lock", "over", *X86)
    (built,) = fresh.json("build", "over", *X86)
    old, kept = (f"oci:{fresh.project / name}:1" for name in ("old", "kept"))
    planned = fresh.json("archive", "over", kept, *X86, "--dry-run")
    made_nothing = not (fresh.project / "kept").exists()
    first = fresh.json("archive", "over", kept, *X86)
    shutil.rmtree(folder / "base")
    again = fresh.json("archive", "over", kept, *X86)
    fresh("copy", kept, old)
    shutil.rmtree(fresh.store)

    assert made_nothing
    assert planned["moved_bytes"] == first["moved_bytes"] == planned["base"]["missing_bytes"] > 0
    assert (planned["digest"], planned["base"]["missing"], again["moved_bytes"]) == (first["digest"], 3, 0)
    assert "base" in fresh("build", "over", *X86, status=2).stderr
    cache = str(fresh.project.parent / "cache")
    (rebuilt,) = fresh.json("build", "over", *X86, "--from-archive", old, ENVBUILDER_CACHE=cache)
    assert rebuilt["digest"] == built["digest"]


def test_an_archive_to_a_new_place_when_the_base_is_gone_says_what_to_copy_and_that_works(fresh, declare, registry):
    gone = docker_registry(fresh.project.parent / "gone")
    with gone as theirs:
        base = f"{theirs.host}/bases/one:1"
        local = LayoutTarget(fresh.project / "local", create=True)
        push_base(local, [system()], tag="one")
        fresh("push", f"oci:{local.directory}:one", base)
        declare(base)
        fresh("lock", "over", *X86)
        old, layout, elsewhere = (
            f"oci:{fresh.project / 'old'}:1",
            f"oci:{fresh.project / 'new'}:1",
            f"{registry.host}/kept/gone:1",
        )
        first = fresh.json("archive", "over", old, *X86)
    settings = {"ENVBUILDER_REGISTRIES_RETRY_BUDGET_S": "0.1"}
    for new in (layout, elsewhere):
        for more in ((), ("--dry-run",)):
            told = fresh("archive", "over", new, *X86, *more, status=4, **settings).stderr
            assert theirs.host in told
            assert "envbuilder copy OLD NEW" in told
        fresh("copy", old, new)
        assert fresh.json("archive", "over", new, *X86)["digest"] == first["digest"]
    away = "localhost:1/x:1"
    assert "copy OLD" not in fresh("archive", "over", away, *X86, status=4, **settings).stderr


def test_an_archive_in_the_registry_of_the_base_is_sent_no_layer_of_it(fresh, declare, registry):
    large = gzip_layer(foreign_tar([member("usr/share/noise", random.Random(4).randbytes(1 << 20))]))
    base = f"{registry.host}/bases/archived:1"
    local = LayoutTarget(fresh.project / "local", create=True)
    push_base(local, [system(), large], tag="one")
    fresh("push", f"oci:{local.directory}:one", base)
    declare(base)
    fresh("lock", "over", *X86)
    kept = f"{registry.host}/kept/over:1"
    planned = fresh.json("archive", "over", kept, *X86, "--dry-run")
    done = fresh.json("archive", "over", kept, *X86)

    assert planned["moved_bytes"] > 1 << 20
    assert done["moved_bytes"] < 10_000
    shutil.rmtree(fresh.store)
    fresh("build", "over", *X86, "--from-archive", kept)
    assert fresh.json("archive", "over", kept, *X86)["moved_bytes"] == 0
    assert "want an image for linux/x86_64" in fresh("inspect", kept, *X86, status=2).stderr  # it starts no base
