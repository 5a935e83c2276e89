"""Images with evil documents, through the command: explained or harmless, and nothing is left."""

import io
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from envbuilder.digest import Descriptor, describe
from envbuilder.oci import media_types
from envbuilder.store.layout import LayoutTarget
from envbuilder.testing.nodes import push_test_image

pytestmark = pytest.mark.slow
INTEGRITY, UNAVAILABLE = 3, 4


@pytest.fixture
def layout(tmp_path):
    push_test_image(tmp_path / "layout")
    return LayoutTarget(tmp_path / "layout")


def changed(layout: LayoutTarget, *, config=None, erofs=None) -> str:
    """The test image with other documents, under another tag."""

    def read(what):
        return json.loads(layout.file_of(Descriptor.from_json(what)).read_bytes())

    def put(value, like):
        data = json.dumps(value).encode()
        what = describe(data, like["mediaType"])
        layout.push(what, partial(io.BytesIO, data))
        return {**like, "digest": str(what.digest), "size": what.size}

    index = read(layout.lookup("test").to_json())
    manifests = [read(manifest) for manifest in index["manifests"]]
    process = read(manifests[0]["config"])
    process["config"] |= config or {}
    for manifest in manifests:
        manifest["config"] = put(process, manifest["config"])
    if erofs:
        erofs(manifests[1]["layers"])
    index["manifests"] = [put(new, old) for new, old in zip(manifests, index["manifests"], strict=True)]
    root = put(index, {"mediaType": media_types.OCI_INDEX})
    layout.tag(Descriptor.from_json(root), "changed")
    return f"oci:{layout.directory}:changed"


def envbuilder(folder: Path, *words: str) -> tuple[int, str]:
    places = {f"ENVBUILDER_{name}": str(folder / name) for name in ("STATE", "CHUNKS", "STORE")}
    environ = {"PATH": os.environ["PATH"], **places, "ENVBUILDER_MOUNT_WAIT_LIMIT_S": "1"}
    argv = [sys.executable, "-m", "envbuilder", *words]
    done = subprocess.run(argv, env=environ, capture_output=True, stdin=subprocess.DEVNULL, timeout=60, check=False)
    said = (done.stdout + done.stderr).decode(errors="replace")
    assert "Traceback" not in said
    assert not list(folder.glob("STATE/mounts/*"))
    return done.returncode, said


@pytest.fixture
def mounting(require_tool):
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        pytest.skip("mounting needs root and /dev/fuse")
    require_tool("runc")


@pytest.mark.parametrize(
    "config", [{"Env": ["=x", "", "NAME"]}, {"WorkingDir": "../.."}, {"WorkingDir": "relative"}, {"Cmd": ["\ud800"]}]
)
def test_an_odd_config_starts_all_the_same(mounting, layout, tmp_path, config):
    status, said = envbuilder(tmp_path, "run", changed(layout, config=config), "--", "cat", "/data/small")

    assert (status, said) == (0, "small\n")


@pytest.mark.parametrize(
    ("config", "want"),
    [({"User": "a:b:c"}, 2), ({"User": "9" * 5000}, 2), ({"User": "a\0b"}, 2), ({"Entrypoint": ["/bin/ca\0t"]}, 127),
     ({"Entrypoint": "x"}, INTEGRITY), ({"Env": {"A": "b"}}, INTEGRITY)],
)  # fmt: skip
def test_an_impossible_config_is_explained(mounting, layout, tmp_path, config, want):
    status, said = envbuilder(tmp_path, "run", changed(layout, config=config), "--", "cat", "/data/small")

    assert (status, len(said) < 2000) == (want, True)


@pytest.mark.parametrize("place", ["1:0", "0:99999999999999999999", "9" * 5000 + ":" + "9" * 5000, ":", "-1:5"])
def test_a_chunk_index_at_an_impossible_place_is_refused(mounting, layout, tmp_path, place):
    image = changed(
        layout, erofs=lambda layers: layers[0]["annotations"].update({media_types.EROFS_CHUNK_INDEX_RANGE: place})
    )

    assert envbuilder(tmp_path, "run", image, "--", "cat", "/data/small")[0] == INTEGRITY


def test_an_altered_chunk_index_is_said_to_make_the_image_unreadable(mounting, layout, tmp_path):
    image = changed(
        layout,
        erofs=lambda layers: layers[0]["annotations"].update(
            {media_types.EROFS_CHUNK_INDEX_DIGEST: "sha256:" + "0" * 64}
        ),
    )

    status, said = envbuilder(tmp_path, "run", image, "--", "cat", "/data/small")

    assert (status, "reading the mounted image failed" in said) == (UNAVAILABLE, True)


@pytest.mark.parametrize("title", ["hello", "../../x", "a\nb\x1b[31m", "ünïcode"])
def test_labels_never_give_a_pulled_image_the_tag_of_an_environment(layout, tmp_path, title):
    labels = {media_types.TITLE: title, media_types.VERSION: "1"}

    status, _ = envbuilder(tmp_path, "pull", changed(layout, config={"Labels": labels}))
    (tag,) = LayoutTarget(tmp_path / "STORE").tags()

    assert status == 0
    assert tag.startswith("_oci-")
