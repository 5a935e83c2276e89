"""The verbs by name, each imported when it is called; what is wrong becomes words and an exit status."""

from __future__ import annotations

import gc
import importlib
import sys
from typing import Any

import click

from envbuilder import __version__
from envbuilder.errors import EnvbuilderError, HostError

#: Verb -> what it does, in the order of the data flow; each lives in the module of its name.
VERBS = {
    "lock": "Choose versions: write the lock of an environment if it changes.",
    "import": "Turn a requirements file or another tool's lock into a declaration.",
    "export": "Write a lock as pylock.toml, hashed requirements or the difference to its parent.",
    "diff": "Compare two locks: versions, layers, bytes that a node would fetch.",
    "why": "Say what requires a package.",
    "archive": "Keep every wheel and deb of a lock in a registry or a layout.",
    "plan": "Say which layers change, why, and how much a push would send; build nothing.",
    "build": "Make the layers and the image of an environment in the store.",
    "push": "Copy an image to a registry, a layout or an archive; only missing blobs move.",
    "pull": "Copy an image from a registry into the store or elsewhere.",
    "copy": "Copy an image, whole, between registries, layouts and archives.",
    "attach": "Store files beside an image, found through it.",
    "discover": "List what is attached to an image.",
    "tags": "List the tags of a repository or layout, or delete some.",
    "gc": "Delete what nothing refers to, in the store, a layout or a repository.",
    "cache": "List or free what locks and builds keep on this machine: wheels, debs, bases.",
    "sign": "Sign an image with a key.",
    "signatures": "Check who signed an image.",
    "login": "Keep a login to a registry, once the registry has taken it.",
    "logout": "Forget a login to a registry.",
    "whoami": "Say who this machine is to a registry, and what says so.",
    "resolve": "Give the immutable digest and the start plan of a reference.",
    "mount": "Mount an image lazily: the root file system is there before it is downloaded.",
    "unmount": "Take a mount away.",
    "run": "Start a command in an image, lazily.",
    "ps": "List what is mounted and how its lazy start goes.",
    "status": "Say what this node fetches, waits for and keeps; --follow as it happens.",
    "chunks": "List, free or check what lazily started images keep on this node.",
    "trace": "Record what a start reads, so that the next ones fetch it first.",
    "index": "Let gzip layers that others built be read by ranges.",
    "verify": "Build an image again from the lock attached to it and compare every digest.",
    "inspect": "Say what is in an image or a lock.",
    "doctor": "Say what this host can do, and why.",
}
#: Exit status of a command line that is wrong; the same as of a file that is wrong (SpecError).
_USAGE = 2
#: Exit status after Ctrl-C: 128 + SIGINT.
_INTERRUPTED = 130
#: New objects that may hold others until the collector looks at them; its 700 made parsing a trace take twice as long.
_COLLECT_AFTER = 50_000


class _Verbs(click.Group):
    """Verbs that are imported when they are called: ``--help`` stays fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  click's signature
        if cmd_name not in VERBS:
            return None
        module = {"import": "imports"}.get(cmd_name, cmd_name)  # a word of the language names no module
        command: Any = importlib.import_module(f"envbuilder.cli.{module}").command
        assert isinstance(command, click.Command)
        # What was imported lives as long as we do: no collection looks at it, the one at the end included.
        gc.freeze()
        gc.set_threshold(_COLLECT_AFTER)
        gc.enable()
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS:
            import difflib  # noqa: PLC0415  only for a mistake

            if near := difflib.get_close_matches(args[0], VERBS):
                ctx.fail(f"No such command {args[0]!r}. (Did you mean one of: {', '.join(map(repr, near))}?)")
        return super().resolve_command(ctx, args)

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002  click's signature
        formatter: click.HelpFormatter,
    ) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))


@click.group(
    cls=_Verbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog='Shell completion: eval "$(_ENVBUILDER_COMPLETE=bash_source envbuilder)"; also zsh_source, fish_source.',
)
@click.version_option(__version__, prog_name="envbuilder")
def cli() -> None:
    """Locked, reproducible, lazily started environments for GPU jobs."""


def call() -> int:
    """Run the verb that the command line names: 0, the family's code (errors.py), or the started command's own."""
    debug = "--debug" in sys.argv
    try:
        status = cli.main(prog_name="envbuilder", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return _USAGE
    except (KeyboardInterrupt, click.Abort):
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader of our stdout went away (head): not an error of ours.
        sys.stderr.close()
        return 0
    except EnvbuilderError as error:
        return _explain(error, debug=debug)
    except OSError as error:
        # What the host refused where nobody expected it to.
        where = f"{error.filename}: " if error.filename is not None else ""
        text = f"{where}{error.strerror or error}"
        return _explain(HostError(text, hint="Say it again with --debug to see where."), debug=debug)
    return status if isinstance(status, int) else 0


def _explain(error: EnvbuilderError, *, debug: bool) -> int:
    if debug:
        import traceback  # noqa: PLC0415  only for a mistake

        traceback.print_exc()
    click.echo(f"error: {error}", err=True)
    if error.hint:
        click.echo(f"\nhint: {error.hint}", err=True)
    return error.exit_code
