"""What the README tells a newcomer to do works as written."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.network,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root"),
]


def test_the_commands_of_the_readme_work_in_their_order(cli, registry):
    words = [
        shlex.split(line, comments=True)[1:]
        for line in (ROOT / "README.md").read_text().replace("localhost:5000", registry.host).splitlines()
        if line.startswith(".venv/bin/envbuilder ")
    ]
    assert len(words) > 5

    shown = {each[0]: cli(*each).stdout for each in words}

    assert re.fullmatch(r"sha256:[0-9a-f]{64}\n", shown["build"])
    assert shown["push"] == shown["build"]
    assert shown["run"].count(".") == 2
    assert not (cli.project / "out/mnt/usr").exists()


@pytest.mark.parametrize("through", ["the store", "a registry"])
def test_the_demo_ends_with_a_table_of_what_was_measured(cli, registry, through):
    option = ["--registry", registry.host] if through == "a registry" else []

    done = subprocess.run(
        [sys.executable, str(ROOT / "tools/demo.py"), "hello", *option],
        cwd=cli.project, env=cli.environ(), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    rows = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in done.stdout.strip().splitlines())
    assert rows["lock"] == "was fresh"
    assert rows["built"].startswith("0 layers, 0 B, in ")
    assert re.fullmatch(r"\S+@?\S+sha256:[0-9a-f]{64}", rows["resolved to"])
    lazy, full = (
        re.match(r"[\d.]+ s, ([\d.]+) MB fetched", rows[f"first result, {how}"]) for how in ("lazy", "full pull")
    )
    assert 0 < float(lazy[1]) < float(full[1])
    assert ("pushed" in rows) == (through == "a registry")
