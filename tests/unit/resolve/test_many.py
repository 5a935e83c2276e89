import threading

import pytest

from envbuilder.resolve.many import AT_A_TIME, resolve_all
from envbuilder.store.target import NotFound


def test_each_gets_its_own_answer_in_the_order_of_asking():
    asked = [f"r{number}" for number in range(200)]

    outcomes = resolve_all(asked, str.upper)

    assert [(each.asked, each.found, each.error) for each in outcomes] == [(text, text.upper(), None) for text in asked]


def test_a_reference_that_stands_twice_is_resolved_once():
    calls = []

    outcomes = resolve_all(["a", "b", "a"], lambda text: calls.append(text) or text)

    assert sorted(calls) == ["a", "b"]
    assert [each.found for each in outcomes] == ["a", "b", "a"]


def test_an_error_of_one_is_none_of_the_others():
    def one(text):
        if text == "gone":
            raise NotFound("no such image")
        return text

    there, gone, other = resolve_all(["there", "gone", "other"], one)

    assert (there.found, other.found, gone.found) == ("there", "other", None)
    assert isinstance(gone.error, NotFound)


def test_a_mistake_of_ours_is_no_answer():
    with pytest.raises(ZeroDivisionError):
        resolve_all(["a"], lambda _text: 1 // 0)


def test_as_many_are_under_way_at_once_as_a_pool_keeps_connections():
    together = threading.Barrier(AT_A_TIME)

    assert len(resolve_all([str(number) for number in range(AT_A_TIME)], lambda _text: together.wait(10))) == AT_A_TIME
