import pytest

from envbuilder.layer.debian.ar import BadDeb
from envbuilder.layer.debian.certificates import certificate_entries, subject_hash

#: ISRG Root X2, as ca-certificates ships it; ``openssl x509 -subject_hash`` says 0b9bc432.
PEM = """\
-----BEGIN CERTIFICATE-----
MIICGzCCAaGgAwIBAgIQQdKd0XLq7qeAwSxs6S+HUjAKBggqhkjOPQQDAzBPMQsw
CQYDVQQGEwJVUzEpMCcGA1UEChMgSW50ZXJuZXQgU2VjdXJpdHkgUmVzZWFyY2gg
R3JvdXAxFTATBgNVBAMTDElTUkcgUm9vdCBYMjAeFw0yMDA5MDQwMDAwMDBaFw00
MDA5MTcxNjAwMDBaME8xCzAJBgNVBAYTAlVTMSkwJwYDVQQKEyBJbnRlcm5ldCBT
ZWN1cml0eSBSZXNlYXJjaCBHcm91cDEVMBMGA1UEAxMMSVNSRyBSb290IFgyMHYw
EAYHKoZIzj0CAQYFK4EEACIDYgAEzZvVn4CDCuwJSvMWSj5cz3es3mcFDR0HttwW
+1qLFNvicWDEukWVEYmO6gbf9yoWHKS5xcUy4APgHoIYOIvXRdgKam7mAHf7AlF9
ItgKbppbd9/w+kHsOdx1ymgHDB/qo0IwQDAOBgNVHQ8BAf8EBAMCAQYwDwYDVR0T
AQH/BAUwAwEB/zAdBgNVHQ4EFgQUfEKWrt5LSDv6kviejM9ti6lyN5UwCgYIKoZI
zj0EAwMDaAAwZQIwe3lORlCEwkSHRhtFcP9Ymd70/aTSVaYgLXTWNLxBo1BfASdW
tL4ndQavEi51mI38AjEAi/V3bNTIZargCyzuFJ0nN6T5U6VR5CmD1/iQMVtCnwr1
/q4AaOeMSQ+2b1tbFfLn
-----END CERTIFICATE-----
"""
CERTIFICATES = "usr/share/ca-certificates/mozilla/"


def listing(contents):
    return {entry.path: entry for entry in certificate_entries(contents)}


def test_an_authority_is_found_by_name_by_hash_and_in_the_bundle():
    found = listing(
        {CERTIFICATES + "ISRG_Root_X2.crt": PEM.encode().rstrip(b"\n"), "usr/share/ca-certificates/README": b""}
    )

    assert found["etc/ssl/certs/ISRG_Root_X2.pem"].link == "/usr/share/ca-certificates/mozilla/ISRG_Root_X2.crt"
    assert found["etc/ssl/certs/0b9bc432.0"].link == "ISRG_Root_X2.pem"
    assert found["etc/ssl/certs/ca-certificates.crt"].open().read().decode() == PEM
    assert found["etc/ca-certificates.conf"].open().read().endswith(b"#\nmozilla/ISRG_Root_X2.crt\n")


def test_one_certificate_under_two_names_is_hashed_once():
    found = listing({CERTIFICATES + "A.crt": PEM.encode(), CERTIFICATES + "B.crt": PEM.encode()})

    assert found["etc/ssl/certs/0b9bc432.0"].link == "A.pem"
    assert "etc/ssl/certs/0b9bc432.1" not in found


def test_names_are_made_safe_as_update_ca_certificates_does():
    found = listing({CERTIFICATES + "A (b), c.crt": PEM.encode()})

    assert "etc/ssl/certs/A_=b=__c.pem" in found


@pytest.mark.parametrize(
    "data", [b"", b"\x30", b"\x30\x82\xff\xff\x00", b"\x30\x03\x30\x01\x00", b"\x30\x84", b"\x30\x02\x30\x00"]
)
def test_what_is_no_certificate_is_refused(data):
    with pytest.raises(BadDeb, match="not a certificate"):
        subject_hash(data, source="x")


def test_what_is_no_pem_is_refused():
    with pytest.raises(BadDeb, match=r"A\.crt"):
        listing({CERTIFICATES + "A.crt": b"hello"})
