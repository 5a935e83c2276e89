import io
import json
from dataclasses import replace
from functools import partial

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from spdx_tools.spdx.parser.parse_anything import parse_file
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

from envbuilder.digest import Digest
from envbuilder.image.attached import (
    KINDS,
    BadAttachment,
    NotAttached,
    all_attached,
    attached,
    attached_locks,
    copy_attached,
)
from envbuilder.image.documents import attach_document, attach_documents
from envbuilder.image.licences import Licensing, licences, of_copyright, of_metadata
from envbuilder.image.reread import read_layers
from envbuilder.image.verify import first_difference
from envbuilder.layer.tree import file, symlink
from envbuilder.lock.codec import digest, dump
from envbuilder.lock.model import Parent
from envbuilder.lock.predicted import PredictedLayer
from envbuilder.oci import media_types
from envbuilder.store.copy import copy
from envbuilder.store.layout import LayoutTarget
from envbuilder.store.referrers import referrers
from envbuilder.testing.layers import layer_of, push_image
from envbuilder.testing.locks import SMALL, deb

SITE = "opt/env/lib/python3.13/site-packages"
COPYRIGHT = """Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/

Files: *
Copyright: X
License: LGPL-2.1+

Files: a b
License: Expat or GPL-2

License: Expat
 Permission is hereby granted
"""
LOCK = replace(SMALL, debs=(deb("libc-bin", layer="x/debs-00", source="glibc"), *SMALL.debs))


@pytest.fixture
def store(tmp_path):
    return LayoutTarget(tmp_path / "store", create=True)


@pytest.fixture
def image(store):
    return push_image(
        store,
        [
            layer_of(
                [
                    file("usr/share/doc/libc6/copyright", COPYRIGHT.encode()),
                    symlink("usr/share/doc/libc-bin", "libc6"),
                    file(f"{SITE}/numpy-1.dist-info/METADATA", b"Name: numpy\nLicense-Expression: BSD-3-Clause\n\nx"),
                    file(f"{SITE}/pandas-1.dist-info/METADATA", b"Name: pandas\nLicense: Ask <us> & pay\n"),
                ]
            )
        ],
        tag="x-1",
    )


def test_licences_are_read_out_of_the_layers_and_through_their_links(store, image):
    expected = {
        "wheel:numpy": "BSD-3-Clause",
        "wheel:pandas": "Ask <us> & pay",
        "deb:libc6": "LGPL-2.1-or-later AND (MIT OR GPL-2.0-only)",
        "deb:libc-bin": "LGPL-2.1-or-later AND (MIT OR GPL-2.0-only)",
    }

    assert licences(image.layers, store) == expected
    assert licences(image.layers, store) == expected  # from the store's memory


def test_both_sboms_are_valid_and_name_every_artefact_with_digest_and_licence(store, image, tmp_path):
    attach_documents(store, [LOCK], image.descriptor, image.layers)
    ((_, cyclonedx),) = attached(store, image.descriptor, media_types.CYCLONEDX)
    ((_, spdx),) = attached(store, image.descriptor, media_types.SPDX)
    (tmp_path / "a.spdx.json").write_bytes(spdx)

    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(cyclonedx.decode()) is None
    assert validate_full_spdx_document(parse_file(str(tmp_path / "a.spdx.json"))) == []
    packages = {each["name"]: each for each in json.loads(spdx)["packages"]}
    components = {each["name"]: each for each in json.loads(cyclonedx)["components"]}
    for each in (*LOCK.wheels, *LOCK.debs):
        assert packages[each.name]["checksums"][0]["checksumValue"] == each.digest.hex
        assert components[each.name]["hashes"][0]["content"] == each.digest.hex
    assert packages["numpy"]["licenseDeclared"] == "BSD-3-Clause"
    assert packages["pandas"]["licenseDeclared"].startswith("LicenseRef-Ask-us-pay-")
    assert components["pandas"]["licenses"] == [{"license": {"name": "Ask <us> & pay"}}]
    assert components["libc6"]["purl"] == "pkg:deb/debian/libc6@1?arch=amd64&distro=trixie"


def test_the_provenance_is_a_slsa_statement_about_the_image_with_all_that_went_in(store, image):
    attach_documents(store, [LOCK], image.descriptor, image.layers)
    ((_, data),) = attached(store, image.descriptor, media_types.IN_TOTO)
    statement = json.loads(data)

    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    assert statement["subject"][0]["digest"]["sha256"] == image.descriptor.digest.hex
    resolved = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert {each["digest"]["sha256"] for each in resolved} >= {each.digest.hex for each in (*LOCK.wheels, *LOCK.debs)}
    assert statement["predicate"]["runDetails"]["byproducts"][0]["digest"]["sha256"] == image.layers[0].blob.digest.hex


def test_the_same_image_gets_the_same_documents_anywhere(store, image, tmp_path):
    other = LayoutTarget(tmp_path / "other", create=True)
    for blob in (image.layers[0].blob, *image.blobs):
        other.push(blob, partial(store.fetch, blob))

    assert attach_documents(store, [LOCK], image.descriptor, image.layers) == attach_documents(
        other, [LOCK], image.descriptor, image.layers
    )


def test_an_image_that_was_pulled_gets_the_documents_that_its_builder_made(store, image, tmp_path):
    pulled = LayoutTarget(tmp_path / "pulled", create=True)
    for blob in (image.layers[0].blob, *image.blobs):
        pulled.push(blob, partial(store.fetch, blob))
    known = [
        PredictedLayer(
            id=each.id, key=each.plan_key, diff_id=each.diff_id, digest=each.blob.digest, size=each.blob.size
        )
        for each in image.layers
    ]

    read = read_layers(pulled, [each.blob for each in image.layers], known)

    assert attach_documents(pulled, [LOCK], image.descriptor, read) == attach_documents(
        store, [LOCK], image.descriptor, image.layers
    )


def test_only_what_a_build_attaches_goes_with_an_image_and_only_once(store, image, tmp_path):
    attach_documents(store, [LOCK], image.descriptor, image.layers)
    attach_document(store, image.descriptor, "application/theirs", "text/plain", [("a", b"a")])
    there = LayoutTarget(tmp_path / "there", create=True)
    copy(store, image.descriptor, there, tag="x")

    assert copy_attached(store, image.descriptor, there) > 0
    assert copy_attached(store, image.descriptor, there) == 0
    assert {each.artifact_type for each in referrers(there, image.descriptor)} == {*KINDS}


def test_documents_are_listed_once_beside_what_others_attached(store, image):
    attach_document(store, image.descriptor, "application/theirs", "text/plain", [("a", b"a")])
    assert not all_attached(store, image.descriptor)

    attach_documents(store, [LOCK], image.descriptor, image.layers)
    attach_documents(store, [LOCK], image.descriptor, image.layers)

    assert all_attached(store, image.descriptor)
    listed = [each.artifact_type for each in referrers(store, image.descriptor)]
    assert sorted(listed) == sorted(("application/theirs", *KINDS))


def test_the_locks_of_an_image_come_back_as_one_chain(store, image):
    child = replace(LOCK, name="c", parent=Parent(name="x", lock_digest=digest(LOCK)), layers=(*LOCK.layers, "c/top"))
    attach_documents(store, [LOCK, child], image.descriptor, image.layers)

    assert attached_locks(store, image.descriptor, digest(child)) == (LOCK, child)


@pytest.mark.parametrize("what", ["another lock", "no parent", "one too many"])
def test_a_lock_that_is_not_the_images_own_is_refused(store, image, what):
    child = replace(LOCK, name="c", parent=Parent(name="x", lock_digest=digest(LOCK)), layers=(*LOCK.layers, "c/top"))
    parts = {
        "another lock": [dump(replace(LOCK, version="2"))],
        "no parent": [dump(child)],
        "one too many": [dump(LOCK), dump(LOCK)],
    }[what]
    attach_document(
        store,
        image.descriptor,
        media_types.LOCK_ARTIFACT,
        media_types.LOCK_TOML,
        [(f"{number}", part) for number, part in enumerate(parts)],
    )

    with pytest.raises(BadAttachment, match="lock"):
        attached_locks(store, image.descriptor, digest(child if what == "no parent" else LOCK))


def test_an_image_without_documents_says_so(store, image):
    with pytest.raises(NotAttached) as caught:
        attached(store, image.descriptor, media_types.SPDX)

    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "licence"),
    [
        ("License-Expression: Apache-2.0 OR MIT\nLicense: no", "Apache-2.0 OR MIT"),
        ("Classifier: License :: OSI Approved :: MIT License\nLicense: see file", "MIT"),
        ("Classifier: License :: OSI Approved :: BSD License\nLicense: BSD-3-Clause", "BSD-3-Clause"),
        ("Classifier: License :: OSI Approved :: BSD License", "BSD License"),
        ("License: NVIDIA Proprietary Software", "NVIDIA Proprietary Software"),
        ("License: UNKNOWN", ""),
        ("Name: x", ""),
    ],
)
def test_a_wheel_says_its_licence_in_one_of_three_fields(text, licence):
    assert of_metadata(text + "\n") == licence


def test_prose_is_no_licence():
    assert of_copyright("This is GPL software.\n\nLicense: GPL\n") == ""


@pytest.mark.parametrize("text", ["", "see file", "MIT AND", "(", "NOT-A-LICENCE", "BSD License"])
def test_words_are_told_from_expressions(text):
    assert not Licensing().is_expression(text)
    assert Licensing().is_expression("mit or Apache-2.0")


@pytest.mark.parametrize(
    ("ours", "difference"),
    [
        ([file("a", b"1"), file("b", b"3")], "'b': content"),
        ([file("a", b"1"), file("b", b"2", 0o755)], "'b': type"),
        ([file("a", b"1")], "'b', which is only in the image"),
        ([file("a", b"1"), file("aa", b""), file("b", b"2")], "'aa', which is only in the rebuilt layer"),
        ([file("a", b"1"), file("b", b"2")], "every file is the same"),
    ],
)
def test_the_first_file_that_differs_is_named(store, ours, difference):
    theirs, mine = layer_of([file("a", b"1"), file("b", b"2")]), layer_of(ours)
    for built in (theirs, mine):
        store.push(built.layer.blob, partial(io.BytesIO, built.blob))

    assert difference in first_difference(store, theirs.layer.blob, store, mine.layer.blob)


def test_a_layer_that_is_none_is_not_compared_further(store):
    good = layer_of([file("a", b"1")])
    store.push(good.layer.blob, partial(io.BytesIO, good.blob))
    bad = replace(good.layer.blob, digest=Digest.of(b"nothing"), size=7)
    store.push(bad, partial(io.BytesIO, b"nothing"))

    assert "cannot be compared" in first_difference(store, bad, store, good.layer.blob)
