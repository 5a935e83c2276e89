import pytest

from envbuilder.registry.notices import Notices, parse_warnings


@pytest.mark.parametrize(
    ("header", "texts"),
    [
        ('299 - "gone soon"', ["gone soon"]),
        ('299 r.io "a, b", 299 - "say \\"c\\"" "Mon, 01 Jan 2024 00:00:00 GMT"', ["a, b", 'say "c"']),
        ('110 - "stale"', []),
        ("299 - unquoted", []),
        ('299 - ""', []),
        ('299 - "a\x1b[2Jb"', ["a [2Jb"]),
        ("", []),
    ],
)
def test_texts_of_code_299_are_read(header, texts):
    assert parse_warnings(header) == texts


def test_a_text_is_given_once_and_a_flood_ends():
    notices = Notices()

    assert notices.new('299 - "a", 299 - "a"') == ["a"]
    assert notices.new('299 - "a"') == []
    assert sum(len(notices.new(f'299 - "{number}"')) for number in range(1000)) < 100
