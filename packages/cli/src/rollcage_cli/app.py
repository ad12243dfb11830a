"""The `rollcage` command: its parts, and its errors, each printed as one line.

Exit codes: 0 done; 1 runs differ, not everything is undone, the doctor found something to decide or
fix, or the demo found less than it promises; 2 the request makes no sense, or its target does not
exist; 3 a trace, or something else in the store, is damaged; 4 a run is in use; 5 the store can't
be read or written, or an unexpected error; 6 the watched run is paused; 7 its process died; 130
interrupted.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from importlib import import_module, metadata
from typing import Annotated, Any, Final

import typer
from rollcage.errors import RollcageError
from typer.core import TyperGroup
from typer.main import get_group

from rollcage_cli.errors import FAILED, OK, UsageError, exit_code
from rollcage_cli.options import OFF

__all__ = ["main", "rollcage"]

# The module of each command, imported on demand, so that no command waits for the others. Commands
# of
# other packages are entry points of `GROUP`.
_COMMANDS: Final = {
    "quickstart": "rollcage_cli.quickstart",
    "demo": "rollcage_cli.demo",
    "jobs": "rollcage_cli.jobs",
    "runs": "rollcage_cli.runs",
    "show": "rollcage_cli.show",
    "watch": "rollcage_cli.watch",
    "verify": "rollcage_cli.verify",
    "diff": "rollcage_cli.diff",
    "fork": "rollcage_cli.forks.command",
    "audit": "rollcage_cli.audit",
    "stop": "rollcage_cli.stop",
    "pause": "rollcage_cli.pause",
    "unpause": "rollcage_cli.pause",
    "resolve": "rollcage_cli.resolve",
    "once": "rollcage_cli.once",
    "undo": "rollcage_cli.undo",
    "abandon": "rollcage_cli.abandon",
    "export": "rollcage_cli.export",
    "doctor": "rollcage_cli.doctor",
    "repair": "rollcage_cli.repair",
    "copy": "rollcage_cli.copy",
    "prune": "rollcage_cli.prune",
    "approvals": "rollcage_cli.approvals",
    "approve": "rollcage_cli.approvals",
    "reject": "rollcage_cli.approvals",
    "respond": "rollcage_cli.approvals",
}
GROUP: Final = "rollcage.commands"
_ELSEWHERE: Final = {  # by the extra that installs them
    "import": "import",
    "backtest": "policy",
    "policy": "policy",
    "serve": "server",
    "token": "server",
    "tools": "governance",
    "ui": "server",
}
_EXIT_CODES: Final = (
    "Exit codes: 0 done, 1 a difference, 2 bad request or not found, 3 a trace is damaged, "
    "4 a run is in use, 5 anything else."
)
_INTERRUPTED: Final = 130


class _Commands(TyperGroup):
    """The commands by name; all of them for the help, and to suggest the nearest name."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - Typer gives it
        return [*_COMMANDS, *sorted(_installed().names)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        known = cmd_name in {*_COMMANDS, *_ELSEWHERE, *_installed().names}
        for name in [cmd_name] if known else self.list_commands(ctx):
            if name not in self.commands:
                self.commands[name] = _imported(name)
        return super().get_command(ctx, cmd_name)


def _installed() -> metadata.EntryPoints:
    """Return the commands of other packages."""
    return metadata.entry_points(group=GROUP)


def _imported(name: str) -> Any:
    """Return a command, or a group of commands, as Typer runs it.

    Raises:
        UsageError: the package of the command is not installed.
    """
    if name in _COMMANDS:
        found = getattr(import_module(_COMMANDS[name]), name)
    else:
        brought = _installed().select(name=name)
        if not brought:
            extra = _ELSEWHERE[name]
            raise UsageError(
                f"rollcage {name} comes with rollcage-{extra}, which is not installed: "
                f"pip install 'rollcage[{extra}]'"
            )
        found = brought[name].load()
    around = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    if isinstance(found, typer.Typer):
        around.add_typer(found)
    else:
        around.command(name)(found)
    return get_group(around).commands[name]


rollcage = typer.Typer(
    name="rollcage",
    cls=_Commands,
    help="Inspect, verify, undo and audit the runs of AI agents.",
    epilog=_EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:  # noqa: FBT001 - Typer calls it with the flag
    if wanted:
        typer.echo(f"rollcage {metadata.version('rollcage-cli')}")
        raise typer.Exit


@rollcage.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = OFF,
    _debug: Annotated[
        bool, typer.Option("--debug", help="Show an error with its traceback; goes anywhere.")
    ] = OFF,
) -> None:
    """Hold the options that come before a command."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the process's exit code."""
    for stream in (sys.stdout, sys.stderr):
        # characters outside of the encoding are shown by number
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    given = list(sys.argv[1:] if arguments is None else arguments)
    words = [word for word in given if word != "--debug"]
    try:
        rollcage(words, prog_name="rollcage")
    except SystemExit as end:  # Typer's way to end, with its own errors printed
        return end.code if isinstance(end.code, int) else FAILED
    except KeyboardInterrupt:
        return _INTERRUPTED
    except Exception as error:
        if len(words) < len(given):
            raise
        _tell(error, as_json="--json" in words)
        return exit_code(error) if isinstance(error, RollcageError) else FAILED
    return OK


def _tell(error: Exception, *, as_json: bool) -> None:
    """Print an error on stderr: a line for people, an object for machines."""
    from rich.text import Text  # a tenth of a second, only for errors

    from rollcage_cli.output import console, print_json, visible

    expected = isinstance(error, RollcageError)
    code = error.code if isinstance(error, RollcageError) else "unexpected"
    message = str(error) if expected else f"{type(error).__name__}: {error}"
    if as_json:
        print_json({"error": {"code": code, "message": message}}, error=True)
        return
    shown = (
        "\n".join(visible(line) for line in message.split("\n")) if expected else visible(message)
    )
    hint = "" if expected else " (--debug shows where)"
    text = Text("rollcage: ", style="bold red").append(f"{shown}{hint}", style="default")
    console(error=True).print(text, soft_wrap=True)
