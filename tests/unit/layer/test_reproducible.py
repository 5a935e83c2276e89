"""Layer bytes do not depend on the process that makes them."""

import os
import sys

import pytest

from envbuilder.proc import run

BUILD = """
import os, random
os.umask(int({umask!r}, 8))
from envbuilder.layer.tree import Entry, FILE, directory, file, symlink
from envbuilder.testing.layers import layer_of
from envbuilder.layer.metadata import erofs_metadata
from envbuilder.digest import Digest
entries = [file(f"d{{n % 7}}/f{{n}}-é", bytes([n % 256]) * n * 10, 0o755) for n in range(200)]
entries += [directory("x", 0o700), symlink("l", "d1"), Entry(path="h", mode=FILE | 0o644, link="d1/f1-é")]
random.seed({seed})
random.shuffle(entries)
built = layer_of(entries)
print(built.layer.diff_id, built.layer.blob.digest, Digest.of(erofs_metadata([built.layer])))
"""


@pytest.mark.slow
def test_umask_locale_time_zone_hash_seed_directory_and_order_change_nothing(tmp_path):
    said = set()
    for umask, locale, zone, seed in (("022", "C.UTF-8", "UTC", "0"), ("077", "C", "Pacific/Auckland", "7")):
        here = tmp_path / f"directory-{seed}"
        here.mkdir()
        env = {
            "PATH": os.environ["PATH"],
            "LC_ALL": locale,
            "TZ": zone,
            "PYTHONHASHSEED": seed,
            "SOURCE_DATE_EPOCH": seed,
        }
        said.add(run([sys.executable, "-c", BUILD.format(umask=umask, seed=seed)], env=env, cwd=here).stdout)

    assert len(said) == 1
