"""dpkg's database, users, shells and PAM: small systems with known answers."""

import pytest

from envbuilder.layer.debian import pam, shells, users
from envbuilder.layer.debian.ar import BadDeb
from envbuilder.layer.debian.dpkg import dpkg_entries, status
from envbuilder.layer.debian.effects import Account, Copy, Divert, Link, Make, Own, Write, effect_entries
from envbuilder.oci.platform import Platform

MASTER = {
    "usr/share/base-passwd/passwd.master": "root:*:0:0:root:/root:/bin/bash\nnobody:*:65534:65534:nobody:/:/bin/false\n",
    "usr/share/base-passwd/group.master": "root:*:0:\nshadow:*:42:\nusers:*:100:\n",
}


def test_status_is_written_as_dpkg_writes_it(control, system):
    fields = (
        "Source: src\nMaintainer: A <a@b.c>\nHomepage: h\nDepends: a(>=1) |b ,c (<2)\n"
        "Description: one \n two\n .\n three\nMulti-Arch: foreign\n"
    )
    installed = system(control("xx", fields=fields), control("aa"), conffiles={"xx": (("/etc/x", "0" * 32),)})

    assert status(installed).decode() == (
        "Package: aa\nStatus: install ok installed\nArchitecture: all\nVersion: 1\n\n"
        "Package: xx\nStatus: install ok installed\nMaintainer: A <a@b.c>\nArchitecture: all\nMulti-Arch: foreign\n"
        "Source: src\nVersion: 1\nDepends: a (>= 1) | b, c (<= 2)\nConffiles:\n /etc/x 00000000000000000000000000000000\n"
        "Description: one \n two\n .\n three\nHomepage: h\n\n"
    )


def test_the_database_knows_architecture_diversions_overrides_and_triggers(control, system, text_of):
    installed = system(
        control("lib", architecture="amd64", fields="Multi-Arch: same\n", triggers="interest-noawait /usr/x\n"),
        control("tool", triggers="# c\ninterest go\nactivate other\n"),
    )
    divert = {"lib": [Divert("/lib/<multiarch>/a", "/lib/<multiarch>/a.old")]}
    entries = list(
        dpkg_entries(installed, Platform("x86_64"), divert, [Own("usr/x", 0o4754, group="g", override=True)])
    )

    assert text_of(entries, "var/lib/dpkg/arch") == "amd64\n"
    assert text_of(entries, "var/lib/dpkg/diversions") == "/lib/x86_64-linux-gnu/a\n/lib/x86_64-linux-gnu/a.old\nlib\n"
    assert text_of(entries, "var/lib/dpkg/statoverride") == "root g 4754 /usr/x\n"
    assert text_of(entries, "var/lib/dpkg/triggers/File") == "/usr/x lib:amd64/noawait\n"
    assert text_of(entries, "var/lib/dpkg/triggers/go") == "tool\n"


def test_accounts_take_the_lowest_free_ids(system):
    known = users.accounts(system(contents=MASTER), [Account("rdma"), Account("bus", user=True), Account("root")])

    assert known.gids == {"root": 0, "shadow": 42, "users": 100, "rdma": 101, "bus": 102}
    assert known.uids == {"root": 0, "nobody": 65534, "bus": 100}


def test_without_package_passwd_there_is_no_shadow_file(system, text_of):
    entries = list(users.account_entries(users.accounts(system(contents=MASTER), []), shadow=False))

    assert text_of(entries, "etc/passwd").startswith("root:*:0:0:")
    assert not any("shadow" in entry.path for entry in entries)


def test_shadow_files_are_for_root_and_group_shadow(system, text_of):
    entries = list(users.account_entries(users.accounts(system(contents=MASTER), []), shadow=True))
    shadow = next(entry for entry in entries if entry.path == "etc/shadow")

    assert (shadow.mode & 0o777, shadow.gid) == (0o640, 42)
    assert text_of(entries, "etc/shadow").splitlines()[0] == "root:*:1:0:99999:7:::"
    assert text_of(entries, "etc/passwd").startswith("root:x:0:0:")
    assert text_of(entries, "etc/gshadow").splitlines()[1] == "shadow:*::"


def test_malformed_master_files_are_refused(system):
    contents = {**MASTER, "usr/share/base-passwd/group.master": "root:*:zero:\n"}

    with pytest.raises(BadDeb, match=r"group\.master"):
        users.accounts(system(contents=contents), [])


def test_shells_stand_with_their_places_in_usr(system, text_of):
    contents = {
        "usr/share/debianutils/shells": "# shells\n/bin/sh\n",
        "usr/share/debianutils/shells.d/b": "/usr/bin/dash\n",
        "usr/share/debianutils/shells.d/a": "/bin/bash # no\n",
    }
    entries = list(shells.shell_entries(system(contents=contents)))

    assert (
        text_of(entries, "var/lib/shells.state") == "/bin/sh\n/usr/bin/sh\n/bin/bash \n/usr/bin/bash \n/usr/bin/dash\n"
    )
    assert text_of(entries, "etc/shells").startswith("# shells\n/bin/sh\n/usr/bin/sh\n")


TEMPLATE = """\
# head
# here are the per-package modules (the "Primary" block)
{kind} old
# here's the fallback if no module succeeds
{kind} requisite pam_deny.so
# and here are more per-package modules (the "Additional" block)
# end of pam-auth-update config
"""
UNIX = """\
Name: Unix
Default: yes
Priority: 256
Auth-Type: Primary
Auth:
\t[success=end default=ignore]\tpam_unix.so try_first_pass
Auth-Initial:
\t[success=end default=ignore]\tpam_unix.so
Session-Type: Additional
Session:
\trequired\tpam_unix.so
"""
OTHER = "Name: O\nDefault: yes\nPriority: 300\nAuth-Type: Primary\nAuth:\n\t[success=end]\tpam_o.so\n"
OFF = "Name: Off\nDefault: no\nPriority: 0\nAuth-Type: Primary\nAuth:\n\trequired\tpam_off.so\n"


def pam_system(system, **profiles):
    contents = {f"usr/share/pam-configs/{name}": text for name, text in profiles.items()}
    for kind in ("auth", "account", "password", "session", "session-noninteractive"):
        contents[f"usr/share/pam/common-{kind}"] = TEMPLATE.format(kind=kind.split("-")[0])
    return system(contents=contents)


def test_pam_stacks_jump_over_what_follows_by_priority(system, text_of):
    entries = list(pam.pam_entries(pam_system(system, unix=UNIX, other=OTHER, off=OFF)))
    auth = text_of(entries, "etc/pam.d/common-auth").splitlines()

    assert auth[2:4] == ["auth\t[success=2]\tpam_o.so ", "auth\t[success=1 default=ignore]\tpam_unix.so try_first_pass"]
    assert text_of(entries, "var/lib/pam/seen") == "other\nunix\noff\n"


def test_the_first_module_of_a_stack_may_differ_and_an_empty_stack_permits(system, text_of):
    entries = list(pam.pam_entries(pam_system(system, unix=UNIX)))

    assert "auth\t[success=1 default=ignore]\tpam_unix.so \n" in text_of(entries, "etc/pam.d/common-auth")
    assert "account\t[default=1]\t\t\tpam_permit.so\n" in text_of(entries, "etc/pam.d/common-account")
    assert "session\trequired\tpam_unix.so \n" in text_of(entries, "etc/pam.d/common-session-noninteractive")
    assert text_of(entries, "var/lib/pam/session") == (
        "Module: null\n[default=1]\t\t\tpam_permit.so\nModule: unix\nrequired\tpam_unix.so\n"
    )


def test_effects_leave_what_a_package_ships(system, placed):
    installed = system(tree=[placed("etc/a"), placed("srv/")], contents={"usr/share/a": "A", "usr/bin/agent": "B"})
    ids = {"root": 0, "mail": 8}

    def entries(effect):
        return list(effect_entries(effect, installed, ids, ids))

    assert entries(Copy("usr/share/a", "etc/a")) == entries(Make("srv")) == []
    assert entries(Copy("usr/share/a", "etc/b"))[0].open().read() == b"A"
    (mail,) = entries(Make("var/mail", 0o2775, "mail"))
    assert (mail.mode & 0o7777, mail.gid) == (0o2775, 8)
    assert entries(Link("etc/localtime", "/usr/x"))[0].link == "/usr/x"
    assert entries(Write("var/log/btmp", mode=0o660, group="mail"))[0].gid == 8
    (agent,) = entries(Own("usr/bin/agent", 0o2755, group="mail"))
    assert (agent.mode & 0o7777, agent.gid, agent.open().read()) == (0o2755, 8, b"B")
    assert entries(Divert("/a", "/b")) == entries(Account("x")) == []
