import pytest

from envbuilder.registry.challenge import Challenge, parse_challenges


@pytest.mark.parametrize(
    ("header", "want"),
    [
        ("", []),
        ("Basic", [Challenge("basic", {})]),
        ('Basic realm="x"', [Challenge("basic", {"realm": "x"})]),
        (
            'Bearer realm="https://a/t",service="s",scope="repository:a/b:pull,push"',
            [Challenge("bearer", {"realm": "https://a/t", "service": "s", "scope": "repository:a/b:pull,push"})],
        ),
        (
            'Bearer realm = "a" , error=invalid_token, Basic realm="b"',
            [Challenge("bearer", {"realm": "a", "error": "invalid_token"}), Challenge("basic", {"realm": "b"})],
        ),
        (r'Basic realm="a \"quoted\", one"', [Challenge("basic", {"realm": 'a "quoted", one'})]),
        ('Negotiate abc==, Basic realm="b"', [Challenge("negotiate", {}), Challenge("basic", {"realm": "b"})]),
        ('BEARER REALM="a",realm="second"', [Challenge("bearer", {"realm": "a"})]),
        ('Bearer realm="never closed', [Challenge("bearer", {})]),
        ("=,=", []),
    ],
)
def test_a_header_is_read_as_its_challenges(header, want):
    got = parse_challenges(header)

    assert [(item.scheme, dict(item.parameters)) for item in got] == [(w.scheme, dict(w.parameters)) for w in want]
