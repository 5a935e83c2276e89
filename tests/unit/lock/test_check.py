"""Is a lock still the answer to its declaration?"""

from dataclasses import replace

import pytest

from envbuilder.lock.check import StaleLock, require_fresh, stale_reasons
from envbuilder.lock.codec import digest
from envbuilder.lock.model import Parent
from envbuilder.oci.platform import Platform
from envbuilder.spec.model import Base, EnvSpec
from envbuilder.testing.locks import SMALL

X86 = Platform("x86_64")
SPEC = EnvSpec(name="x", version="1", python="3.13", base=Base(suite="trixie"))
LOCK = replace(SMALL, spec_digest=SPEC.digest)
PARENT = replace(SMALL, name="p")
CHILD = EnvSpec(name="x", version="1", extends="p")
CHILD_LOCK = replace(LOCK, spec_digest=CHILD.digest, parent=Parent(name="p", lock_digest=digest(PARENT)))


def test_a_lock_of_the_declaration_is_fresh():
    assert stale_reasons(SPEC, X86, LOCK) == ()
    assert stale_reasons(CHILD, X86, CHILD_LOCK, PARENT) == ()
    assert require_fresh(SPEC, X86, LOCK) is LOCK


@pytest.mark.parametrize(
    ("spec", "platform", "lock", "parent", "reason"),
    [
        (SPEC, X86, None, None, "no lock for linux/x86_64"),
        (SPEC, Platform("aarch64"), LOCK, None, "is for linux/x86_64"),
        (replace(SPEC, requires=("numpy",)), X86, LOCK, None, "the declaration or one of its files changed"),
        (CHILD, X86, CHILD_LOCK, None, "the parent 'p' has no lock"),
        (CHILD, X86, CHILD_LOCK, replace(PARENT, env={"A": "1"}), "the lock of the parent 'p' changed"),
        (CHILD, X86, replace(CHILD_LOCK, parent=None), PARENT, "extends another environment"),
        (SPEC, X86, replace(LOCK, name="y"), None, "is the lock of 'y'"),
    ],
)
def test_a_stale_lock_says_why(spec, platform, lock, parent, reason):
    assert stale_reasons(spec, platform, lock, parent) == (reason,)
    with pytest.raises(StaleLock, match="x: stale lock") as caught:
        require_fresh(spec, platform, lock, parent)
    assert caught.value.hint == f"Run: envbuilder lock x --platform {platform}"
