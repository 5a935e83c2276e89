import pytest

from envbuilder.layer.debian.alternatives import alternative_entries, alternatives_in
from envbuilder.layer.debian.ar import BadDeb
from envbuilder.layer.debian.effects import Alternative, Slave
from envbuilder.paths import UnsafePath

MAWK = """\
if [ "$1" = "configure" ]; then
        update-alternatives --quiet --install /usr/bin/awk awk /usr/bin/mawk 5 \\
            --slave /usr/share/man/man1/awk.1.gz awk.1.gz /usr/share/man/man1/mawk.1.gz \\
            --slave /usr/bin/nawk nawk /usr/bin/mawk || true
fi
"""


def choices(script):
    return list(alternatives_in(script, source="x"))


def test_an_install_line_becomes_a_choice():
    assert choices(MAWK) == [
        Alternative(
            link="/usr/bin/awk",
            name="awk",
            path="/usr/bin/mawk",
            priority=5,
            slaves=(
                Slave(link="/usr/share/man/man1/awk.1.gz", name="awk.1.gz", path="/usr/share/man/man1/mawk.1.gz"),
                Slave(link="/usr/bin/nawk", name="nawk", path="/usr/bin/mawk"),
            ),
        )
    ]


def test_a_comment_ends_a_continued_command_as_in_the_shell():
    script = "update-alternatives \\\n    --install /usr/bin/c++ c++ /usr/bin/g++ 20 \\\n#   --slave a b c\nexit 0\n"

    assert [(item.name, item.slaves) for item in choices(script)] == [("c++", ())]


def test_removals_leave_nothing():
    assert choices("update-alternatives --quiet --remove pager /bin/less\n") == []


@pytest.mark.parametrize(
    "line",
    [
        "--install $a b c 1",
        "--install /a b /c x",
        "--install /a b /c 1 --slave /d e",
        "--install /a ../b /c 1",
        "--config x",
    ],
)
def test_what_cannot_be_known_is_refused(line):
    with pytest.raises((BadDeb, UnsafePath), match="x"):
        choices(f"update-alternatives {line}\n")


def test_the_highest_priority_wins_and_missing_slaves_get_no_link(system, placed, text_of):
    files = [placed("usr/bin/mawk"), placed("usr/bin/gawk")]
    gawk = "update-alternatives --install /usr/bin/awk awk /usr/bin/gawk 10 --slave /usr/bin/nawk nawk /usr/bin/gawk"
    entries = list(alternative_entries([*choices(MAWK), *choices(gawk)], system(tree=files)))
    links = {entry.path: entry.link for entry in entries if entry.is_symlink}

    assert links == {
        "etc/alternatives/awk": "/usr/bin/gawk",
        "usr/bin/awk": "/etc/alternatives/awk",
        "etc/alternatives/nawk": "/usr/bin/gawk",
        "usr/bin/nawk": "/etc/alternatives/nawk",
    }
    assert text_of(entries, "var/lib/dpkg/alternatives/awk") == (
        "auto\n/usr/bin/awk\nawk.1.gz\n/usr/share/man/man1/awk.1.gz\nnawk\n/usr/bin/nawk\n\n"
        "/usr/bin/gawk\n10\n\n/usr/bin/gawk\n"
        "/usr/bin/mawk\n5\n/usr/share/man/man1/mawk.1.gz\n/usr/bin/mawk\n\n"
    )


def test_links_land_in_a_merged_usr(system):
    entries = alternative_entries(choices("update-alternatives --install /lib/cpp cpp /usr/bin/cpp 10"), system())

    assert "usr/lib/cpp" in {entry.path for entry in entries}
