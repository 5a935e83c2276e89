"""Manifests, indexes and configs: what we write we read back, what is malformed is refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuilder.digest import Digest, InvalidJson, describe
from envbuilder.errors import EnvbuilderError, SpecError
from envbuilder.oci import media_types
from envbuilder.oci.config import ImageConfig, parse_config
from envbuilder.oci.manifest import MAX_MANIFEST_SIZE, Index, Manifest, parse_document
from envbuilder.oci.platform import Platform

CONFIG = describe(b"{}", media_types.OCI_CONFIG)
LAYER = describe(b"layer", media_types.OCI_LAYER_TAR_ZSTD, annotations={"a": "b"})


def test_a_manifest_survives_its_bytes():
    manifest = Manifest(
        config=CONFIG, layers=(LAYER,), annotations={"k": "v"}, artifact_type="t", subject=describe(b"s")
    )

    assert parse_document(manifest.dump(), source="test") == manifest


def test_an_index_survives_its_bytes():
    index = Index(manifests=(describe(b"m", media_types.OCI_MANIFEST, platform={"os": "linux"}),))

    assert parse_document(index.dump(), source="test") == index


def test_a_document_without_a_media_type_is_told_by_its_keys():
    value = json.loads(Manifest(config=CONFIG, layers=()).dump())
    del value["mediaType"]

    assert isinstance(parse_document(json.dumps(value).encode(), source="test"), Manifest)


@pytest.mark.parametrize(
    "change",
    [{"layers": None}, {"layers": "x"}, {"config": None}, {"mediaType": "text/html"}, {"manifests": []}, {"annotations": {"a": 1}}],
)  # fmt: skip
def test_a_malformed_manifest_is_refused(change):
    value = {**json.loads(Manifest(config=CONFIG, layers=(LAYER,)).dump()), **change}

    with pytest.raises(EnvbuilderError):
        parse_document(json.dumps(value).encode(), source="test")


def test_a_giant_manifest_is_refused_before_it_is_parsed():
    with pytest.raises(InvalidJson, match="at most"):
        parse_document(b" " * (MAX_MANIFEST_SIZE + 1), source="test")


@given(st.binary(max_size=200))
def test_any_bytes_are_a_document_or_an_error_of_ours(data):
    with pytest.raises(EnvbuilderError):
        parse_document(data, source="test")


def test_a_config_survives_its_bytes():
    config = ImageConfig(
        platform=Platform("x86_64"), diff_ids=(Digest.of(b"a"),), env={"A": "b=c"}, entrypoint=("e",), command=("c",),
        working_dir="/w", user="1:2", labels={"l": "m"}, history=("h",), os_features=("erofs",),
    )  # fmt: skip

    assert parse_config(config.dump(), source="test") == config


@pytest.mark.parametrize(
    "change",
    [
        {"rootfs": {}},
        {"config": {"Env": "A=b"}},
        {"config": []},
        {"architecture": "s390x"},
        {"os": "windows"},
        {"os": ""},
    ],
)
def test_a_malformed_config_is_refused(change):
    value = {**json.loads(ImageConfig(platform=Platform("x86_64"), diff_ids=()).dump()), **change}

    with pytest.raises(EnvbuilderError):
        parse_config(json.dumps(value).encode(), source="test")


@pytest.mark.parametrize("text", ["linux/x86_64", "linux/amd64", "linux-x86_64", "x86_64", "amd64"])
def test_a_platform_has_several_spellings(text):
    assert Platform.parse(text) == Platform("x86_64")


@pytest.mark.parametrize("text", ["windows/amd64", "", "linux/s390x"])
def test_another_platform_is_refused(text):
    with pytest.raises(SpecError):
        Platform.parse(text)


def test_a_config_of_no_platform_is_named():
    value = {**json.loads(ImageConfig(platform=Platform("x86_64"), diff_ids=()).dump()), "architecture": "", "os": ""}

    with pytest.raises(
        SpecError, match=r"^registry/a: sha256:1: platform: want linux/x86_64 or linux/aarch64, got '\?/\?'$"
    ):
        parse_config(json.dumps(value).encode(), source="registry/a: sha256:1")


def test_variables_without_a_name_are_left_out():
    value = {
        "architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": []},
        "config": {"Env": ["=x", "", "NAME", "A=b=c"]},
    }  # fmt: skip

    assert parse_config(json.dumps(value).encode(), source="t").env == {"NAME": "", "A": "b=c"}
