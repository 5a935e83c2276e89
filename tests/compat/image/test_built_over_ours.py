"""What podman builds ``FROM`` an image of ours starts lazily: our layers stay, and its manifest says whose they are."""

import json
import os

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.network,
    pytest.mark.skipif(os.geteuid() != 0, reason="container stores need root"),
]

RUN = "import numpy, sys; print(numpy.__version__, open('/etc/team').read().strip(), sys.prefix)"


@pytest.fixture(scope="module")
def built(podman, hello_cli, hello, registry, tmp_path_factory):
    """Pushed by podman to another repository than the base's."""
    base, there = f"{registry.host}/from/hello:1", f"{registry.host}/from/team:1"
    hello_cli("push", "hello", base)
    context = tmp_path_factory.mktemp("context")
    (context / "team").write_text("ours\n")
    (context / "Dockerfile").write_text(
        f"FROM {base}\nCOPY team /etc/team\nRUN ln -s /etc/team /srv/team && rm -r /usr/share/doc\nENV TEAM=ours\n"
    )
    words = ["--isolation", "chroot", "--tls-verify=false", "--layers=false", "--network", "host"]
    podman("build", *words, "--tag", there, context)
    podman("push", "--quiet", "--tls-verify=false", there)
    return there


def test_podman_keeps_our_layers_and_notes_the_base(skopeo, hello, built):
    manifest = json.loads(skopeo("inspect", "--raw", f"docker://{built}").stdout)

    ours = [each["digest"] for each in hello.plain["layers"]]
    assert [each["digest"] for each in manifest["layers"]][: len(ours)] == ours
    assert len(manifest["layers"]) == len(ours) + 1
    assert "org.opencontainers.image.base.digest" in manifest["annotations"]


@pytest.mark.parametrize("mode", ["erofs", "fuse"])
def test_it_starts_lazily(hello, built, hello_cli, tmp_path, mode):
    report = tmp_path / "report.json"
    chunks = {"ENVBUILDER_CHUNKS": str(tmp_path / "chunks"), "ENVBUILDER_MOUNT_MODE": mode}
    said = hello_cli("run", "--report", str(report), built, "--", "python3", "-c", RUN, **chunks).stdout
    told = json.loads(report.read_text())
    listed = hello_cli("run", built, "--", "sh", "-c", "ls -l /srv/team; ls /usr/share; echo $TEAM", **chunks).stdout

    assert said.split()[1:] == ["ours", "/opt/env"]
    assert told["how"].endswith("lazy")
    assert told["fetched_bytes"]["before_first_output"] < sum(each["size"] for each in hello.plain["layers"]) * 0.8
    assert "/etc/team" in listed
    assert "doc\n" not in listed
    assert listed.endswith("ours\n")
