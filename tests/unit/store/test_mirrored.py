"""Mirrors before an origin: who is asked for what, and what a mirror's faults lead to."""

import io
import pickle
from functools import partial

import pytest

from envbuilder.digest import DigestMismatch, describe
from envbuilder.errors import UnavailableError
from envbuilder.oci import media_types
from envbuilder.oci.manifest import Manifest
from envbuilder.store import mirrored
from envbuilder.store.copy import copy
from envbuilder.store.layout import LayoutTarget
from envbuilder.store.mirrored import DistrustingTarget, GivingTarget, MirroredTarget
from envbuilder.store.target import NotFound, PartsTarget, RangeTarget
from envbuilder.testing.sources import SwitchedSource

DATA = bytes(range(256)) * 64
BLOB = describe(DATA)


@pytest.fixture
def sources(tmp_path):
    """Two layouts behind switches that hold the same blob and image: a mirror, and the origin."""
    found = []
    for name in ("mirror", "origin"):
        layout = LayoutTarget(tmp_path / name, create=True)
        layout.push(BLOB, partial(io.BytesIO, DATA))
        config = describe(b"{}", media_types.OCI_CONFIG)
        layout.push(config, partial(io.BytesIO, b"{}"))
        document = Manifest(config=config, layers=(BLOB,), annotations={"of": name}).dump()
        manifest = describe(document, media_types.OCI_MANIFEST)
        layout.push(manifest, partial(io.BytesIO, document))
        layout.tag(manifest, "1")
        found.append(SwitchedSource(tmp_path / name, tmp_path / f"{name}-switches"))
    return found


def test_content_comes_from_the_mirror_and_the_origin_is_left_in_peace(sources):
    mirror, origin = sources
    both = MirroredTarget(origin, [mirror])

    assert isinstance(both, (RangeTarget, PartsTarget, DistrustingTarget))
    assert both.fetch_range(BLOB, 100, 50) == DATA[100:150]
    assert list(both.fetch_parts(BLOB, 256, [10, 20])) == [DATA[256:266], DATA[266:286]]
    assert both.fetch(BLOB).read() == DATA
    assert origin.ranges() == []


def test_it_tells_who_gave_what_from_before_it_was_asked_on(sources):
    mirror, origin = sources
    both, told = MirroredTarget(origin, [mirror]), {True: 0, False: 0}
    both.fetch_range(BLOB, 100, 50)

    def add(size, by_mirror):
        told[by_mirror] += size

    assert isinstance(both, GivingTarget)
    both.count_into(add)
    assert told == {True: 50, False: 0}
    list(both.fetch_parts(BLOB, 256, [10, 20]))
    mirror.switch("gone")
    both.fetch_range(BLOB, 0, 7)
    both.fetch(BLOB).close()

    assert told == {True: 80, False: 7 + len(DATA)}


@pytest.mark.parametrize(("tags", "of"), [("origin", "origin"), ("fallback", "origin"), ("mirror", "mirror")])
def test_a_tag_is_what_the_origin_says_unless_told_otherwise(sources, tags, of):
    mirror, origin = sources
    named = {"mirror": mirror.lookup("1"), "origin": origin.lookup("1")}

    assert MirroredTarget(origin, [mirror], tags=tags).lookup("1") == named[of]


def test_it_is_told_when_a_mirror_says_what_a_tag_is_for_an_origin_that_is_away(sources, caplog):
    mirror, origin = sources
    both = MirroredTarget(origin, [mirror], tags="fallback")
    both.lookup("1")
    assert "is what the mirror" not in caplog.text
    origin.switch("away")

    assert both.lookup("1") == mirror.lookup("1")
    assert f"is away: its tag 1 is what the mirror {mirror.name} says" in caplog.text


def test_what_a_mirror_lacks_comes_from_the_origin_and_is_not_asked_for_again_at_once(sources):
    mirror, origin = sources
    both = MirroredTarget(origin, [mirror])
    mirror.switch("gone")

    assert both.fetch_range(BLOB, 0, 10) == DATA[:10]
    mirror.switch("gone", "")
    assert both.fetch_range(BLOB, 0, 10) == DATA[:10]
    assert mirror.ranges() == []


def test_a_mirror_that_is_away_is_left_alone_until_the_origin_is_away_too(sources):
    mirror, origin = sources
    both = MirroredTarget(origin, [mirror])
    mirror.switch("away")
    assert both.fetch_range(BLOB, 0, 10) == DATA[:10]
    mirror.switch("away", "")
    assert both.fetch_range(BLOB, 0, 10) == DATA[:10]
    assert mirror.ranges() == []

    origin.switch("away")

    assert both.fetch_range(BLOB, 0, 10) == DATA[:10]
    assert len(mirror.ranges()) == 1


def test_the_origin_s_error_is_the_one_that_is_told(sources):
    mirror, origin = sources
    mirror.switch("away")
    origin.switch("gone")

    with pytest.raises(NotFound, match="no sha256"):
        MirroredTarget(origin, [mirror]).fetch_range(BLOB, 0, 10)


def test_parts_go_on_at_the_origin_where_the_mirror_broke_off(sources):
    mirror, origin = sources
    parts = MirroredTarget(origin, [mirror]).fetch_parts(BLOB, 0, [100, 100, 100])

    found = [next(parts)]
    mirror.switch("away")
    found += parts

    assert b"".join(found) == DATA[:300]
    assert [offset for _, offset, _ in mirror.ranges()] == [0]
    assert [offset for _, offset, _ in origin.ranges()] == [100, 200]


def test_a_source_that_breaks_off_again_and_again_is_taken_up_as_long_as_it_brings_something(sources):
    _, origin = sources
    calls = iter(range(1000))

    class Brittle(SwitchedSource):
        def fetch_range(self, what, offset, size):
            if next(calls) % 2:
                raise UnavailableError("broke off")
            return super().fetch_range(what, offset, size)

    brittle = Brittle(origin._layout.directory, origin._switches)

    assert list(MirroredTarget(brittle, []).fetch_parts(BLOB, 0, [10] * 20)) == [
        DATA[at : at + 10] for at in range(0, 200, 10)
    ]


def test_a_mirror_that_sent_other_bytes_is_not_asked_any_more_even_when_the_origin_is_away(sources):
    mirror, origin = sources
    both = MirroredTarget(origin, [mirror])
    mirror.switch("altered")
    assert both.fetch_range(BLOB, 0, 10) != DATA[:10]

    assert both.distrust(BLOB)
    assert both.fetch_range(BLOB, 0, 10) == DATA[:10]
    assert not both.distrust(BLOB), "the origin gave that: there is nobody else to ask"
    origin.switch("away")
    with pytest.raises(UnavailableError):
        both.fetch_range(BLOB, 0, 10)
    assert len(mirror.ranges()) == 1


@pytest.mark.parametrize("whole", [1 << 20, 0], ids=["read whole", "streamed"])
def test_a_copy_gets_what_a_mirror_has_corrupt_from_the_origin(sources, tmp_path, monkeypatch, whole):
    mirror, origin = sources
    monkeypatch.setattr(mirrored, "_WHOLE", whole)
    monkeypatch.setattr(mirrored, "_PART", 1000)
    blob = tmp_path / "mirror/blobs/sha256" / BLOB.digest.hex
    blob.chmod(0o600)
    blob.write_bytes(bytes(len(DATA)))
    both = MirroredTarget(origin, [mirror])
    image, into = both.lookup("1"), LayoutTarget(tmp_path / "to", create=True)

    copy(both, image, into)

    assert into.fetch(BLOB).read() == DATA
    with pytest.raises(DigestMismatch):
        mirror.fetch(BLOB).read()


def test_a_mirror_that_dribbles_is_as_good_as_away(sources, monkeypatch):
    mirror, origin = sources
    monkeypatch.setattr(mirrored, "_SLOW_S", 0.02)
    mirror.switch("slow", "0.03")

    assert b"".join(MirroredTarget(origin, [mirror]).fetch_parts(BLOB, 0, [10] * 10)) == DATA[:100]
    assert len(mirror.ranges()) == 1
    assert len(origin.ranges()) == 9


def test_it_goes_to_another_process(sources):
    mirror, origin = sources
    both = pickle.loads(pickle.dumps(MirroredTarget(origin, [mirror], tags="mirror")))

    assert both.lookup("1") == mirror.lookup("1")
    assert both.fetch_range(BLOB, 1, 2) == DATA[1:3]
