import pytest

from envbuilder.layer.debian.alternatives import alternatives_in
from envbuilder.layer.debian.control import Control
from envbuilder.layer.debian.effects import Account
from envbuilder.layer.debian.known_scripts import REVIEWED
from envbuilder.layer.debian.maintainer import UnknownScript, effects_of, lacking, normalised, script_digest

SYSTEMD = """\
# Automatically added by dh_installsystemd/13.24.2
if [ "$1" = "configure" ]; then
\tdeb-systemd-helper enable 'x.timer' >/dev/null || true
fi
# End automatically added section
"""
LIBIBVERBS = """\
#!/bin/sh
set -e
if [ "$1" = configure ]; then
    # a comment of the next point release
    getent group rdma > /dev/null 2>&1 || addgroup --system --quiet rdma
fi


exit 0
"""

GAWK = """\
#!/bin/sh
set -e

update-alternatives --quiet --install /usr/bin/awk awk /usr/bin/gawk 10 \\
  --slave /usr/share/man/man1/awk.1.gz awk.1.gz /usr/share/man/man1/gawk.1.gz \\
  --slave /usr/bin/nawk nawk /usr/bin/gawk \\
  --slave /usr/share/man/man1/nawk.1.gz nawk.1.gz /usr/share/man/man1/gawk.1.gz
for badlink in /usr/man/man1/awk.1 /usr/man/man1/nawk.1; do
  if [ -L $badlink ]; then
    if ! ls -l $(ls -l $badlink | cut -d">" -f2) >/dev/null 2>&1; then
      rm -f $badlink; fi; fi; done


"""


def test_a_script_of_harmless_snippets_has_no_effect(control):
    script = f"#!/bin/sh\nset -e\n{SYSTEMD}\n{SYSTEMD.replace('installsystemd', 'python3')}\nexit 0\n"

    assert effects_of([control("xx", postinst=script)]) == {}


def test_an_unknown_script_stops_the_build_and_is_shown(control):
    with pytest.raises(UnknownScript, match=r"xx 1: postinst: [\s\S]*rm -rf /var/lib/x") as caught:
        effects_of([control("xx", postinst="#!/bin/sh\nrm -rf /var/lib/x\n")])

    assert caught.value.hint


def test_every_unknown_script_is_named_at_once(control):
    with pytest.raises(UnknownScript, match=r"aa 1: preinst[\s\S]*bb 1: postinst"):
        effects_of([control("aa", preinst="false\n"), control("bb", postinst="false\n")])


def test_an_unknown_snippet_is_not_taken_for_a_harmless_one(control):
    with pytest.raises(UnknownScript):
        effects_of([control("xx", postinst=SYSTEMD.replace("dh_installsystemd", "dh_ucf"))])


def test_an_allowed_package_passes_without_effects(control):
    assert effects_of([control("xx", postinst="false\n")], allow=frozenset({"xx"})) == {}


def test_scripts_that_run_only_on_removal_do_not_matter(control):
    assert effects_of([control("xx", prerm="false\n", postrm="false\n", config="false\n")]) == {}


def test_a_reviewed_script_has_its_effects_whatever_its_version(control):
    assert effects_of([control("libibverbs1", version="99", postinst=LIBIBVERBS)]) == {
        "libibverbs1": (Account("rdma"),)
    }


def test_gawk_has_no_effect_but_its_alternative(control):
    assert effects_of([control("gawk", postinst=GAWK)]) == {"gawk": ()}
    (choice,) = alternatives_in(GAWK, source="gawk")
    assert (choice.link, choice.path, choice.priority) == ("/usr/bin/awk", "/usr/bin/gawk", 10)
    assert [(slave.link, slave.path) for slave in choice.slaves][1] == ("/usr/bin/nawk", "/usr/bin/gawk")


def test_a_changed_script_of_a_reviewed_package_is_looked_at(control):
    with pytest.raises(UnknownScript, match="libibverbs1"):
        effects_of([control("libibverbs1", postinst=LIBIBVERBS.replace("--quiet rdma", "--quiet other"))])


def test_a_review_of_one_package_says_nothing_about_another(control):
    with pytest.raises(UnknownScript):
        effects_of([control("other", postinst=LIBIBVERBS)])


def test_an_exit_in_the_middle_is_part_of_the_script():
    assert script_digest("a\nexit 0\nb\n") != script_digest("a\nb\n")


def test_architectures_share_a_review():
    assert script_digest("cd /usr/lib/x86_64-linux-gnu\n") == script_digest("cd /usr/lib/aarch64-linux-gnu\n")


@pytest.mark.parametrize(
    "line", ['dpkg-maintscript-helper rm_conffile /etc/x 1~ -- "$@"', ". /usr/share/debconf/confmodule"]
)
def test_idle_lines_are_left_out(line):
    assert normalised(f"#!/bin/sh\n{line}\n") == ""


def test_an_idle_looking_line_with_more_in_it_stays():
    assert normalised('dpkg-maintscript-helper rm_conffile /etc/x; rm -rf / -- "$@"\n')


def test_the_table_is_sorted_and_says_something_of_every_package():
    assert list(REVIEWED) == sorted(REVIEWED)
    assert all(len(script) == 32 for review in REVIEWED.values() for script in review.scripts)


def test_a_package_without_scripts_is_known(control):
    plain: Control = control("xx")

    assert effects_of([plain]) == {}


def test_what_an_image_lacks_is_said():
    assert list(lacking(["man-db", "bash", "unheard-of"])) == ["man-db"]
