"""Project pages of a Python index."""

import pytest

from envbuilder.lock.simple import BadIndexPage, IndexFile, parse_page

URL = "https://index.example/simple/a/"
SHA = "ab" * 32


def test_json_pages_give_addresses_and_digests():
    page = (
        b'{"files": [{"filename": "a-1.whl", "url": "../../f/a-1.whl", "hashes": {"sha256": "' + SHA.encode() + b'"}},'
        b'{"filename": "b-1.whl", "url": "https://other.example/b-1.whl", "hashes": {}}]}'
    )

    assert parse_page(page, "application/vnd.pypi.simple.v1+json; charset=utf-8", URL) == {
        "a-1.whl": IndexFile("https://index.example/f/a-1.whl", SHA),
        "b-1.whl": IndexFile("https://other.example/b-1.whl", ""),
    }


def test_html_pages_give_addresses_and_digests():
    page = f'<a href="../../f/a-1%2Bcu130.whl#sha256={SHA}">a</a><a name="x"></a><a href="b-1.whl#md5=ff">b</a>'
    page += '<a href="c-1.whl?signature=1/2">c</a>'

    assert parse_page(page.encode(), "text/html", URL) == {
        "a-1+cu130.whl": IndexFile("https://index.example/f/a-1%2Bcu130.whl", SHA),
        "b-1.whl": IndexFile("https://index.example/simple/a/b-1.whl", ""),
        "c-1.whl": IndexFile("https://index.example/simple/a/c-1.whl?signature=1/2", ""),
    }


@pytest.mark.parametrize("page", [b"{}", b"[]", b"no", b'{"files": [{}]}', b'{"files": [1]}', b"\xff", b'{"files": 1}'])
def test_what_is_no_page_is_refused(page):
    with pytest.raises(BadIndexPage):
        parse_page(page, "application/vnd.pypi.simple.v1+json", URL)


def test_a_deeply_nested_page_is_refused_and_not_fatal():
    with pytest.raises(BadIndexPage):
        parse_page(b"[" * 1_000_000, "application/json", URL)
