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

ZOO = """
import os, tempfile
from pathlib import Path
os.umask(int({umask!r}, 8))
from envbuilder.layer.deb import deb_entries
from envbuilder.layer.wheel import wheel_entries
from envbuilder.lock.model import Interpreter
from envbuilder.testing.artifacts import locked_wheel, store_file
from envbuilder.testing.debs import deb_of
from envbuilder.testing.layers import layer_of
from envbuilder.testing.zoo import deb_zoo, wheel_zoo
folder = Path(tempfile.mkdtemp(dir="."))
for each in wheel_zoo():
    wheel, path = locked_wheel(each.name, each.data), store_file(folder, each.data)
    print(each.name, layer_of(list(wheel_entries(path, wheel, python=Interpreter(version="3.13", tag="cp313")))).layer.blob)
for each in deb_zoo():
    entries = list(deb_entries(store_file(folder, each.data), deb_of(each.data, name=each.name)))
    print(each.name, layer_of(entries).layer.blob)
"""


@pytest.mark.parametrize("build", [BUILD, ZOO], ids=["tree", "zoo"])
@pytest.mark.slow
def test_umask_locale_time_zone_hash_seed_directory_and_order_change_nothing(tmp_path, build):
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
        said.add(run([sys.executable, "-c", build.format(umask=umask, seed=seed)], env=env, cwd=here).stdout)

    assert len(said) == 1
    assert said.pop().count(b"sha256:") > 1
