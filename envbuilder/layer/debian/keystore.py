"""etc/ssl/certs/java/cacerts: the authorities as Java's trust store, which a JVM writes on a Debian system.

Without it no Java program trusts any server. Source: ca-certificates-java 20240118 (UpdateCertificates:
alias ``debian:`` and the name of the .pem in lower case, password ``changeit``), the JKS format of
OpenJDK (sun.security.provider.JavaKeyStore). The password is public: it only makes a checksum.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator, Mapping

from envbuilder.layer.debian.certificates import authorities
from envbuilder.layer.tree import SOURCE_EPOCH_S, Entry, file

_PATH = "etc/ssl/certs/java/cacerts"
_MAGIC, _VERSION, _TRUSTED = 0xFEEDFEED, 2, 2
_PASSWORD, _SALT = "changeit", b"Mighty Aphrodite"


def keystore_entries(contents: Mapping[str, bytes]) -> Iterator[Entry]:
    """The trust store with every authority that the image has.

    Raises:
        BadDeb: a file is no PEM certificate.
    """
    yield file(_PATH, keystore((f"debian:{link.lower()}", der) for link, der in authorities(contents)))


def keystore(certificates: Iterable[tuple[str, bytes]]) -> bytes:
    """A Java key store that trusts ``certificates``, (alias, DER), sorted by alias; all of the epoch's second."""
    entries = sorted(dict(certificates).items())
    data = struct.pack(">III", _MAGIC, _VERSION, len(entries))
    for alias, der in entries:
        data += struct.pack(">I", _TRUSTED) + _text(alias) + struct.pack(">Q", SOURCE_EPOCH_S * 1000)
        data += _text("X.509") + struct.pack(">I", len(der)) + der
    return data + hashlib.sha1(_PASSWORD.encode("utf-16-be") + _SALT + data, usedforsecurity=False).digest()


def _text(value: str) -> bytes:
    """As java.io.DataOutput.writeUTF: CESU-8, for Java's characters are UTF-16."""
    units = value.encode("utf-16-be")
    encoded = b"".join(
        chr(int.from_bytes(units[at : at + 2], "big")).encode("utf-8", "surrogatepass")
        for at in range(0, len(units), 2)
    ).replace(b"\0", b"\xc0\x80")
    return struct.pack(">H", len(encoded)) + encoded
