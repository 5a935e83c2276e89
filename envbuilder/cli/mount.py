"""``envbuilder mount REF DIR``: a root file system that is there before it is downloaded."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import click

from envbuilder.cli.app import App, common
from envbuilder.cli.complete import environment_names
from envbuilder.cli.output import Result
from envbuilder.cli.targets import host_platform_of, open_source
from envbuilder.cli.trust import check_trust
from envbuilder.image.inspect import open_image
from envbuilder.mount.mount import BadMountPoint, mount, require_root


@click.command(name="mount", epilog="Example: envbuilder mount ai /mnt/ai --rw")
@click.argument("reference", metavar="REF", shell_complete=environment_names)
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--rw", "writable", is_flag=True, help="Writable; what is written is thrown away by unmount.")
@click.option("--full", is_flag=True, help="Fetch everything first.")
@click.option("--dry-run", is_flag=True, help="Look the image up and check it, mount nothing.")
@common
def command(app: App, reference: str, directory: Path, writable: bool, full: bool, dry_run: bool) -> Result:
    """Mount the image REF at DIR, an empty directory that is made when missing. Prints the mount point.

    What is read is fetched, verified and kept on this node; the rest is not. End it with unmount.
    """
    source = open_source(app, reference, starting=True)
    check_trust(app, source)
    image = open_image(source.target, source.what, host_platform_of())
    value = {"directory": str(directory.absolute()), "pinned": source.pinned, "writable": writable}
    if dry_run:
        return Result(str(directory), {**value, "mode": "lazy" if image.lazy else "unpack"})
    require_root()
    with _mount_point(directory), app.output.stage(f"mount {reference}") as meter:
        done_before = 0

        def progress(done: int, total: int) -> None:
            nonlocal done_before
            meter.total(total)
            meter.advance(done - done_before)
            done_before = done

        mounted = mount(
            image, source.target, app.mount_settings(), directory, writable=writable, full=full, progress=progress
        )
    return Result(str(mounted.directory), {**value, "mode": mounted.how})


@contextlib.contextmanager
def _mount_point(directory: Path) -> Iterator[None]:
    """``directory`` exists; one that was made for a mount which then failed is taken away again."""
    made = not directory.exists()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadMountPoint(f"{directory}: {error.strerror}") from error
    try:
        yield
    except BaseException:
        if made:
            with contextlib.suppress(OSError):
                directory.rmdir()
        raise
