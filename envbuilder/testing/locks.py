"""Small artefacts and locks: real values without bytes behind them."""

from __future__ import annotations

from dataclasses import replace

from envbuilder.digest import Digest
from envbuilder.lock.model import (
    BaseImage,
    BaseLayer,
    Changed,
    CudaAxis,
    Deb,
    ForeignSystem,
    Interpreter,
    Lock,
    LockedFile,
    Parent,
    Substitution,
    Wheel,
)
from envbuilder.oci.platform import Platform


def wheel(name: str, version: str = "1", size: int = 10, layer: str = "") -> Wheel:
    """A wheel; its digest is that of its name and version."""
    return Wheel(
        name=name,
        version=version,
        file=f"{name.replace('-', '_')}-{version}-py3-none-any.whl",
        digest=Digest.of(f"{name} {version}".encode()),
        size=size,
        layer=layer,
    )


def deb(name: str, version: str = "1", size: int = 10, layer: str = "", source: str = "") -> Deb:
    """A Debian package; its digest is that of its name and version."""
    return Deb(
        name=name,
        version=version,
        architecture="amd64",
        file=f"pool/main/{name[0]}/{name}_{version}_amd64.deb",
        digest=Digest.of(f"deb {name} {version}".encode()),
        size=size,
        layer=layer,
        source=source or name,
    )


#: A lock with the fewest fields.
SMALL = Lock(
    name="x",
    version="1",
    platform=Platform("x86_64"),
    spec_digest=Digest.of(b"spec"),
    python=Interpreter(version="3.13", tag="cp313"),
    suite="trixie",
    base=("ca-certificates", "python3.13"),
    glibc="2.41",
    layers=("x/debs-00", "x/wheels-00", "x/top"),
    wheels=(wheel("numpy", layer="x/wheels-00"), wheel("pandas", layer="x/wheels-00")),
    debs=(deb("libc6", layer="x/debs-00", source="glibc"),),
)

#: A lock with every field.
FULL = replace(
    SMALL,
    layers=("p/top", *SMALL.layers),
    wheels=(
        replace(SMALL.wheels[0], recorded=False, without=("../../../bin/f2py", "numpy/conftest.py")),
        *SMALL.wheels[1:],
        replace(wheel("torch", "2.15.0+cu130", layer="x/wheels-00"), index="pytorch-cu130"),
    ),
    debs=(*SMALL.debs, replace(deb("openssl", layer="x/debs-00"), archive="debian-security")),
    files=(LockedFile(source="motd", path="etc/motd", mode=0o600, digest=Digest.of(b"hi")),),
    env={"A": 'quote " back \\ tab \t del \x7f nul-free é', "LANG": "C.UTF-8"},
    start=(("python", "-c", "import torch"), ("true",)),
    cuda=CudaAxis(toolkit="13.2", minimum_driver="580.65.06", accelerators=("9.0", "10.0"), twice=("a-cu12", "a-cu13")),
    parent=Parent(
        name="p",
        lock_digest=Digest.of(b"parent"),
        changed=(
            Changed(name="cupy", before="2", after="1", coupled=True),
            Changed(name="six", before="1", after=""),
            Changed(name="libssl3t64", before="3", after="3.1", deb=True),
        ),
    ),
    system=ForeignSystem(
        name="ubuntu-24.04",
        interpreter="3.12.3",
        image=f"registry.example/base@{Digest.of(b'')}",
        asked="registry.example/base:24.04",
        base=BaseImage(
            manifest=Digest.of(b"manifest"),
            config=Digest.of(b"config"),
            python="/usr/bin/python3.12",
            layers=(
                BaseLayer(
                    digest=Digest.of(b"layer"),
                    size=9,
                    media_type="application/vnd.oci.image.layer.v1.tar+gzip",
                    diff_id=Digest.of(b"tar"),
                    by='RUN echo "two\nlines"',
                ),
            ),
            env=(("PATH", "/usr/bin"), ("odd name", "=")),
            labels=(("org.example.a", "b"),),
            entrypoint=("/init", "--"),
            working_dir="/data",
            user="1000",
        ),
    ),
    allow_scripts=("odd",),
    bytecode=False,
    substitutions=(Substitution(name="torch", wanted="2+cu129", got="2", reason='no "index"'),),
)
