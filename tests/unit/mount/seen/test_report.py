"""Reports and pictures of starts: names of files, time with a read waiting, the picture as well-formed XML."""

import xml.etree.ElementTree as ET
from random import Random

import pytest

from envbuilder.layer.metadata import erofs_metadata
from envbuilder.layer.tree import directory, file
from envbuilder.mount.seen.files import FileMap, file_map
from envbuilder.mount.seen.picture import picture, verdict
from envbuilder.mount.seen.report import Sample, Seen, full_pull_s, summary
from envbuilder.mount.seen.waits import Wait
from envbuilder.testing.layers import layer_of


@pytest.fixture(scope="module")
def metadata(tmp_path_factory):
    """The metadata of two layers, and where each file's data lie."""
    one = layer_of([directory("a"), file("a/big", Random(1).randbytes(300_000)), file("a/z&<", b"z" * 5000)], name="1")
    two = layer_of([file("b", b"b" * 4096)], name="2")
    path = tmp_path_factory.mktemp("metadata") / "erofs"
    path.write_bytes(erofs_metadata([one.layer, two.layer]))
    return path, {
        f"/{each.path}": (n, each.offset) for n, built in enumerate((one, two)) for each in built.layer.placed
    }


def test_every_file_is_found_by_any_of_its_pages(metadata):
    path, placed = metadata
    files = FileMap(path)

    for name in ("/a/big", "/a/z&<", "/b"):
        device, offset = placed[name]
        assert files.path(device, offset) == name
        assert files.path(device, offset + 4095) == name
    assert files.path(*placed["/a/big"][:1], placed["/a/big"][1] + 299_999) == "/a/big"


def test_a_read_that_begins_before_a_file_and_reaches_it_is_of_that_file(metadata):
    path, placed = metadata
    device, offset = placed["/a/big"]

    assert FileMap(path).path(device, offset - 512, 4096) == "/a/big"
    assert FileMap(path).path(9, 0, 4096) == ""


def test_without_metadata_there_are_no_names(tmp_path):
    (tmp_path / "bad").write_bytes(bytes(5000))

    assert file_map("") is None
    assert file_map(tmp_path / "gone") is None
    assert file_map(tmp_path / "bad") is None


def test_waits_are_added_up_for_each_file_and_time_with_a_read_waiting_counts_once(metadata):
    path, placed = metadata
    device, offset = placed["/a/big"]
    waits = [
        Wait(device=device, offset=offset, size=4096, begun_s=101.0, waited_s=1.0),
        Wait(device=device, offset=offset + 8192, size=4096, begun_s=101.5, waited_s=1.0),
        Wait(device=placed["/b"][0], offset=placed["/b"][1], size=100, begun_s=104.0, waited_s=0.5),
    ]

    seen = summary([], waits, FileMap(path), begun_s=100.0)

    assert [(each.path, each.waits, each.seconds) for each in seen.by_file] == [("/a/big", 2, 2.0), ("/b", 1, 0.5)]
    assert seen.blocked_s(10.0) == pytest.approx(2.0)
    assert seen.blocked_s(2.0) == pytest.approx(1.0)
    assert [begun for begun, _, _ in seen.waits] == [1.0, 1.5, 4.0]


def report(**changes):
    seen = Seen(
        samples=tuple(Sample(at / 10, at * 1_000_000, at * 400_000) for at in range(30)),
        waits=tuple((at / 10, 0.05, f"/usr/lib/file&{at}") for at in range(20)),
    )
    return {
        "image": "sha256:1",
        "how": "erofs lazy",
        "command": ["python3", "-c", "print('<&>')"],
        "seconds": {"mounted": 0.2, "first_output": 2.0, "ended": 100.0},
        "fetched_bytes": {"before_first_output": 20_000_000, "in_all": 29_000_000},
        "trace": None,
        "image_bytes": 1_000_000_000,
        "blocked_s": 1.0,
        "counters": {"hits": 80, "waits": 20},
        **seen.to_json(),
        **changes,
    }


def test_the_picture_is_an_svg_that_names_what_was_waited_for():
    root = ET.fromstring(picture(report()))
    texts = [each.text or "" for each in root.iter() if each.tag.endswith("text")]

    assert any("python3 -c print('<&>')" in text for text in texts)
    assert any("first output 2.00 s" in text for text in texts)
    assert any("/usr/lib/file&0" in text for text in texts)
    assert any("6 other files" in text for text in texts)
    assert len([each for each in root.iter() if each.get("class") == "w"]) == 20


@pytest.mark.parametrize(
    "changes",
    [
        {"seconds": {"mounted": 0.2, "first_output": None, "ended": 0.0}},
        {"timeline": [], "waits": [], "wait_paths": [], "waits_by_file": [], "image_bytes": 0},
        {"how": "erofs direct", "fetched_bytes": {"before_first_output": None, "in_all": 0}},
    ],
    ids=["nothing was written", "nothing was seen", "all was here"],
)
def test_a_start_without_this_or_that_has_a_picture_too(changes):
    ET.fromstring(picture(report(**changes)))


def test_the_verdict_weighs_the_start_against_the_download_of_everything():
    assert full_pull_s(report()) == pytest.approx(100.0)
    assert "first output after 2.00 s; the download alone of a full pull would have taken about 100.0 s" in verdict(
        report()
    )
    assert "everything was on this node already" in verdict(report(how="erofs direct"))
    assert "next to nothing had to be fetched" in verdict(report(timeline=[[0.0, 0, 0], [3.0, 100, 0]]))
