"""What packages of services do: an owned directory, a user in another's group, joined files, a key store for Java."""

import base64
import hashlib
import struct

import pytest

from envbuilder.layer.debian.alternatives import on_architecture
from envbuilder.layer.debian.dpkg import dpkg_entries
from envbuilder.layer.debian.effects import Account, Alternative, Divert, Join, Own, Slave, effect_entries
from envbuilder.layer.debian.keystore import keystore, keystore_entries
from envbuilder.layer.debian.maintainer import script_digest
from envbuilder.layer.debian.users import accounts
from envbuilder.oci.platform import Platform

MASTER = {
    "usr/share/base-passwd/passwd.master": "root:*:0:0:root:/root:/bin/bash\n",
    "usr/share/base-passwd/group.master": "root:*:0:\nnogroup:*:65534:\n",
}


def test_a_directory_of_a_package_gets_its_owner(system, placed):
    (entry,) = effect_entries(
        Own("var/spool/cron", 0o1730, group="crontab"),
        system(tree=[placed("var/spool/cron/")]),
        {"root": 0},
        {"crontab": 101},
    )

    assert (entry.is_directory, entry.mode & 0o7777, entry.uid, entry.gid) == (True, 0o1730, 0, 101)


def test_a_user_may_have_a_group_that_was_there(system):
    known = accounts(
        system(contents=MASTER), [Account("sshd", user=True, group="nogroup", home="/run/sshd"), Account("next")]
    )

    assert known.passwd[-1][:4] == ("sshd", "*", "100", "65534")
    assert known.gids == {"root": 0, "nogroup": 65534, "next": 100}


def test_files_of_several_packages_are_joined_by_name(system):
    contents = {
        "etc/maps.d/20.conf": "b\n",
        "etc/maps.d/10.conf": "a\n",
        "etc/maps.d/x.old": "c\n",
        "etc/maps.d/d/1.conf": "e\n",
    }
    (entry,) = effect_entries(Join("etc/maps.d", ".conf", "var/lib/map"), system(contents=contents), {}, {})

    assert (entry.path, entry.open().read()) == ("var/lib/map", b"a\nb\n")


@pytest.mark.parametrize(("machine", "there"), [("x86_64", False), ("aarch64", True)])
def test_a_diversion_may_be_one_machines(system, text_of, machine, there):
    entries = list(dpkg_entries(system(), Platform(machine), {"x": [Divert("/lib64", "/.lib64", "aarch64")]}, []))

    assert ("/lib64" in text_of(entries, "var/lib/dpkg/diversions")) == there


def test_an_alternative_may_lie_in_a_directory_of_the_architecture():
    choice = Alternative(
        link="/usr/bin/java", name="java", path="/a-<architecture>/java", priority=1,
        slaves=(Slave(link="/m", name="m", path="/a-<architecture>/m"),),
    )  # fmt: skip
    filled = on_architecture(choice, "arm64")

    assert (filled.path, filled.slaves[0].path, filled.link) == ("/a-arm64/java", "/a-arm64/m", "/usr/bin/java")


def test_one_review_of_java_holds_for_every_architecture():
    assert script_digest("b=/usr/lib/jvm/java-21-openjdk-amd64\n") == script_digest(
        "b=/usr/lib/jvm/java-21-openjdk-arm64\n"
    )


def test_the_key_store_is_one_that_java_takes():
    pem = b"-----BEGIN CERTIFICATE-----\n" + base64.b64encode(b"DER") + b"\n-----END CERTIFICATE-----\n"
    (entry,) = keystore_entries({"usr/share/ca-certificates/mozilla/Root (A).crt": pem, "other": b""})
    data = entry.open().read()

    assert entry.path == "etc/ssl/certs/java/cacerts"
    assert struct.unpack_from(">III", data) == (0xFEEDFEED, 2, 1)
    assert b"\0\x13debian:root_=a=.pem" in data
    assert data[-20:] == hashlib.sha1("changeit".encode("utf-16-be") + b"Mighty Aphrodite" + data[:-20]).digest()


def test_a_key_store_does_not_depend_on_the_order_of_its_certificates():
    certificates = [("b", b"1"), ("\0é😀", b"2")]

    assert keystore(certificates) == keystore(reversed(certificates))
    assert b"\xc0\x80\xc3\xa9\xed\xa0\xbd\xed\xb8\x80" in keystore(certificates)  # DataOutput.writeUTF
