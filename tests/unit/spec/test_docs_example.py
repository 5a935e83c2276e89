"""The example of docs/formats/env.md, and the committed environments."""

import re
from pathlib import Path

import pytest

from envbuilder.digest import Digest
from envbuilder.lock.check import stale_reasons
from envbuilder.lock.codec import load
from envbuilder.lock.partition import MAX_LAYERS
from envbuilder.spec.parse import parse
from envbuilder.spec.project import environments, load_spec, lock_file

ROOT = Path(__file__).resolve().parents[3]


def locked(name, platform):
    file = lock_file(ROOT, name, platform)
    return load(file.read_bytes(), source=file.name)


def test_the_example_of_the_format_is_a_declaration_with_every_key():
    text = (ROOT / "docs/formats/env.md").read_text()
    example = re.search(r"```toml\n(.*?)```", text, re.DOTALL)[1]
    spec = parse(example, file="env.md", digest_of=lambda _: Digest.of(b""), text_of=lambda _: "a==1")

    empty = [field for field in spec.__dataclass_fields__ if not getattr(spec, field) and field != "extends"]
    assert empty == []


@pytest.mark.parametrize("name", environments(ROOT))
def test_a_committed_lock_is_fresh_and_within_the_layer_budget(name):
    spec = load_spec(ROOT, name)
    for platform in spec.platforms:
        lock = locked(name, platform)
        parent = locked(spec.extends, platform) if spec.extends else None

        assert stale_reasons(spec, platform, lock, parent) == ()
        assert len(lock.layers) <= MAX_LAYERS


@pytest.mark.parametrize("platform", load_spec(ROOT, "ai").platforms, ids=str)
def test_ai_has_standards_layers_first_and_adds_no_cuda_library(platform):
    ai, standard = locked("ai", platform), locked("standard", platform)
    added = {wheel.name for wheel in ai.wheels if wheel.layer.startswith("ai/")}

    assert ai.layers[: len(standard.layers)] == standard.layers
    assert {*standard.wheels} <= {*ai.wheels}
    assert ai.debs == standard.debs
    assert not {name for name in added if name.startswith("nvidia-")}
    assert {"torch", "transformers", "ray", "mlflow"} <= added
    assert ai.parent
    assert ai.parent.changed == ()


def test_no_committed_lock_or_declaration_names_a_host():
    files = [*ROOT.glob("lockfiles/*/*.toml"), *ROOT.glob("images/*/env.toml")]

    assert files
    assert [file.name for file in files if re.search(r"[a-z]+://", file.read_text())] == []
