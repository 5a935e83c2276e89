"""End a mount that stays: unmount it, and wait until its processes have cleared away."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from pathlib import Path

from envbuilder.errors import HostError, SpecError
from envbuilder.mount.host import kernel
from envbuilder.mount.launch import END_S
from envbuilder.mount.state import MountFolder, Record, clear, folders


class DoesNotEnd(HostError):
    """A process of a mount does not end."""


class NotMounted(SpecError):
    """A directory is not a mount of ours."""

    hint = "Name a directory that `envbuilder mount` printed."


def find_mount(directory: Path, state_dir: Path) -> tuple[MountFolder, Record]:
    """The mount of ours at ``directory``: what ``unmount`` would end.

    Raises:
        NotMounted: there is none.
    """
    wanted = str(directory.resolve())
    for folder in folders(state_dir):
        record = folder.read()
        if record is not None and record.directory == wanted and not record.private:
            return folder, record
    raise NotMounted(f"{directory}: nothing is mounted there by envbuilder (state directory {state_dir})")


def unmount(directory: Path, state_dir: Path, *, force: bool = False) -> None:
    """End the mount at ``directory``; its writable layer is thrown away.

    force: although it is in use; its users get errors.

    Raises:
        NotMounted: it is not one of ours. StillBusy: it is in use.
    """
    folder, record = find_mount(directory, state_dir)
    if not folder.is_alive():
        if not clear(folder, record, force=force):
            raise kernel.StillBusy(f"unmount of {directory}: it is in use")
        return
    if not force:
        kernel.unmount(Path(record.directory))
    # The keeper alone, or the supervisor that has lost it and did not notice yet.
    for pid in filter(None, (record.keeper, record.supervisor)):
        _end_process(pid, folder)


def _end_process(pid: int, folder: MountFolder) -> None:
    """Ask a supervisor to end and wait until it has cleared away."""
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        try:
            if folder.is_alive():
                signal.pidfd_send_signal(handle, signal.SIGTERM)
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            if not poll.poll(END_S * 1000):
                raise DoesNotEnd(f"process {pid} of the mount does not end", hint=f"Read {folder.log}, then kill it.")
        finally:
            os.close(handle)
