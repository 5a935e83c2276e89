"""GNU tar, erofs-utils, the kernel and umoci read the files of the real image; all trees are one."""

import hashlib
import json
import os
import shutil
import stat
import tarfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.network]


@pytest.fixture(scope="module")
def zstd(tool):
    return tool("zstd", "--decompress", "--quiet")


@pytest.fixture(scope="module")
def umoci(tool):
    return tool("umoci")


@pytest.fixture(scope="module")
def unpacked(tool, hello, tmp_path_factory):
    """The root file system that GNU tar makes of the layers."""
    if os.geteuid() != 0:
        pytest.skip("owners can only be set by root")
    root, tar = tmp_path_factory.mktemp("unpacked"), tool("tar", "--zstd", "--numeric-owner", "-xpf")
    for layer in hello.plain["layers"]:
        tar(hello.blob(layer["digest"]), "-C", root)
    yield root
    shutil.rmtree(root)


@pytest.fixture(scope="module")
def fsck(tool, zstd, hello, tmp_path_factory):
    """fsck.erofs on the metadata, with the uncompressed layers as its devices."""
    folder = tmp_path_factory.mktemp("erofs")
    files = [folder / str(number) for number in range(len(hello.erofs["layers"]))]
    for layer, path in zip(hello.erofs["layers"], files, strict=True):
        zstd(hello.blob(layer["digest"]), "-o", path)
    call = tool("fsck.erofs")
    yield lambda *words: call(*words, *(f"--device={device}" for device in files[:-1]), files[-1])
    shutil.rmtree(folder)


def tree(root, *, set_id=True, links=True):
    """Path -> kind and permissions, owner, time, target or sha256, and the first name of a file with several."""
    found, first = {}, {}
    for folder, directories, files in os.walk(root):
        directories.sort()
        for name in sorted(directories + files):
            path = Path(folder, name)
            seen = path.lstat()
            mode = seen.st_mode if set_id else seen.st_mode & ~(stat.S_ISUID | stat.S_ISGID)
            entry = [oct(mode), seen.st_uid, seen.st_gid, int(seen.st_mtime)]
            if stat.S_ISLNK(seen.st_mode):
                entry.append(str(path.readlink()))
            elif stat.S_ISREG(seen.st_mode):
                entry.append(hashlib.sha256(path.read_bytes()).hexdigest())
                if links:
                    entry.append(first.setdefault(seen.st_ino, str(path.relative_to(root))))
            found[str(path.relative_to(root))] = tuple(entry)
    return found


def different(got, want):
    return {
        path: (got.get(path), want.get(path)) for path in got.keys() | want.keys() if got.get(path) != want.get(path)
    }


def test_gnu_tar_lists_every_layer_as_pythons_does(tool, zstd, hello, tmp_path):
    tar = tool("tar", "--zstd", "--quoting-style=literal")
    for number, layer in enumerate(hello.plain["layers"]):
        blob = hello.blob(layer["digest"])
        zstd(blob, "-o", tmp_path / str(number))
        with tarfile.open(tmp_path / str(number)) as plain:
            names = [member.name for member in plain]

        listed = tar("-tf", blob)

        assert listed.stderr == b""
        assert [line.rstrip("/") for line in listed.stdout.decode().splitlines()] == names
        assert names


def test_every_layer_is_the_tar_of_its_diff_id(zstd, hello):
    layers = zip(hello.plain["layers"], hello.plain_config["rootfs"]["diff_ids"], strict=True)

    for layer, diff_id in layers:
        data = zstd("--stdout", hello.blob(layer["digest"])).stdout
        assert f"sha256:{hashlib.sha256(data).hexdigest()}" == diff_id


def test_fsck_accepts_the_metadata(fsck):
    said = fsck()

    assert (said.status, said.stderr) == (0, b"")


def test_fsck_extracts_the_tree_that_gnu_tar_unpacks(fsck, unpacked, tmp_path):
    fsck(f"--extract={tmp_path / 'erofs'}", "--preserve")
    # fsck.erofs 1.5 gives a file its owner after its mode, which takes the set-id bits, and makes two files of a link.
    want, got = tree(unpacked, set_id=False, links=False), tree(tmp_path / "erofs", set_id=False, links=False)
    shutil.rmtree(tmp_path / "erofs")

    assert len(want) > 10_000
    assert different(got, want) == {}


def test_the_kernel_mounts_the_tree_that_gnu_tar_unpacks(cli, hello, unpacked, tmp_path):
    root = cli("mount", hello.reference, str(tmp_path / "root")).stdout.strip()
    try:
        want, got = tree(unpacked), tree(root)
    finally:
        cli("unmount", root)

    assert any(int(entry[0], 8) & stat.S_ISUID for entry in want.values())
    assert different(got, want) == {}


def test_umoci_lists_our_tags(umoci, hello):
    """The image's, and that of the list of what is attached to it (distribution-spec 1.1, "Referrers Tag Schema")."""
    attached = hello.digest.replace(":", "-").encode()
    assert sorted(umoci("list", "--layout", hello.store).stdout.split()) == [b"hello-1", attached]


def test_umoci_shows_the_plain_manifest(umoci, hello, cli, tmp_path):
    """It takes no index of two, and no zstd layer: it can say what is in an image, and not unpack it."""
    cli("pull", f"oci:{hello.store}:{hello.plain_digest}", "--to", f"oci:{tmp_path}/layout:plain")

    shown = json.loads(umoci("stat", "--json", "--image", f"{tmp_path}/layout:plain").stdout)
    refused = umoci("unpack", "--image", f"{tmp_path}/layout:plain", tmp_path / "bundle", check=False)

    layers = [item["layer"]["digest"] for item in shown["history"] if item["layer"]]
    assert layers == [layer["digest"] for layer in hello.plain["layers"]]
    assert (refused.status, b"not correct mediatype" in refused.stderr) == (1, True)
