from dataclasses import replace

import pytest

from envbuilder.layer.computed import computed_entries
from envbuilder.layer.debian.maintainer import UnknownScript
from envbuilder.layer.tree import FILE, SYMLINK, Placed, file
from envbuilder.testing.debs import deb_of, make_deb
from envbuilder.testing.locks import SMALL

SITE = "opt/env/lib/python3.13/site-packages"
PACKAGES = {
    "base-passwd": (
        {
            "usr/share/base-passwd/passwd.master": b"root:*:0:0:root:/root:/bin/bash\n",
            "usr/share/base-passwd/group.master": b"root:*:0:\n",
        },
        {},
    ),
    "libc-bin": (
        {
            "usr/share/libc-bin/nsswitch.conf": b"passwd: files\n",
            "etc/ld.so.conf": b"include /etc/ld.so.conf.d/*.conf\n",
            "etc/ld.so.conf.d/libc.conf": b"/usr/local/lib\n",
        },
        {"conffiles": "/etc/ld.so.conf\n/etc/ld.so.conf.d/libc.conf\n"},
    ),
    "tool": ({}, {"postinst": "#!/bin/sh\nset -e\nexit 0\n"}),
}
BELOW = [
    Placed(path="usr/local/lib/liba.so.1", mode=FILE | 0o644, soname="liba.so.1", elf_flags=0x0303),
    Placed(
        path=f"{SITE}/nvidia/cu13/lib/libcudart.so.13", mode=FILE | 0o644, soname="libcudart.so.13", elf_flags=0x0303
    ),
    Placed(path="etc/hosts", mode=FILE | 0o644),
]


@pytest.fixture
def compute(tmp_path):
    """The computed layer of packages ``{name: (files, members)}``, in any order; path -> entry."""

    def call(packages=PACKAGES, *, below=BELOW, order=sorted, **options):
        paths, debs = {}, []
        for name in order(packages):
            files, members = packages[name]
            sums = "".join(f"{'0' * 32}  {path}\n" for path in files if not path.startswith("etc/"))
            data = make_deb([file(*item) for item in files.items()], name=name, members={**members, "md5sums": sums})
            debs.append(deb_of(data, name=name))
            paths[debs[-1].digest] = tmp_path / f"{name}.deb"
            paths[debs[-1].digest].write_bytes(data)

        class Source:
            def file(self, artifact):
                return paths[artifact.digest]

        entries = list(
            computed_entries(replace(SMALL, debs=tuple(debs)), [below], Source(), site_packages=SITE, **options)
        )
        found = {entry.path: entry for entry in entries}
        assert len(found) == len(entries), "each path once"
        return found

    return call


def content(entry):
    return entry.link or (entry.open().read() if entry.open else b"")


def test_what_the_scripts_of_the_base_would_have_made_is_there(compute):
    found = compute()

    assert content(found["etc/passwd"]).startswith(b"root:*:0:0:")
    assert content(found["etc/nsswitch.conf"]) == b"passwd: files\n"
    assert b"Package: tool\nStatus: install ok installed\n" in content(found["var/lib/dpkg/status"])
    assert content(found["etc/machine-id"]) == b""


def test_the_loader_finds_the_system_and_cuda(compute):
    found = compute()
    cache = content(found["etc/ld.so.cache"])

    assert b"/usr/local/lib/liba.so.1\0" in cache
    assert f"/{SITE}/nvidia/cu13/lib/libcudart.so.13\0".encode() in cache
    assert content(found["etc/ld.so.conf.d/envbuilder-cuda.conf"]).decode() == f"/{SITE}/nvidia/cu13/lib\n"
    assert found["usr/local/cuda/lib64/libcudart.so"].link == "libcudart.so.13"


def test_the_order_of_packages_changes_nothing(compute):
    one, two = compute(), compute(order=lambda names: sorted(names, reverse=True))

    assert {path: content(entry) for path, entry in one.items()} == {
        path: content(entry) for path, entry in two.items()
    }


def test_an_unknown_script_stops_the_build_unless_it_is_allowed(compute):
    packages = {**PACKAGES, "tool": ({}, {"postinst": "#!/bin/sh\nrm -rf /srv\n"})}

    with pytest.raises(UnknownScript, match="tool 1: postinst"):
        compute(packages)
    assert "etc/passwd" in compute(packages, allow=frozenset({"tool"}))


def test_what_lies_below_is_not_written_again(compute):
    assert "etc/hosts" not in compute()
    assert "etc/hosts" in compute(below=[])


def test_a_library_behind_an_alternative_is_in_the_cache(compute):
    script = "#!/bin/sh\nset -e\nupdate-alternatives --install /usr/lib/libb.so.3 libb.so.3 /usr/lib/b/libb.so.3 10\n"
    below = [*BELOW, Placed(path="usr/lib/b/libb.so.3", mode=FILE | 0o644, soname="libb.so.3", elf_flags=0x0303)]
    # The package is allowed by its review in real life; a snippet of debhelper needs none.
    snippet = (
        f"#!/bin/sh\n# Automatically added by dh_installalternatives/1\n{script}# End automatically added section\n"
    )
    found = compute({**PACKAGES, "tool": ({}, {"postinst": snippet})}, below=below)

    assert found["usr/lib/libb.so.3"].link == "/etc/alternatives/libb.so.3"
    assert b"/usr/lib/libb.so.3\0" in content(found["etc/ld.so.cache"])


def test_a_dangling_link_below_does_no_harm(compute):
    assert compute(below=[*BELOW, Placed(path="usr/local/lib/libx.so", mode=SYMLINK | 0o777, link="nowhere")])
