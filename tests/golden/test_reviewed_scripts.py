"""The effects of reviewed scripts decide bytes of computed layers, so a change of them needs another TABLE_VERSION."""

import os
from pathlib import Path

from envbuilder.digest import Digest, canonical_json
from envbuilder.layer.debian.known_scripts import REVIEWED, TABLE_VERSION

GOLDEN = Path(__file__).with_name("reviewed-scripts.txt")


def test_a_change_of_the_table_raises_its_version():
    # A package without effects puts nothing into a layer, whether its scripts are known or allowed unread.
    rows = [[name, repr(review)] for name, review in sorted(REVIEWED.items()) if review.effects]
    text = f"{TABLE_VERSION} {len(rows)} packages {Digest.of(canonical_json(rows))}\n"
    if os.environ.get("ENVBUILDER_GOLDEN") == "write":
        before = GOLDEN.read_text().split(" ") if GOLDEN.exists() else ["", ""]
        same = before[-1] == text.rsplit(" ", maxsplit=1)[-1]
        assert same or before[0] != str(TABLE_VERSION), "raise TABLE_VERSION first"
        GOLDEN.write_text(text)

    assert text == GOLDEN.read_text(), "raise TABLE_VERSION, then make golden"
