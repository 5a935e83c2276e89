"""Archives are hostile: each of these must be refused, before its bytes can do harm."""

import io
import tarfile

import pytest

from envbuilder.layer import deb as deb_module
from envbuilder.layer.deb import control_of, deb_entries
from envbuilder.layer.debian.ar import BadDeb
from envbuilder.layer.tree import FILE, Entry, file, symlink
from envbuilder.paths import UnsafePath
from envbuilder.testing.debs import ar, compressed, deb_of, make_deb, tar


def read(tmp_path, data):
    path = tmp_path / "tiny.deb"
    path.write_bytes(data)
    return list(deb_entries(path, deb_of(data)))


def with_data(data_tar, name="data.tar"):
    control = compressed(tar([file("control", b"Package: tiny\nVersion: 1\nArchitecture: all\n")]), "gz")
    return ar({"debian-binary": b"2.0\n", "control.tar.gz": control, name: data_tar})


@pytest.mark.parametrize("compression", ["xz", "zst", "gz", ""])
@pytest.mark.parametrize("keep", [0.3, 0.6, 0.9, 0.99])
def test_a_truncated_package_is_refused(tmp_path, compression, keep):
    data = make_deb([file("usr/a", bytes(range(256)) * 100)], compression=compression)

    with pytest.raises(BadDeb):
        read(tmp_path, data[: int(len(data) * keep)])


@pytest.mark.parametrize("compression", ["xz", "zst", "gz", ""])
def test_truncated_compressed_data_in_a_whole_archive_is_refused(tmp_path, compression):
    data = compressed(tar([file("usr/a", bytes(range(256)) * 100)]), compression)
    suffix = f".{compression}" if compression else ""

    with pytest.raises(BadDeb):
        read(tmp_path, with_data(data[: len(data) // 2], f"data.tar{suffix}"))


@pytest.mark.parametrize("path", ["../etc/passwd", "usr/../../etc/passwd"])
def test_a_path_that_climbs_is_refused(tmp_path, path):
    with pytest.raises(UnsafePath, match=r"tiny\.deb"):
        read(tmp_path, make_deb([file(path, b"x")]))


def test_a_hard_link_that_climbs_is_refused(tmp_path):
    with pytest.raises(UnsafePath):
        read(tmp_path, make_deb([Entry(path="a", mode=FILE | 0o644, link="../../etc/shadow")]))


def test_a_symbolic_link_is_only_text(tmp_path):
    entries = {entry.path: entry for entry in read(tmp_path, make_deb([symlink("a", "/etc"), file("a/b", b"x")]))}

    assert entries["a"].link == "/etc"  # the layer writer sees that a/b lies below a link, nothing was written


@pytest.mark.parametrize(
    "data", [b"", b"!<arch>\n", b"PK\3\4" * 100, ar({"control.tar": b""}), ar({"debian-binary": b"3.0\n"})]
)
def test_what_is_no_package_is_refused(tmp_path, data):
    with pytest.raises(BadDeb, match=r"tiny\.deb"):
        read(tmp_path, data)


def test_a_control_archive_over_its_limit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(deb_module, "_MAX_CONTROL", 64 << 10)
    path = tmp_path / "tiny.deb"
    path.write_bytes(make_deb(members={"templates": "x" * (1 << 20)}))

    with pytest.raises(BadDeb, match="limit"):
        control_of(path)


def test_data_over_its_limit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(deb_module, "_MAX_DATA", 64 << 10)

    with pytest.raises(BadDeb, match="limit"):
        read(tmp_path, make_deb([file("usr/bomb", bytes(1 << 20))]))


def test_a_name_in_the_control_archive_is_no_path(tmp_path):
    with pytest.raises(BadDeb, match="unexpected member"):
        read(tmp_path, make_deb(members={"../../postinst": "x"}))


@pytest.mark.parametrize(
    "control", [b"", b"Package: a/b\nVersion: 1\nArchitecture: all\n", b"Package: tiny\nPackage: x\n"]
)
def test_a_malformed_control_file_is_refused(tmp_path, control):
    data = ar({"debian-binary": b"2.0\n", "control.tar": tar([file("control", control)]), "data.tar": tar([])})

    with pytest.raises(BadDeb, match="control"):
        read(tmp_path, data)


def test_extension_headers_that_dpkg_refuses_are_refused(tmp_path):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(tarfile.TarInfo("a" * 200))

    with pytest.raises(BadDeb, match="dpkg does not accept"):
        read(tmp_path, with_data(out.getvalue()))


def test_a_wrong_header_checksum_is_refused(tmp_path):
    data = bytearray(tar([file("usr/a", b"x")]))
    data[0] ^= 1

    with pytest.raises(BadDeb, match="checksum"):
        read(tmp_path, with_data(bytes(data)))


def test_memory_stays_small_on_a_large_file(tmp_path):
    import tracemalloc

    data = make_deb([file("usr/big", bytes(64 << 20))], compression="zst")
    path = tmp_path / "tiny.deb"
    path.write_bytes(data)
    tracemalloc.start()
    for _ in deb_entries(path, deb_of(data)):
        pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 16 << 20


@pytest.mark.parametrize("size", [b"-0000000001\0", b"+0000000001\0", b"0o000000001\0", b"0_000000001\0"])
def test_a_size_that_is_no_octal_number_is_refused(tmp_path, size):
    data = bytearray(tar([file("usr/a", b"x")]))
    data[124:136] = size
    data[148:156] = b"%06o\0 " % (sum(data[:148]) + 8 * 32 + sum(data[156:512]))

    with pytest.raises(BadDeb, match="octal"):
        read(tmp_path, with_data(bytes(data)))
