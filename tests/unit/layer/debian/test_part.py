from dataclasses import replace

import pytest

from envbuilder.layer.debian.part import Part, Parts
from envbuilder.layer.debian.system import read_system
from envbuilder.layer.tree import file
from envbuilder.testing.debs import deb_of, make_deb

DATA = make_deb(
    [file("etc/a.conf", b"A"), file("lib/b", bytes(range(256)))],
    members={"conffiles": "/etc/a.conf\n", "md5sums": f"{'0' * 32}  lib/b\n", "postinst": "#!/bin/sh\n: ü\n"},
)
DEB = deb_of(DATA)


class Source:
    """One package; counts how often it is asked for."""

    def __init__(self, folder):
        self.path, self.asked = folder / "tiny.deb", 0
        self.path.write_bytes(DATA)

    def file(self, _artifact):
        self.asked += 1
        return self.path


def wanted(path):
    return path == "usr/lib/b"


def test_a_package_is_opened_once_and_its_part_is_the_same_ever_after(tmp_path):
    source, folder = Source(tmp_path), tmp_path / "debs"
    plain = read_system([DEB], source, [], wanted)
    first = read_system([DEB], source, [], wanted, parts=Parts(folder, rule="1"))
    asked = source.asked
    again = read_system([DEB], source, [], wanted, parts=Parts(folder, rule="1"))

    assert first == again == plain
    assert again.contents == {"usr/lib/b": bytes(range(256))}
    assert source.asked == asked


@pytest.mark.parametrize("change", ["rule", "package", "damage", "other bytes"])
def test_a_part_of_another_rule_or_package_and_a_damaged_one_are_read_anew(tmp_path, change):
    folder, deb = tmp_path / "debs", DEB
    control = read_system([DEB], Source(tmp_path), [], wanted, parts=Parts(folder, rule="1")).controls["tiny"]
    (record,) = folder.glob("*.zst")
    if change == "damage":
        record.write_bytes(record.read_bytes()[:-1])
    elif change == "other bytes":
        Parts(folder, rule="1")._records.put(record.name.partition(".")[0], b'{"package": 1}')
    elif change == "package":
        deb = replace(DEB, digest=deb_of(DATA + b"x").digest)
    fresh = Part(control=control)

    assert Parts(folder, rule="2" if change == "rule" else "1").of(deb, lambda: fresh) is fresh
