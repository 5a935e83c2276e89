import pickle

from envbuilder.digest import Digest
from envbuilder.registry.capabilities import Capabilities
from envbuilder.registry.known import LIFE_S, KnownBlobs

HOST = "https://registry.test"
ONE, TWO = Digest.of(b"one"), Digest.of(b"two")


class Clock:
    def __init__(self):
        self.now = 1_000_000.0

    def __call__(self):
        return self.now


def test_what_was_saved_is_known_to_the_next_process(tmp_path):
    first = KnownBlobs(tmp_path)
    first.note(HOST, "a/b", [ONE])
    first.save(HOST)

    second = pickle.loads(pickle.dumps(KnownBlobs(tmp_path)))

    assert second.has(HOST, "a/b", ONE)
    assert not second.has(HOST, "a/c", ONE)
    assert not second.has("http://registry.test", "a/b", ONE)
    assert not second.has(HOST, "a/b", TWO)


def test_what_is_known_ages(tmp_path):
    clock = Clock()
    known = KnownBlobs(tmp_path, clock=clock)
    known.note(HOST, "a/b", [ONE])
    known.save(HOST)

    clock.now += LIFE_S - 1
    assert known.has(HOST, "a/b", ONE)
    clock.now += 2
    assert not known.has(HOST, "a/b", ONE)
    assert known.holders(HOST, ONE) == ()
    assert not KnownBlobs(tmp_path, clock=clock).has(HOST, "a/b", ONE)


def test_a_clock_that_was_set_back_trusts_nothing(tmp_path):
    clock = Clock()
    known = KnownBlobs(tmp_path, clock=clock)
    known.note(HOST, "a/b", [ONE])
    clock.now -= 10

    assert not known.has(HOST, "a/b", ONE)


def test_forgetting_outlives_the_process_and_leaves_what_came_after(tmp_path):
    clock = Clock()
    known = KnownBlobs(tmp_path, clock=clock)
    known.note(HOST, "a/b", [ONE, TWO])
    known.note(HOST, "a/c", [ONE])
    known.save(HOST)
    clock.now += 10

    assert known.forget(HOST, "a/b")
    assert not known.forget(HOST, "a/b")
    clock.now += 10
    known.note(HOST, "a/b", [TWO])
    known.save(HOST)

    again = KnownBlobs(tmp_path, clock=clock)
    assert [again.has(HOST, name, one) for name, one in (("a/b", ONE), ("a/b", TWO), ("a/c", ONE))] == [0, 1, 1]


def test_two_processes_add_up(tmp_path):
    one, two = KnownBlobs(tmp_path), KnownBlobs(tmp_path)
    assert not two.has(HOST, "a/b", ONE)
    one.note(HOST, "a/b", [ONE])
    two.note(HOST, "a/b", [TWO])
    one.save(HOST)
    two.save(HOST)

    assert KnownBlobs(tmp_path).has(HOST, "a/b", ONE)
    assert KnownBlobs(tmp_path).has(HOST, "a/b", TWO)


def test_holders_are_the_repositories_that_have_it_the_latest_first(tmp_path):
    clock = Clock()
    known = KnownBlobs(tmp_path, clock=clock)
    known.note(HOST, "base", [ONE])
    clock.now += 1
    known.note(HOST, "other", [ONE])

    assert known.holders(HOST, ONE) == ("other", "base")


def test_a_damaged_file_knows_nothing(tmp_path):
    known = KnownBlobs(tmp_path)
    known.note(HOST, "a/b", [ONE])
    known.save(HOST)
    [file] = tmp_path.glob("known-*")
    file.write_bytes(b"no zstd")

    assert not KnownBlobs(tmp_path).has(HOST, "a/b", ONE)


def test_a_directory_that_cannot_be_written_costs_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    known, facts = KnownBlobs(tmp_path / "file"), Capabilities(tmp_path / "file")
    known.note(HOST, "a/b", [ONE])
    known.save(HOST)
    facts.note(HOST, "mount", "yes")

    assert known.has(HOST, "a/b", ONE)
    assert facts.get(HOST, "mount") == "yes"


def test_a_fact_is_kept_and_ages(tmp_path):
    clock = Clock()
    Capabilities(tmp_path, clock=clock).note(HOST, "upload", "chunks")

    assert Capabilities(tmp_path, clock=clock).get(HOST, "upload") == "chunks"
    clock.now += 8 * 24 * 3600
    assert Capabilities(tmp_path, clock=clock).get(HOST, "upload") == ""
