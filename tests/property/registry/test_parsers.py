import json

from hypothesis import given
from hypothesis import strategies as st

from envbuilder.registry.challenge import parse_challenges
from envbuilder.registry.errors import parse_refusal
from envbuilder.registry.redact import redact_url
from envbuilder.registry.retry import RetryPolicy, parse_retry_after

HEADERS = st.text(st.sampled_from('Bearer realm=",\\ \tBasic=scope:a/b;é'), max_size=80) | st.text(max_size=200)
VALUES = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=40)
NAMES = st.text(st.sampled_from("abcdefghij-"), min_size=1, max_size=8)


@given(HEADERS)
def test_no_header_breaks_the_challenge_parser(header):
    assert all(item.scheme == item.scheme.lower() for item in parse_challenges(header))


@given(NAMES, st.dictionaries(NAMES, VALUES, min_size=1, max_size=4))
def test_a_quoted_challenge_comes_back_as_it_was(scheme, parameters):
    def quoted(text):
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    header = f"{scheme} " + ", ".join(f"{name}={quoted(text)}" for name, text in parameters.items())

    [got] = parse_challenges(header)
    assert (got.scheme, dict(got.parameters)) == (scheme, parameters)


@given(
    st.binary(max_size=300)
    | st.builds(
        lambda v: json.dumps(v).encode(),
        st.recursive(
            st.none() | st.integers() | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["errors", "code", "message"]), inner)
            ),
        ),
    )
)
def test_any_error_body_becomes_one_printable_line(body):
    refusal = parse_refusal(body)

    assert len(refusal.text) <= 403
    assert "\n" not in refusal.text
    assert "\x1b" not in refusal.text


@given(st.text(min_size=4, max_size=20, alphabet="0123456789abcdefSECRET"), NAMES)
def test_no_secret_of_a_query_or_userinfo_is_shown(secret, name):
    shown = redact_url(f"https://user:{secret}!@host/path?X-Amz-{name}={secret}!&digest=sha256:1#{secret}!")

    assert f"{secret}!" not in shown
    assert "digest=sha256:1" in shown


@given(st.text(max_size=40) | st.integers().map(str))
def test_any_retry_after_is_a_time_or_nothing(text):
    got = parse_retry_after(text, 0)

    assert got is None or got >= 0


@given(st.integers(1, 10), st.floats(0, 200), st.none() | st.floats(0, 1e6), st.floats(0, 0.999))
def test_no_wait_exceeds_the_budget_or_falls_short_of_retry_after(attempt, waited, wanted, jitter):
    policy = RetryPolicy()

    got = policy.wait_s(attempt, waited, wanted, jitter)

    assert got is None or (got + waited <= policy.budget_s and got >= (wanted or 0))
