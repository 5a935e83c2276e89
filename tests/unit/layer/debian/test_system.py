import pytest

from envbuilder.layer.debian.ar import BadDeb
from envbuilder.layer.debian.control import Control
from envbuilder.layer.debian.effects import Divert
from envbuilder.layer.debian.overlaps import DivertedPath, SharedPath, check_diversions, check_overlaps
from envbuilder.layer.debian.system import read_system
from envbuilder.layer.tree import file
from envbuilder.testing.debs import deb_of, make_deb


def test_links_are_followed_component_by_component(system, placed):
    tree = [
        placed("lib", link="usr/lib"),
        placed("usr/lib/x/a.so", link="/etc/alternatives/a"),
        placed("etc/alternatives/a", link="/lib/y/a.so.1"),
        placed("usr/lib/y/a.so.1"),
        placed("usr/up", link="../lib"),
    ]
    found = system(tree=tree)

    assert found.follow("lib/x/a.so") == "usr/lib/y/a.so.1"
    assert found.listdir("usr/up") == ("x", "y")
    assert found.exists("/lib/y")


@pytest.mark.parametrize("target", ["missing", "../../outside", "loop"])
def test_dangling_links_and_loops_lead_nowhere(system, placed, target):
    found = system(tree=[placed("loop", link=target)])

    assert found.follow("loop") is None
    assert found.listdir("loop") == ()


def test_a_conffile_may_have_blanks_in_its_path():
    text = "/etc/my file.conf\n/etc/a.conf \nremove-on-upgrade /etc/old file.conf\n\n"

    found = Control(
        package="xx", version="1", architecture="all", fields={}, members={"conffiles": (0o644, text.encode())}
    )

    assert found.conffiles == ("/etc/my file.conf", "/etc/a.conf")
    assert found.declared_conffiles[-1] == ("/etc/old file.conf", "remove-on-upgrade")


def test_only_wanted_content_and_conffile_sums_are_read(tmp_path):
    data = make_deb(
        [file("etc/a.conf", b"A"), file("lib/b", b"B"), file("usr/c", b"C")],
        members={
            "conffiles": "/etc/a.conf\nremove-on-upgrade /etc/gone.conf\n",
            "md5sums": f"{'0' * 32}  lib/b\n{'1' * 32}  usr/c\n",
        },
    )
    path = tmp_path / "tiny.deb"
    path.write_bytes(data)

    class Source:
        def file(self, _artifact):
            return path

    found = read_system([deb_of(data)], Source(), [], lambda name: name == "usr/lib/b")

    assert found.contents == {"usr/lib/b": b"B"}
    assert found.conffiles["tiny"] == (
        ("/etc/a.conf", "7fc56270e7a70fa81a5935b72eacbe29"),
        ("/etc/gone.conf", "newconffile remove-on-upgrade"),
    )
    with pytest.raises(BadDeb, match="no package of the image ships it"):
        found.read("usr/c")


def test_two_packages_with_different_files_at_one_path_are_refused(control):
    one, two = control("one", md5sums=f"{'0' * 32}  lib/x\n"), control("two", md5sums=f"{'1' * 32}  usr/lib/x\n")

    with pytest.raises(SharedPath, match="/usr/lib/x: both one and two"):
        check_overlaps([one, two])


def test_equal_files_and_lone_conffiles_are_no_conflict(control):
    check_overlaps([control("one", md5sums=f"{'0' * 32}  usr/x\n"), control("two", md5sums=f"{'0' * 32}  usr/x\n")])
    check_overlaps([control("one", conffiles="/etc/x\n"), control("two", conffiles="/etc/y\n")])


def test_a_package_whose_file_another_one_diverts_is_refused(control):
    other, guard = control("other", md5sums=f"{'0' * 32}  usr/bin/run\n"), control("guard")
    moved = {"guard": [Divert("/usr/bin/run", "/usr/bin/run.other")]}

    with pytest.raises(DivertedPath, match="/usr/bin/run: guard diverts the file of other"):
        check_diversions([other, guard], moved)
    with pytest.raises(DivertedPath, match="/etc/x: guard diverts"):
        check_diversions([control("other", conffiles="/etc/x\n")], {"guard": [Divert("/etc/x", "/etc/x.other")]})
    check_diversions([control("guard", md5sums=f"{'0' * 32}  usr/bin/run\n")], moved)  # its own is where it wants it
