"""The reviewed maintainer scripts: one table in one room, long because Debian is.

Each script was read by a person and its effects on a first installation written down. Effects that
need the whole set (users, alternatives, shells, PAM, certificates, ld.so.cache) are computed by the
modules of those names whenever their package is there, and not repeated here.

To review another package: build with it, read the script that the error shows, add the digest that
the error names, and write its effects. Upgrades never happen in an image, so ``$2`` is always empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from envbuilder.layer.debian.effects import (
    Account,
    Alternative,
    Copy,
    Divert,
    Effect,
    Join,
    Link,
    Make,
    Own,
    Slave,
    Write,
)

#: Part of the recipe of the computed layer: raise it when an effect changes, or scripts of a package with effects are
#: added (one whose scripts were allowed unread has a layer without them). A package without effects changes no layer:
#: the alternatives that its script names are left out for as long as it is allowed unread.
TABLE_VERSION = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Reviewed:
    """Scripts of one package that were read, by the digest of their normalised text.

    lacks: what the scripts do that an image built here does not have, in words for the user.
    """

    scripts: tuple[str, ...]
    effects: tuple[Effect, ...] = ()
    lacks: str = ""


#: Of xz-utils: tools that LZMA Utils had under names with lz.
_XZ_TOOLS = ("cat", "more", "less", "diff", "cmp", "grep", "egrep", "fgrep")

#: Where OpenJDK 21 lies.
_JAVA = "/usr/lib/jvm/java-21-openjdk-<architecture>"

#: Package -> review; scripts of Debian 13 (trixie).
REVIEWED: Mapping[str, Reviewed] = {
    "adduser": Reviewed(scripts=("16958da0e2641b55deaa391c38c3accc",)),
    "apt": Reviewed(scripts=("da4232fd72e2c58b58e6d63a99b6137f",)),
    "base-files": Reviewed(
        scripts=(
            "0c30cdf4324a598e933ea39bab4b8a7e",
            "d7635d92bba7bbfe1809f5fb4bc7f4fd",
            "f3e0da7530fbc53c9691386ea509221f",  # arm64, as the next
            "5830b7ce35ff24cd716ac6275331657c",
        ),
        effects=(
            Link("etc/dpkg/origins/default", "debian"),
            Copy("usr/share/base-files/dot.profile", "root/.profile"),
            Copy("usr/share/base-files/dot.bashrc", "root/.bashrc"),
            Copy("usr/share/base-files/profile", "etc/profile"),
            Copy("usr/share/base-files/motd", "etc/motd"),
            Copy("usr/share/base-files/info.dir", "usr/share/info/dir"),
            *(Make(path) for path in ("mnt", "srv", "opt", "etc/opt", "var/opt", "media")),
            Make("var/mail", 0o2775, "mail"),
            Link("var/spool/mail", "../mail"),
            Make("run/lock", 0o1777),
            Link("var/run", "/run"),
            Link("var/lock", "/run/lock"),
            *(
                Make(f"usr/local/{name}")
                for name in ("bin", "etc", "games", "include", "lib", "libexec", "sbin", "src")
            ),
            Make("usr/local/share/man"),
            Link("usr/local/man", "share/man"),
            Write("var/log/wtmp", mode=0o664, group="utmp"),
            Write("var/log/btmp", mode=0o660, group="utmp"),
            Write("var/log/lastlog", mode=0o664, group="utmp"),
            *(Divert(f"/{name}", f"/.{name}.usr-is-merged") for name in ("lib32", "libo32", "libx32")),
            Divert("/lib64", "/.lib64.usr-is-merged", "aarch64"),
        ),
    ),
    "base-passwd": Reviewed(
        scripts=(
            "767e2a246f9c1a6308a868b88bc78a4b",
            "85529f1f4dcc523ba455b908028550db",
        )
    ),
    "bash": Reviewed(scripts=("e8f8f8f56a34973ffcc5a93e21f2464b",)),
    "binutils": Reviewed(scripts=("74a41f881e4be24aaa2157a227a8d3dd",)),
    "ca-certificates": Reviewed(
        scripts=("758dd54fec13e11351f86a811905fafe",), effects=(Make("usr/local/share/ca-certificates"),)
    ),
    "ca-certificates-java": Reviewed(
        scripts=("04433646163dd44e6b3d67d10b029071", "cae15ef4b6c1605519fd7f18e9088987"),
        effects=(Make("var/lib/ca-certificates-java"),),
    ),
    "comerr-dev": Reviewed(
        scripts=(
            "c488730073090a7edcb65b37b4333fde",
            "e72a0bdf46d33c327506a35f72625423",
        )
    ),
    "cpp": Reviewed(scripts=("c947c3fc1f389ecea515109846647392",)),
    "cron": Reviewed(
        scripts=("391899820b8e1ccf298ad749f1c04a8d",),
        effects=(Own("usr/bin/crontab", 0o2755, group="crontab", override=True),),
    ),
    "cron-daemon-common": Reviewed(
        scripts=("743f61ace5512c66d3e4768e22505af5",),
        effects=(Account("crontab"), Own("var/spool/cron/crontabs", 0o1730, group="crontab")),
    ),
    "dash": Reviewed(
        scripts=(
            "34ff397e7e87044dc3b9d6b992adc4a8",
            "94e7e0286ab53335678cf80dd9ae0be0",
        )
    ),
    "dbus": Reviewed(
        scripts=("d76abe61f69fc6eb8b05abd8ffdb1d45",),
        effects=(Own("usr/lib/dbus-1.0/dbus-daemon-launch-helper", 0o4754, group="messagebus", override=True),),
    ),
    "dbus-daemon": Reviewed(
        scripts=("f8aa7e8f9d767db9ca3c1daadba2ed1f",),
        effects=(Make("var/lib/dbus"),),
        lacks="the machine id: one per machine, not one per image",
    ),
    "dbus-system-bus-common": Reviewed(
        scripts=("ed2f815a7d00c34f0a212c891d9d5545",), effects=(Account("messagebus", user=True),)
    ),
    "debian-archive-keyring": Reviewed(scripts=("57a48ea4bcb61004e916815438782cca",)),
    "debianutils": Reviewed(scripts=("5f89612ea6fc3982b9b80addc2e1b8d3",)),
    "dpkg": Reviewed(
        scripts=("eb7839b8e7712a3bbe4cd5663ca45679",),
    ),
    "fontconfig": Reviewed(
        scripts=("946226353719498fa8af7523ab81959e",),
        effects=(Make("var/cache/fontconfig"),),
        lacks="font caches: made on demand",
    ),
    "fontconfig-config": Reviewed(
        scripts=("29f5be394f719ac6a2c43a600699bf7b",),
        effects=(
            Link("etc/fonts/conf.d/10-hinting-slight.conf", "/usr/share/fontconfig/conf.avail/10-hinting-slight.conf"),
            Link(
                "etc/fonts/conf.d/70-no-bitmaps-except-emoji.conf",
                "/usr/share/fontconfig/conf.avail/70-no-bitmaps-except-emoji.conf",
            ),
            Make("usr/local/share/fonts"),
        ),
    ),
    "fonts-urw-base35": Reviewed(
        scripts=("0efaca65e170a7c355c3ed4b4f32024c",),
        lacks="the fonts' index for X servers: they serve their own fonts",
    ),
    "fuse3": Reviewed(
        scripts=(
            "dcebbc914d179267ee058d97fa555120",
            "fd87dd1772410e748d337593b397ffaa",
        ),
        effects=(Own("usr/bin/fusermount3", 0o4755),),
    ),
    "g++": Reviewed(scripts=("18a7fd02747a69f01a2a9ecd316b615a",)),
    # Its alternative is read; the links that it would remove are of before Debian's move to /usr/share/man.
    "gawk": Reviewed(scripts=("3e40a2e89530a7c71d02454ac4ef2d20",)),
    "gcc": Reviewed(scripts=("a9ab551e11acf135650038201d852321",)),
    "gfortran": Reviewed(scripts=("2cdd469ae397cd9d57e974883f27e5a9",)),
    "ghostscript": Reviewed(
        scripts=("64c3b7bbe5668724c208728fb3d3e174",),
        effects=(
            Join("etc/ghostscript/cidfmap.d", ".conf", "var/lib/ghostscript/fonts/cidfmap"),
            Join("etc/ghostscript/fontmap.d", ".conf", "var/lib/ghostscript/fonts/Fontmap"),
        ),
    ),
    "git": Reviewed(scripts=("06637c861c1bd57e8052ee0056e8a4c6",)),
    "git-lfs": Reviewed(
        scripts=("40b7f8b56e8d775deff13d3da4a96d22",),
        effects=(
            Write(
                "etc/gitconfig",
                '[filter "lfs"]\n\tclean = git-lfs clean -- %f\n\tsmudge = git-lfs smudge -- %f\n'
                "\tprocess = git-lfs filter-process\n\trequired = true\n",
            ),
        ),
    ),
    "gzip": Reviewed(
        scripts=(
            "3b33e43d03a51fd4027f6d086b79434d",
            "75734f7366ade767a02f2dfd074cad2f",
        )
    ),
    "init-system-helpers": Reviewed(scripts=("e1131031c2950a62ae0d00b820c39006",)),
    "iperf3": Reviewed(scripts=("8a2ccc9e7d27efa963d776c79e763455",), effects=(Account("iperf3", user=True),)),
    "iproute2": Reviewed(scripts=("2c74f65c80b9e23c6eb3844da19886f3",)),
    "java-common": Reviewed(
        scripts=("f01646b5a1ce3165b58b847a9e92729d",),
        effects=(
            Make("etc/.java"),
            Make("etc/.java/.systemPrefs"),
            Write("etc/.java/.systemPrefs/.system.lock"),
            Write("etc/.java/.systemPrefs/.systemRootModFile"),
        ),
    ),
    "kmod": Reviewed(
        scripts=("2ddafe275396a8f6a14d7b3793673b6f",),
        effects=(
            Write(
                "etc/modules",
                "# /etc/modules is obsolete and has been replaced by /etc/modules-load.d/.\n"
                "# Please see modules-load.d(5) and modprobe.d(5) for details.\n#\n"
                "# Updating this file still works, but it is undocumented and unsupported.\n",
            ),
        ),
    ),
    "less": Reviewed(
        scripts=(
            "902713d000694a99ebfe8ad774987153",
            "9dad68d1ee117638d71a9cf864e97f85",
        )
    ),
    "libblas3": Reviewed(
        scripts=(
            "152f02c8a14e90094593a1a35808caed",
            "aff4ecbf38dc4714dd477247bda9ffe2",
        )
    ),
    "libc-bin": Reviewed(scripts=("58bbb007bde07f936b956beed64f7897",)),
    "libc6": Reviewed(
        scripts=(
            "6f17d0c2d9d5bf39c39aadafa9e1f916",
            "84924f8107d7050f6dae4414c31a4142",
            "89f15e1ec25706cad2b452e8313925ea",  # arm64
        ),
        effects=(
            Divert("/lib64/ld-linux-x86-64.so.2", "/lib64/ld-linux-x86-64.so.2.usr-is-merged", "x86_64"),
            Divert("/lib/ld-linux-aarch64.so.1", "/lib/ld-linux-aarch64.so.1.usr-is-merged", "aarch64"),
        ),
    ),
    "libgcrypt20": Reviewed(scripts=("4113179618a0313eb47cacc4a3edcff3",)),
    "libgdk-pixbuf-2.0-0": Reviewed(
        scripts=("db1d3f2ee4a713b90a5da59285b2f77d",), lacks="loaders.cache: only the built-in image formats load"
    ),
    "libglib2.0-0t64": Reviewed(
        scripts=(
            "a34ccc68279c6f93e51c8ed464d75980",
            "a9b4e2f347556119e4fd4049fcf30ca7",
        ),
        lacks="gschemas.compiled and giomodule.cache: GTK programs fall back to defaults",
    ),
    "libgssapi-krb5-2": Reviewed(scripts=("f036dcb8bc354f74be1cc5f45c98d784",)),
    "libibverbs1": Reviewed(scripts=("e0ab2373e5a0b7a31fab37b1fed9dc4c",), effects=(Account("rdma"),)),
    "liblapack3": Reviewed(
        scripts=(
            "213a5587b10275d9a96a879758363cc6",
            "705a53a053a76a19c950003cba2935eb",
        )
    ),
    "libopenblas0-pthread": Reviewed(scripts=("87c2a64e3210a3a6c90032cf71e2a482",)),
    "libpam-modules": Reviewed(
        scripts=(
            "0d0bddab86e0ae1b777725cd1d2c5638",
            "7f5f78d2094de5d0574193c3a17eaa31",
        ),
        effects=(
            Write("etc/security/opasswd", mode=0o600),
            Write("etc/environment"),
        ),
    ),
    "libpam-runtime": Reviewed(scripts=("6cf6e4a585a9423ef8ec4bfa35f6476c",)),
    "libpam0g": Reviewed(scripts=("8a875dc8d3a1c0b0be9cc5e11c9e9086",)),
    "libpython3.13-minimal": Reviewed(scripts=("7006f43c17b0b720a017b6084ae0b5c9",)),
    "libreadline8t64": Reviewed(
        scripts=("718a56bf5fe78a5dd71050cee6127be9",),
        effects=(
            *(
                Divert(f"/lib/<multiarch>/{name}", f"/lib/<multiarch>/{name}.usr-is-merged")
                for name in ("libhistory.so.8", "libhistory.so.8.2", "libreadline.so.8", "libreadline.so.8.2")
            ),
        ),
    ),
    "libselinux1": Reviewed(scripts=("a84d8da66e9ef06387152cfd0053baa4",)),
    "libtirpc3t64": Reviewed(
        scripts=("4b3f1bb25330146025bc6205e5cdbcb3",),
        effects=(
            *(
                Divert(f"/lib/<multiarch>/{name}", f"/lib/<multiarch>/{name}.usr-is-merged")
                for name in ("libtirpc.so.3", "libtirpc.so.3.0.0")
            ),
        ),
    ),
    "libwrap0": Reviewed(
        scripts=("4bd7a827ac90f03effaaaaa8d06bc86a",),
        effects=(
            Write(
                "etc/hosts.allow",
                "# /etc/hosts.allow: list of hosts that are allowed to access the system.\n"
                "#                   See the manual pages hosts_access(5) and hosts_options(5).\n"
                "#\n"
                "# Example:    ALL: LOCAL @some_netgroup\n"
                "#             ALL: .foobar.edu EXCEPT terminalserver.foobar.edu\n"
                "#\n"
                '# If you\'re going to protect the portmapper use the name "rpcbind" for the\n'
                "# daemon name. See rpcbind(8) and rpc.mountd(8) for further information.\n"
                "#\n"
                "\n",
            ),
            Write(
                "etc/hosts.deny",
                "# /etc/hosts.deny: list of hosts that are _not_ allowed to access the system.\n"
                "#                  See the manual pages hosts_access(5) and hosts_options(5).\n"
                "#\n"
                "# Example:    ALL: some.host.name, .some.domain\n"
                "#             ALL EXCEPT in.fingerd: other.host.name, .other.domain\n"
                "#\n"
                '# If you\'re going to protect the portmapper use the name "rpcbind" for the\n'
                "# daemon name. See rpcbind(8) and rpc.mountd(8) for further information.\n"
                "#\n"
                "# The PARANOID wildcard matches any host whose name does not match its\n"
                "# address.\n"
                "#\n"
                "# You may wish to enable this to ensure any programs that don't\n"
                "# validate looked up hostnames still leave understandable logs. In past\n"
                "# versions of Debian this has been the default.\n"
                "# ALL: PARANOID\n"
                "\n",
            ),
        ),
    ),
    "libwtmpdb0": Reviewed(
        scripts=("bf4fa27174644bf2c068a76cf0b2e461",), effects=(Link("var/lib/wtmpdb/wtmp.db", "../../log/wtmp.db"),)
    ),
    "locales": Reviewed(
        scripts=("c2c43ca5106e4d4d1bae2a0d8933aa07",),
        effects=(
            Write("etc/locale.conf", "#  File generated by update-locale\n"),
            Link("etc/default/locale", "../locale.conf"),
        ),
        lacks="/etc/locale.gen and generated locales: C.UTF-8 is built in",
    ),
    "login.defs": Reviewed(scripts=("ec4a504a18af71d9b6647a996a7fe1a8",)),
    "man-db": Reviewed(
        scripts=("6743415cec8418f870206ca45d5fb0bb",),
        effects=(
            Make("var/cache/man", group="man", user="man"),
            Write("var/lib/man-db/auto-update"),
        ),
        lacks="the index of manual pages: apropos finds nothing",
    ),
    "nano": Reviewed(scripts=("ae070f933e1dad3970089bb4b5f876bd",)),
    "netbase": Reviewed(
        scripts=("5daf8d149a431da93b79abeaee9f11e4",),
        effects=(
            Write(
                "etc/hosts",
                "127.0.0.1\tlocalhost\n::1\t\tlocalhost ip6-localhost ip6-loopback\n"
                "ff02::1\t\tip6-allnodes\nff02::2\t\tip6-allrouters\n\n",
            ),
            Write("etc/networks", "default\t\t0.0.0.0\nloopback\t127.0.0.0\nlink-local\t169.254.0.0\n\n"),
        ),
    ),
    "netcat-openbsd": Reviewed(scripts=("a59d38887a2e5a299ff94ecdf689f78f",)),
    "nodejs": Reviewed(scripts=("9e73bc7e384f081fe4e9e6ebaf713951",)),
    "openjdk-21-jre-headless": Reviewed(
        scripts=("63d583a190380665dc7dbcacc9925792",),
        effects=(
            Make("etc/.java"),
            Make("etc/.java/.systemPrefs"),
            Write("etc/.java/.systemPrefs/.system.lock"),
            Write("etc/.java/.systemPrefs/.systemRootModFile"),
            *(
                Alternative(
                    link=f"/usr/bin/{tool}",
                    name=tool,
                    path=f"{_JAVA}/bin/{tool}",
                    priority=2111,
                    slaves=(
                        Slave(
                            link=f"/usr/share/man/man1/{tool}.1.gz",
                            name=f"{tool}.1.gz",
                            path=f"{_JAVA}/man/man1/{tool}.1.gz",
                        ),
                    ),
                )
                for tool in ("java", "jpackage", "keytool", "rmiregistry")
            ),
            Alternative(
                link="/usr/bin/jexec",
                name="jexec",
                path=f"{_JAVA}/lib/jexec",
                priority=2111,
                slaves=(Slave(link="/usr/share/binfmts/jar", name="jexec-binfmt", path=f"{_JAVA}/lib/jar.binfmt"),),
            ),
        ),
    ),
    "openmpi-bin": Reviewed(scripts=("2fe15dde58b3afc4b4d757f48874411c",)),
    "openssh-client": Reviewed(
        scripts=("4b52b61ecaea4f49d17f2608a32e61bc",),
        effects=(
            Account("_ssh"),
            Own("usr/bin/ssh-agent", 0o2755, group="_ssh"),
        ),
    ),
    "openssh-server": Reviewed(
        scripts=("a50a1b2c4be2b5855dc60e47645161d3", "a9b2fd22198ff3f09c43d28d4cc6cabc"),
        effects=(
            Account("sshd", user=True, group="nogroup", home="/run/sshd", comment="sshd user"),
            Copy("usr/share/openssh/sshd_config", "etc/ssh/sshd_config"),
        ),
        lacks="host keys, which no two containers should share: run ssh-keygen -A before sshd",
    ),
    "openssl": Reviewed(scripts=("9fb8c4464c9734444f0ab475bc64ee3d",)),
    "parallel": Reviewed(
        scripts=("c2301746756521346c3383769b0f4d7b",),
        effects=(
            Divert("/usr/bin/parallel", "/usr/bin/parallel.moreutils"),
            Divert("/usr/share/man/man1/parallel.1.gz", "/usr/share/man/man1/parallel.moreutils.1.gz"),
        ),
    ),
    "passwd": Reviewed(scripts=("ceeea4fa24b97730a8185db46360dfab",)),
    "pciutils": Reviewed(
        scripts=(
            "2723b1f3eb345984ab286e619241192d",
            "b81bee054f6f63243c02017f5a61727a",
        )
    ),
    "perl": Reviewed(scripts=("b0d7f9d49ec9174fe82451a5c104dfc4",)),
    "pinentry-curses": Reviewed(scripts=("2d27d76073837abfbfbe038732e44f51",)),
    "pkg-config": Reviewed(scripts=("df957fb5089a83826b7ad0fe935db1fc",)),
    "pkgconf": Reviewed(scripts=("f4b73ff225eb5dd2b48571f2a35e0517",)),
    "pkgconf-bin": Reviewed(scripts=("8d0aa948833d2c3bdb9282dde98a3ae8",), effects=(Make("usr/lib/pkgconfig"),)),
    "poppler-data": Reviewed(scripts=("ac17b23a3f7d0c0b3d8c6172a7dfb630",)),
    "procps": Reviewed(scripts=("8bab672b9b62d39993a6f65a53306c52",)),
    "python3": Reviewed(
        scripts=(
            "6bc49a4c8a35a2ecf10b9a6edccc7ee6",
            "a01a32d1c678e822c749a9cdb3fe0c58",
        ),
        effects=(
            Make("etc/python3"),
            Write(
                "etc/python3/debian_config",
                "[DEFAULT]\n# how to byte-compile (comma separated: standard, optimize)\nbyte-compile = standard\n",
            ),
        ),
        lacks="byte-code of dist-packages: compiled in memory at import",
    ),
    "python3-minimal": Reviewed(scripts=("f132752ff74a6949f2376521eced0703",), lacks="byte-code of py3compile itself"),
    "python3.13": Reviewed(scripts=("06411bf7232eef74ba429520a62d911a", "ff35f235933839bf74fe2cd3e0ae6db6")),
    "python3.13-minimal": Reviewed(
        scripts=(
            "6f0748f993385e68a2ce112037b87493",
            "a2a21d37ce4e4f17e4160842125ee8b1",
            "56561d14f88fa9c466f4b30d3a0fe02b",  # arm64
        ),
        effects=(
            Make("usr/local/lib/python3.13"),
            Make("usr/local/lib/python3.13/dist-packages"),
            Write("var/lib/python/python3.13_installed"),
        ),
    ),
    "python3.13-venv": Reviewed(scripts=("82a1223306644eb4cb49b7e3d8d4f053",), lacks="byte-code of ensurepip"),
    "readline-common": Reviewed(
        scripts=("ace8fd5f5a44af3de37bdde126e25a2b",), effects=(Copy("usr/share/readline/inputrc", "etc/inputrc"),)
    ),
    "shared-mime-info": Reviewed(
        scripts=("be8769a84c6761769969762c4bc1fcca",),
        lacks="the compiled MIME database: programs guess types by their own means",
    ),
    "sudo": Reviewed(
        scripts=(
            "2b39b9cdf6638292570d9828f558294f",
            "db692ccf71653815f2534a129c0a21f6",
        ),
        effects=(Own("etc/sudoers", 0o440),),
    ),
    "systemd": Reviewed(
        scripts=("951bed902cfb7d4d8bee3a7dbce05e9c", "32967d02317541bac76f1de86f519281"),
        effects=(
            Account("systemd-journal"),
            Account("systemd-network", user=True, home="/", comment="systemd Network Management"),
            Make("var/log/journal"),
        ),
        lacks="enabled units, the message catalogue and the machine id: no systemd boots an image",
    ),
    "tar": Reviewed(scripts=("86fce60d7fb2f52f5c84b3da8ffec596",)),
    "tcpdump": Reviewed(scripts=("c05b2b59ab515b1c6a4dca341ade88bd",), effects=(Account("tcpdump", user=True),)),
    "tzdata": Reviewed(
        scripts=("b2300bb7f4afc30e912a34f9f71e38fa",), effects=(Link("etc/localtime", "/usr/share/zoneinfo/Etc/UTC"),)
    ),
    "ucf": Reviewed(
        scripts=(
            "d80a578b10f94f28890fd35910976017",
            "22a7dd0552878726ba0a099a91f72e4b",
        ),
        effects=(
            Write("var/lib/ucf/hashfile"),
            Write("var/lib/ucf/registry"),
        ),
    ),
    "udev": Reviewed(
        scripts=("8bd986d8f1824aa63fcca407e145fc57", "3f4ee7370480e73e8f04f349e45ee8af"),
        effects=tuple(Account(name) for name in ("input", "sgx", "clock", "kvm", "render")),
        lacks="hwdb.bin, the compiled hardware database: the host's udev has its own",
    ),
    "util-linux": Reviewed(scripts=("e31a761ad7aca9502cbbabefd55ee456",)),
    "vim-runtime": Reviewed(
        scripts=(
            "ae270f7e62ca310c490d8600ead3bf0b",
            "eb5c11a887f36a5f76c34eb81aff6d43",
        ),
        effects=(
            *(
                Divert(f"/usr/share/vim/vim91/doc/{name}", f"/usr/share/vim/vim91/doc/{name}.vim-tiny")
                for name in ("help.txt", "tags")
            ),
        ),
    ),
    "x11-common": Reviewed(scripts=("ee1c858241be7a9dd62f58b0fb19a1eb",)),
    "xfonts-utils": Reviewed(
        scripts=("d69f3bbb0b97ccfa36be389de4f7e760",),
        effects=(
            Write(
                "var/lib/xfonts/excluded-aliases", "!! Excluded alias files to be ignored by update-fonts-alias(8)\n"
            ),
        ),
    ),
    "xz-utils": Reviewed(
        scripts=("f81ad3944b31e7d4affe3e6f94ebe5a4",),
        effects=(
            Alternative(
                link="/usr/bin/lzma",
                name="lzma",
                path="/usr/bin/xz",
                priority=20,
                slaves=tuple(
                    Slave(link=f"{directory}/{old}{end}", name=f"{old}{end}", path=f"{directory}/{new}{end}")
                    for directory, end in (("/usr/share/man/man1", ".1.gz"), ("/usr/bin", ""))
                    for old, new in (
                        ("lzma", "xz"),
                        ("unlzma", "unxz"),
                        *((f"lz{tool}", f"xz{tool}") for tool in _XZ_TOOLS),
                    )
                    if old + end != "lzma"
                ),
            ),
        ),
    ),
    "zsh": Reviewed(scripts=("4543cb140f6e65845205bcef3e24cd08",)),
    "zsh-common": Reviewed(
        scripts=("ebd6dc73ddb7c3250f3ee4ba064271e6",),
        effects=(
            Make("usr/local/share/zsh"),
            Make("usr/local/share/zsh/site-functions"),
        ),
    ),
}
