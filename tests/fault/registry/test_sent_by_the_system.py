"""A layer that lies in a file is sent by the system, unread, to a registry that compares digests itself."""

import io
import socket
from functools import partial

import pytest

from envbuilder.digest import DigestMismatch, describe
from envbuilder.oci import media_types
from envbuilder.oci.manifest import Manifest
from envbuilder.registry.spans import Senders, UnreadableBody, send_by_hand, send_by_system, send_plain
from envbuilder.registry.upload import UploadSettings
from envbuilder.store.copy import copy
from envbuilder.store.layout import LayoutTarget
from envbuilder.store.memory import MemoryTarget
from envbuilder.store.movement import CopyCancelled, Movement
from envbuilder.store.target import Span
from envbuilder.testing.registry import Reply

LAYER = bytes(range(256)) * 20_000


@pytest.fixture
def image(tmp_path):
    """A layout with an image of one layer of 5 MB; its root and the layer's file."""
    layout = LayoutTarget(tmp_path / "layout", create=True)
    config, layer = describe(b"{}", media_types.OCI_CONFIG), describe(LAYER, media_types.OCI_LAYER_TAR)
    data = Manifest(config=config, layers=(layer,)).dump()
    root = describe(data, media_types.OCI_MANIFEST)
    for what, content in ((config, b"{}"), (layer, LAYER), (root, data)):
        layout.push(what, partial(io.BytesIO, content))
    return layout, root, layout.file_of(layer)


def rot(file):
    file.write_bytes(LAYER[:-1] + b"x")


def sent(world):
    """Sizes of the large bodies that the registry got whole."""
    return [
        len(seen.body) for seen in world.registry.requests if seen.method in ("PUT", "PATCH") and len(seen.body) > 9
    ]


@pytest.mark.parametrize("way", ["put", "stream", "chunks"])
def test_a_layer_arrives_in_each_way(world, image, way):
    layout, root, _ = image

    report = copy(layout, root, world.repository(upload=UploadSettings(way=way, chunk_size=1_500_000)), tag="v1")

    assert world.registry.blobs[str(describe(LAYER).digest)] == LAYER
    assert report.copied_bytes == len(LAYER) + 2 + root.size


def test_a_layer_goes_on_in_chunks_where_it_broke_off(world, image):
    layout, root, _ = image
    lost = iter([False, True])
    world.registry.fault(
        "PATCH", "/uploads/", lambda request, reply: Reply(status=503), only=lambda _: next(lost, False)
    )

    report = copy(layout, root, world.repository(upload=UploadSettings(way="chunks", chunk_size=1_500_000)))

    assert world.registry.blobs[str(describe(LAYER).digest)] == LAYER
    assert report.copied_bytes == len(LAYER) + 2 + root.size
    assert sum(sent(world)) == len(LAYER) + root.size


@pytest.mark.parametrize("way", ["put", "chunks"])
def test_a_layer_that_rotted_is_found_out_by_the_registry_and_then_here(world, image, way):
    layout, root, file = image
    rot(file)

    with pytest.raises(DigestMismatch, match="source oci:"):
        copy(layout, root, world.repository(upload=UploadSettings(way=way, chunk_size=len(LAYER))))

    assert sent(world)[0] == len(LAYER)  # nobody looked before it was sent
    assert str(describe(LAYER).digest) not in world.registry.blobs
    assert world.registry.uploads.open == 0


def test_a_registry_that_may_not_compare_never_gets_the_end_of_a_layer_that_rotted(world, image):
    layout, root, file = image
    rot(file)
    world.registry.state = "upload"

    with pytest.raises(DigestMismatch, match="source oci:"):
        copy(layout, root, world.target)

    assert len(LAYER) not in sent(world)
    assert world.registry.uploads.open == 0


def test_a_layer_that_a_registry_refuses_for_no_reason_is_verified_and_sent_again(world, image):
    layout, root, _ = image

    def lose(request, reply):
        world.registry.blobs.clear()
        return Reply(status=400)

    world.registry.fault("PUT", "/uploads/", lose, times=1)

    copy(layout, root, world.target)

    assert world.registry.blobs[str(describe(LAYER).digest)] == LAYER


def test_a_layer_of_another_length_is_not_sent_at_all(world, image):
    layout, root, file = image

    class Late(LayoutTarget):
        def fetch(self, what):
            stream = super().fetch(what)
            if what.size == len(LAYER):
                file.write_bytes(LAYER[:100])
            return stream

    with pytest.raises(DigestMismatch, match="source oci:"):
        copy(Late(layout.directory), root, world.target)

    assert sent(world) == []
    assert world.registry.uploads.open == 0


def test_a_layer_is_given_up_between_its_parts_when_another_blob_fails(image):
    layout, _, _ = image
    passed = []

    class Taker(MemoryTarget):
        def push(self, what, content):
            with content() as stream:
                for span in stream.spans(0, what.size):
                    passed.append(span.size)
                    movement.stop()

    movement = Movement(layout, Taker(), None)

    with pytest.raises(CopyCancelled):
        movement.blob(describe(LAYER))

    assert sum(passed) == passed[0] < len(LAYER)


@pytest.fixture
def line():
    ours, theirs = socket.socketpair()
    ours.settimeout(0.1)
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def file(tmp_path):
    (tmp_path / "file").write_bytes(b"0123456789")
    with (tmp_path / "file").open("rb", buffering=0) as opened:
        yield opened


def by_hand(connection, span):
    send_by_hand(connection.sendall, span)


@pytest.mark.parametrize("send", [send_by_system, by_hand])
def test_a_span_is_sent_from_its_offset_on(line, file, send):
    send(line[0], Span(file=file, offset=3, size=4))

    assert line[1].recv(100) == b"3456"


@pytest.mark.parametrize("send", [send_by_system, by_hand])
def test_a_file_that_ends_before_its_span_is_an_error_of_this_machine(line, file, send):
    with pytest.raises(UnreadableBody, match="shorter than 11 bytes"):
        send(line[0], Span(file=file, offset=3, size=8))


@pytest.mark.parametrize("send", [send_by_system, by_hand])
def test_a_reader_that_takes_nothing_is_waited_for_no_longer_than_the_timeout(line, tmp_path, send):
    (tmp_path / "large").write_bytes(bytes(4 << 20))

    with (tmp_path / "large").open("rb", buffering=0) as file, pytest.raises(TimeoutError):
        send(line[0], Span(file=file, offset=0, size=4 << 20))


@pytest.mark.parametrize("send", [send_by_system, by_hand])
def test_a_line_that_was_cut_is_an_error_of_the_line(line, file, send):
    line[1].close()

    with pytest.raises(BrokenPipeError):
        send(line[0], Span(file=file, offset=0, size=10))


class Reads:
    """A connection that notes how it was used."""

    def __init__(self, connection):
        self.connection, self.ways = connection, []

    def sendall(self, data):
        self.ways.append("read")
        self.connection.sendall(data)

    def sendfile(self, *span):
        self.ways.append("unread")
        return self.connection.sendfile(*span)


def test_a_lone_sender_reads_what_it_sends_and_others_beside_it_do_not(line, file):
    connection, senders = Reads(line[0]), Senders()

    send_plain(connection, Span(file=file, offset=0, size=4), senders)
    with senders.another():
        send_plain(connection, Span(file=file, offset=4, size=4), senders)
    send_plain(connection, Span(file=file, offset=8, size=2), senders)

    assert connection.ways == ["read", "unread", "read"]
    assert line[1].recv(100) == b"0123456789"


def test_a_sender_that_failed_counts_no_longer(line, file):
    connection, senders = Reads(line[0]), Senders()

    with pytest.raises(UnreadableBody):
        send_plain(connection, Span(file=file, offset=0, size=11), senders)
    send_plain(connection, Span(file=file, offset=0, size=4), senders)

    assert connection.ways == ["read", "read"]
