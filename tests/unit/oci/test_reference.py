"""References: the one noun of the command line."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuilder.errors import EnvbuilderError
from envbuilder.oci.reference import (
    ArchiveReference,
    DaemonReference,
    EnvironmentName,
    InvalidReference,
    LayoutReference,
    RegistryReference,
    parse_reference,
)

HEX = "sha256:" + "0a" * 32


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("ai", EnvironmentName("ai")),
        ("ai@2", EnvironmentName("ai", "2")),
        ("databricks-ai-v5", EnvironmentName("databricks-ai-v5")),
        ("localhost:5000/env/ai:1", RegistryReference("localhost:5000", "env/ai", "1")),
        ("localhost/ai", RegistryReference("localhost", "ai", "latest")),
        ("[::1]:5000/a:b", RegistryReference("[::1]:5000", "a", "b")),
        ("oci:out", LayoutReference(Path("out"))),
        ("oci:out/x:1.0", LayoutReference(Path("out/x"), "1.0")),
        ("oci:/a:b/c", LayoutReference(Path("/a:b/c"))),
        (f"oci:out:{HEX}", LayoutReference(Path("out"), HEX)),
        ("oci-archive:a.tar:t", ArchiveReference(Path("a.tar"), "t")),
        ("docker-daemon:team/app:1", DaemonReference("team/app:1")),
        ("docker-daemon:localhost:5000/app:1", DaemonReference("localhost:5000/app:1")),
    ],
)
def test_a_reference_is_read_as_people_write_it(text, want):
    assert parse_reference(text) == want


def test_a_tag_and_a_digest_may_stand_together():
    got = parse_reference(f"registry.example/env/ai:1@{HEX}")

    assert isinstance(got, RegistryReference)
    assert (got.tag, str(got.digest)) == ("1", HEX)


@pytest.mark.parametrize(
    "text",
    ["", "AI", "ai@", "ubuntu/x:1", "host.example/UP:1", "host.example/a:", "host.example/a:-x", "host.example/a@sha256:00",
     "host.example/../a", "host.example/", "host.example:port/a", "oci:", "docker-daemon:app", "docker-daemon::1", "docker-daemon:../x:1", "docker-daemon:Up:1", "oci-archive::t", "https://host.example/a", "a b/c.d"],
)  # fmt: skip
def test_what_is_no_reference_is_refused(text):
    with pytest.raises(EnvbuilderError):
        parse_reference(text)


@given(st.text(max_size=60))
def test_any_text_is_a_reference_that_prints_and_parses_to_itself_or_an_error_of_ours(text):
    try:
        reference = parse_reference(text)
    except EnvbuilderError:
        return

    assert parse_reference(str(reference)) == reference


def test_a_tag_of_the_store_is_told_its_full_name():
    with pytest.raises(InvalidReference) as caught:
        parse_reference("_estargz-ai-1")

    assert "oci:STORE:_estargz-ai-1" in caught.value.hint
    with pytest.raises(InvalidReference) as other:
        parse_reference("Ai")
    assert "STORE" not in other.value.hint
