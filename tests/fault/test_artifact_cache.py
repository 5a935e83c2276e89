"""Artefacts from servers that break, lie or go away."""

import gzip
import os
import stat
import threading
from dataclasses import replace

import pytest
import urllib3

from envbuilder.digest import Digest, DigestMismatch
from envbuilder.layer.build import DamagedArtifact, LocalFiles, drop_damaged
from envbuilder.lock.download import ArtifactGone, SourceRefused, SourceRejected, SourceUnavailable, http_pool
from envbuilder.lock.fetch import ArtifactCache, CacheUnwritable, UnknownRole
from envbuilder.lock.simple import BadIndexPage
from envbuilder.testing.debs import deb_of, make_deb
from envbuilder.testing.debs import deb_of as make_deb_of
from envbuilder.testing.index import Answer, PackageIndex
from envbuilder.testing.locks import deb


@pytest.fixture
def index():
    with PackageIndex() as server:
        yield server


@pytest.fixture
def waits():
    return []


@pytest.fixture
def cache(tmp_path, index, waits):
    pool = http_pool({})
    yield ArtifactCache(
        tmp_path / "cache",
        indexes={"default": index.url},
        mirrors={"debian": index.address + "/debian"},
        pool=pool,
        wait=waits.append,
    )
    pool.clear()


def ranges(index):
    return [headers.get("range", "") for path, headers in index.seen if path.startswith("/files/")]


def no_partials(tmp_path):
    return not list((tmp_path / "cache").rglob("*.partial"))


@pytest.mark.parametrize("html", [False, True], ids=["json", "html"])
def test_a_wheel_comes_by_name_and_digest_and_is_read_only(cache, index, html, tmp_path):
    index.html = html
    wheel = index.add("a", "1")

    file = cache.file(wheel)

    assert Digest.of(file.read_bytes()) == wheel.digest
    assert stat.S_IMODE(file.stat().st_mode) == 0o444
    assert file == tmp_path / "cache/sha256" / wheel.digest.hex[:2] / wheel.digest.hex
    assert no_partials(tmp_path)


def compressed(index, name, data=b""):
    right = index._page(name)
    headers = {**right.headers, "Content-Encoding": "gzip"}
    index.faults[f"/simple/{name}/"] = [Answer(200, gzip.compress(data or right.body), headers)]


def test_a_page_may_come_compressed(cache, index):
    wheel = index.add("a", "1")
    compressed(index, "a")

    assert cache.file(wheel).exists()
    assert [headers["accept-encoding"] for _, headers in index.seen] == ["gzip", "identity"]


def test_a_page_that_swells_when_unpacked_is_not_read_to_its_end(cache, index, monkeypatch):
    monkeypatch.setattr("envbuilder.lock.download._MAX_PAGE", 1000)
    wheel = index.add("a", "1")
    compressed(index, "a", b" " * 2000)

    with pytest.raises(SourceUnavailable, match="want at most 1000 bytes"):
        cache.file(wheel)


def test_what_is_here_is_not_asked_for_again(cache, index):
    wheel = index.add("a", "1")
    cache.file(wheel)
    index.seen.clear()

    assert cache.has(wheel)
    cache.file(wheel)
    assert index.seen == []


def test_a_deb_comes_from_its_path_below_the_mirror(cache, index):
    data = b"deb bytes"
    package = replace(deb("a", "1:2+b~c"), digest=Digest.of(data), size=len(data), file="pool/a/a_2+b~c_amd64.deb")
    index.files["/debian/pool/a/a_2+b~c_amd64.deb"] = data

    assert cache.file(package).read_bytes() == data


def test_a_connection_that_breaks_is_resumed_where_it_broke(cache, index, waits):
    wheel = index.add("a", "1", padding=3_000_000)
    index.faults[f"/files/{wheel.file}"] = [Answer(0, cut=1_500_000), Answer(0, cut=1_000_000)]

    assert Digest.of(cache.file(wheel).read_bytes()) == wheel.digest
    first, *later = ranges(index)
    assert first == ""
    assert all(later)
    assert len(waits) == len(later)


def test_a_partial_file_of_an_earlier_run_is_continued(cache, index):
    wheel = index.add("a", "1", padding=1000)
    partial = cache.path(wheel.digest).with_suffix(".partial")
    partial.parent.mkdir(parents=True)
    partial.write_bytes(index.files[f"/files/{wheel.file}"][:700])

    cache.file(wheel)

    assert ranges(index) == ["bytes=700-"]


def test_a_whole_partial_file_needs_no_request_for_bytes(cache, index):
    wheel = index.add("a", "1", padding=1000)
    partial = cache.path(wheel.digest).with_suffix(".partial")
    partial.parent.mkdir(parents=True)
    partial.write_bytes(index.files[f"/files/{wheel.file}"])

    cache.file(wheel)

    assert ranges(index) == []


@pytest.mark.parametrize("junk", [b"x" * 700, b"x" * 9999], ids=["short", "too long"])
def test_a_wrong_beginning_is_thrown_away_once(cache, index, junk):
    wheel = index.add("a", "1", padding=1000)
    partial = cache.path(wheel.digest).with_suffix(".partial")
    partial.parent.mkdir(parents=True)
    partial.write_bytes(junk)

    assert Digest.of(cache.file(wheel).read_bytes()) == wheel.digest


def test_a_server_without_ranges_is_asked_for_everything_again(cache, index):
    index.ranges = False
    wheel = index.add("a", "1", padding=3_000_000)
    index.faults[f"/files/{wheel.file}"] = [Answer(0, cut=1_500_000)]

    assert Digest.of(cache.file(wheel).read_bytes()) == wheel.digest


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_passing_failure_is_tried_again_after_a_wait(cache, index, waits, status):
    wheel = index.add("a", "1")
    index.faults[f"/files/{wheel.file}"] = [Answer(status), Answer(status)]
    index.faults["/simple/a/"] = [Answer(status)]

    cache.file(wheel)
    assert waits == [0.5, 0.5, 1.0]


def test_a_lasting_failure_ends_and_keeps_what_came(cache, index, waits):
    wheel = index.add("a", "1", padding=200_000)
    index.faults[f"/files/{wheel.file}"] = [Answer(0, cut=150_000), *[Answer(503)] * 9]

    with pytest.raises(SourceUnavailable, match="status 503"):
        cache.file(wheel)
    assert cache.path(wheel.digest).with_suffix(".partial").stat().st_size == 131_072
    assert not cache.has(wheel)
    assert len(waits) == 5


def test_altered_bytes_are_refused_and_leave_nothing(cache, index, tmp_path):
    wheel = index.add("a", "1")
    data = index.files[f"/files/{wheel.file}"]
    index.faults[f"/files/{wheel.file}"] = [Answer(200, b"X" + data[1:])]

    with pytest.raises(DigestMismatch, match=r"a 1 from http://127\.0\.0\.1"):
        cache.file(wheel)
    assert not cache.has(wheel)
    assert no_partials(tmp_path)


@pytest.mark.parametrize("more", [1, 5_000_000])
def test_a_longer_file_is_refused_after_one_byte_too_many(cache, index, more):
    wheel = index.add("a", "1")
    data = index.files[f"/files/{wheel.file}"]
    index.faults[f"/files/{wheel.file}"] = [Answer(200, data + b"x" * more)]

    with pytest.raises(DigestMismatch) as caught:
        cache.file(wheel)
    assert caught.value.got_size == len(data) + 1


def test_bytes_that_are_right_are_taken_whatever_the_index_promises(cache, index):
    wheel = index.add("a", "1")
    index.promised[wheel.file] = "0" * 64

    assert cache.file(wheel).read_bytes() == index.files[f"/files/{wheel.file}"]


def test_bytes_that_are_wrong_are_refused_whatever_the_index_promises(cache, index):
    wheel = replace(index.add("a", "1"), digest=Digest.of(b"other"))
    index.promised[wheel.file] = wheel.digest.hex

    with pytest.raises(DigestMismatch):
        cache.file(wheel)


def test_a_deb_that_the_mirror_has_no_more_comes_from_the_snapshot_archive(index, tmp_path):
    old = deb_of(make_deb(name="old"), name="old")
    index.files[f"/2026/{old.file}"] = make_deb(name="old")
    mirrors = {"debian": f"{index.address}/now", "debian-snapshot": f"{index.address}/2026"}
    cache = ArtifactCache(tmp_path / "c", indexes={}, mirrors=mirrors, wait=lambda _: None)

    assert cache.file(old).read_bytes() == make_deb(name="old")
    with pytest.raises(ArtifactGone, match="status 404"):
        cache.file(replace(old, file="pool/gone.deb", digest=Digest.of(b"x")))


def test_a_folder_of_wheels_is_an_index(index, tmp_path):
    wheel = replace(index.add("a", "1"), index="wheels")
    data = index.files[f"/files/{wheel.file}"]
    folder = tmp_path / "wheels"
    folder.mkdir()
    cache = ArtifactCache(tmp_path / "c", indexes={"wheels": str(folder)}, mirrors={}, wait=lambda _: None)

    with pytest.raises(ArtifactGone, match="no such file"):
        cache.file(wheel)
    (folder / wheel.file).write_bytes(b"altered")
    with pytest.raises(DigestMismatch):
        cache.file(wheel)
    (folder / wheel.file).write_bytes(data)
    assert cache.file(wheel).read_bytes() == data
    assert index.seen == []


def test_a_page_of_links_is_an_index_and_gets_its_own_credentials(index, tmp_path):
    wheel = replace(index.add("a", "1"), index="links")
    index.user = "me:secret"
    page = f"flat+{index.address.replace('//', '//me:secret@')}/links.html"
    cache = ArtifactCache(tmp_path / "c", indexes={"links": page}, mirrors={}, wait=lambda _: None)

    assert cache.file(wheel).read_bytes() == index.files[f"/files/{wheel.file}"]
    assert [path for path, _ in index.seen] == ["/links.html", f"/files/{wheel.file}"]
    with pytest.raises(ArtifactGone, match="the index no longer has"):
        cache.file(replace(wheel, file="b-1-py3-none-any.whl", digest=Digest.of(b"b")))


def test_a_package_of_a_dated_suite_comes_from_the_mirror_or_from_that_moment(index, tmp_path):
    data = b"deb"
    deb = replace(make_deb_of(data), archive="debian@20261101T000000Z")
    mirrors = {"debian": f"{index.address}/now", "debian-snapshot": f"{index.address}/archive/{{date}}"}
    index.files[f"/archive/20261101T000000Z/{deb.file}"] = data
    cache = ArtifactCache(tmp_path / "c", indexes={}, mirrors=mirrors, wait=lambda _: None)

    assert cache.file(deb).read_bytes() == data
    assert [path for path, _ in index.seen] == [f"/now/{deb.file}", f"/archive/20261101T000000Z/{deb.file}"]
    other = replace(make_deb_of(b"other"), archive="debian")
    with pytest.raises(ArtifactGone):
        cache.file(other)  # without a moment the snapshot archive is not asked
    assert [path for path, _ in index.seen][2:] == [f"/now/{other.file}"]


def test_an_adopted_file_is_kept_under_the_digest_of_its_bytes(cache, index):
    wheel = index.add("a", "1")

    assert cache.adopt(f"{index.address}/files/{wheel.file}", {}) == (wheel.digest, wheel.size)
    assert cache.has(wheel)
    assert [file for file in cache.path(wheel.digest).parents[2].iterdir() if file.name != "sha256"] == []


def test_a_file_that_is_gone_is_told_with_a_way_out(cache, index):
    wheel = index.add("a", "1")
    index.projects["a"] = []

    with pytest.raises(ArtifactGone) as caught:
        cache.file(wheel)
    assert "--upgrade-package a" in caught.value.hint
    with pytest.raises(ArtifactGone, match=r"b 1: .*status 404") as caught:
        cache.file(deb("b"))
    assert caught.value.hint.endswith("--upgrade")


def test_a_page_that_is_no_page_is_refused(cache, index):
    wheel = index.add("a", "1")
    index.faults["/simple/a/"] = [Answer(200, b"{}", {"Content-Type": "application/vnd.pypi.simple.v1+json"})]

    with pytest.raises(BadIndexPage):
        cache.file(wheel)


def test_a_role_that_the_machine_does_not_know_is_told(cache, index):
    with pytest.raises(UnknownRole, match="no Python index for role 'corp'"):
        cache.file(replace(index.add("a", "1"), index="corp"))
    with pytest.raises(UnknownRole, match="no mirror for archive 'debian-security'"):
        cache.file(replace(deb("b"), archive="debian-security"))


def test_a_server_that_is_down_is_told_without_credentials(tmp_path, waits):
    cache = ArtifactCache(
        tmp_path, indexes={}, mirrors={"debian": "http://user:hunter2@127.0.0.1:9/d"}, wait=waits.append
    )

    with pytest.raises(SourceUnavailable) as caught:
        cache.file(deb("a"))
    assert "hunter2" not in str(caught.value)
    assert len(waits) == 5


def test_credentials_go_to_their_origin_only(index, tmp_path, waits):
    with PackageIndex() as other:
        index.user = "alice:s3cr@t"
        index.files_host = other.address
        wheel = index.add("a", "1")
        other.files[f"/files/{wheel.file}"] = index.files[f"/files/{wheel.file}"]
        url = index.url.replace("http://", "http://alice:s3cr%40t@")
        cache = ArtifactCache(tmp_path, indexes={"default": url}, mirrors={}, wait=waits.append)

        cache.file(wheel)

        assert all("authorization" not in headers for _, headers in other.seen)
        assert all("authorization" in headers for _, headers in index.seen)


def test_a_redirect_to_another_origin_loses_the_credentials(index, tmp_path, waits):
    with PackageIndex() as other:
        index.user = "alice:secret"
        wheel = index.add("a", "1")
        other.files[f"/files/{wheel.file}"] = index.files[f"/files/{wheel.file}"]
        index.faults[f"/files/{wheel.file}"] = [Answer(302, b"", {"Location": f"{other.address}/files/{wheel.file}"})]
        url = index.url.replace("http://", "http://alice:secret@")
        cache = ArtifactCache(tmp_path, indexes={"default": url}, mirrors={}, wait=waits.append)

        cache.file(wheel)

        assert [("authorization" in headers) for _, headers in other.seen] == [False]


def test_missing_credentials_are_told_at_once(cache, index, waits):
    index.user = "alice:secret"

    with pytest.raises(SourceRefused, match="status 401"):
        cache.file(index.add("a", "1"))
    assert waits == []


@pytest.mark.parametrize(("status", "error", "exit_code"), [(451, SourceRejected, 6), (501, SourceUnavailable, 4)])
def test_what_will_not_change_is_told_at_once(cache, index, waits, status, error, exit_code):
    wheel = index.add("a", "1")
    index.faults[f"/files/{wheel.file}"] = [Answer(status)]

    with pytest.raises(error, match=f"status {status}") as caught:
        cache.file(wheel)
    assert (waits, caught.value.exit_code) == ([], exit_code)


def test_a_folder_that_cannot_be_written_is_told(tmp_path, index):
    (tmp_path / "file").write_text("")
    cache = ArtifactCache(tmp_path / "file", indexes={"default": index.url}, mirrors={})

    with pytest.raises(CacheUnwritable, match="Not a directory"):
        cache.file(index.add("a", "1"))


def test_a_full_disk_is_told_and_leaves_no_whole_file(cache, index, monkeypatch):
    wheel = index.add("a", "1")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CacheUnwritable, match="No space left on device") as caught:
        cache.file(wheel)
    assert "Free some space" in caught.value.hint
    assert not cache.has(wheel)


def test_many_are_fetched_at_once_and_counted(cache, index):
    wheels = [index.add(f"a{i}", "1", padding=i * 1000) for i in range(20)]
    counted: dict[str, int] = {}

    cache.prefetch([*wheels, *wheels], progress=lambda a, size: counted.update({a.name: counted.get(a.name, 0) + size}))

    assert counted == {wheel.name: wheel.size for wheel in wheels}
    assert all(cache.has(wheel) for wheel in wheels)


def test_progress_takes_back_what_was_thrown_away(cache, index):
    index.ranges = False
    wheel = index.add("a", "1", padding=3_000_000)
    index.faults[f"/files/{wheel.file}"] = [Answer(0, cut=1_500_000)]
    counted = []

    cache.prefetch([wheel], progress=lambda _, size: counted.append(size))

    assert sum(counted) == wheel.size
    assert min(counted) < 0


def test_the_first_failure_ends_all(cache, index):
    wheels = [index.add(f"a{i}", "1") for i in range(20)]
    index.projects["a3"] = []

    with pytest.raises(ArtifactGone):
        cache.prefetch(wheels, jobs=2)
    cache.file(wheels[0])  # usable afterwards


def test_two_caches_over_one_folder_fetch_a_file_once(index, tmp_path):
    wheel = index.add("a", "1", padding=2_000_000)
    pools = [urllib3.PoolManager(), urllib3.PoolManager()]
    caches = [ArtifactCache(tmp_path, indexes={"default": index.url}, mirrors={}, pool=pool) for pool in pools]
    threads = [threading.Thread(target=cache.file, args=(wheel,)) for cache in caches * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(ranges(index)) == 1
    assert not list(tmp_path.rglob("*.partial"))
    for pool in pools:
        pool.clear()


def test_a_file_that_changed_on_the_disk_is_named_and_fetched_anew(cache, index):
    wheel = index.add("one", "1.0", padding=5000)
    file = cache.file(wheel)
    good = file.read_bytes()
    file.chmod(0o644)
    file.write_bytes(good[:1000] + b"rot" + good[1003:])

    with pytest.raises(DamagedArtifact, match=r"one 1\.0: want sha256:.*it changed on this disk") as raised:
        drop_damaged([wheel], LocalFiles({wheel.digest: file}))

    assert raised.value.hint.startswith("Build again")
    assert cache.file(wheel).read_bytes() == good
    drop_damaged([wheel], LocalFiles({wheel.digest: file}))
