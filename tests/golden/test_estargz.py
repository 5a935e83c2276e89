"""An eStargz layer that stargz-snapshotter's own library wrote (estargz.json says how) is read by its table."""

import base64
import gzip
import json
from pathlib import Path

from envbuilder.digest import Descriptor, Digest
from envbuilder.mount.foreign.toc import read_table
from envbuilder.oci import media_types

GOLDEN = json.loads((Path(__file__).parent / "estargz.json").read_text())
BLOB = base64.b64decode("".join(GOLDEN["blob"]))


class Ranges:
    """Just enough of a source."""

    name = "golden"

    def fetch_range(self, _what, offset, size):
        return BLOB[offset : offset + size]


def test_the_real_writer_s_layer_is_read_by_its_table():
    layer = Descriptor(
        media_type=media_types.OCI_LAYER_TAR_GZIP,
        digest=Digest.of(BLOB),
        size=len(BLOB),
        annotations={media_types.STARGZ_TOC_DIGEST: GOLDEN["toc"]},
    )
    made = read_table(Ranges(), layer)
    spans = made.spans
    data = b"".join(
        spans.read(number, BLOB[spans.blob_offsets[number] : spans.blob_offsets[number + 1]], source="golden")
        for number in range(len(spans))
    )
    found = {each.path: each for each in made.placed}

    assert str(Digest.of(gzip.decompress(BLOB))) == GOLDEN["diff_id"]
    assert sorted(found) == ["", "a", "a/hard", "a/hi", "a/soft", "a/text"]
    assert data[found["a/text"].offset :][:4000] == b"0123456789" * 400
    assert data[found["a/hi"].offset :][:3] == b"hi\n"
    assert found["a/hard"].offset == found["a/hi"].offset
    assert found["a/soft"].link == "hi"
    assert any(piece.skip for piece in spans.pieces)
