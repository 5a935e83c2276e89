"""The verbs over a small base of others: in a layout beside the declaration, in an archive, in a registry."""

import json

import pytest

from envbuilder.custom.docker_archive import write_docker_archive
from envbuilder.image.inspect import open_image
from envbuilder.oci.platform import Platform
from envbuilder.store.layout import LayoutTarget
from envbuilder.testing.bases import push_base, system
from envbuilder.testing.foreign import member

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
