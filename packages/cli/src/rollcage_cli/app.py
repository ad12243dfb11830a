"""The `rollcage` command: its parts, and how every error reaches the user as one line.

Exit codes: 0 done; 1 runs differ, not everything is taken back, or the demo found less than it
promises; 2 the request makes no sense, or what it asks for does not exist; 3 a trace is damaged;
4 a run is in use; 5 the store can't be used, or something unexpected; 130 interrupted.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Annotated

import typer
from rich.text import Text
from rollcage.errors import RollcageError

from rollcage_cli.abandon import abandon
from rollcage_cli.approvals import approvals, approve, reject, respond
from rollcage_cli.audit import audit
from rollcage_cli.demo import demo
from rollcage_cli.diff import diff
from rollcage_cli.errors import FAILED, OK, exit_code
from rollcage_cli.export import export
from rollcage_cli.options import OFF
from rollcage_cli.output import console, print_json, visible
from rollcage_cli.policy import policy
from rollcage_cli.registry import tools
from rollcage_cli.repair import repair
from rollcage_cli.resolve import resolve
from rollcage_cli.runs import runs
from rollcage_cli.show import show
from rollcage_cli.stop import stop
from rollcage_cli.undo import undo
from rollcage_cli.verify import verify

__all__ = ["main", "rollcage"]

_EXIT_CODES = (
    "Exit codes: 0 done, 1 a difference, 2 bad request or not found, 3 a trace is damaged, "
    "4 a run is in use, 5 anything else."
)

rollcage = typer.Typer(
    name="rollcage",
    help="Look at the runs of AI agents: what ran, what was replayed, what nobody can tell.",
    epilog=_EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _command in (
    demo,
    runs,
    show,
    verify,
    diff,
    audit,
    stop,
    resolve,
    undo,
    abandon,
    export,
    repair,
    approvals,
    approve,
    reject,
    respond,
):
    rollcage.command()(_command)
rollcage.add_typer(tools)
rollcage.add_typer(policy)


def _version(wanted: bool) -> None:  # noqa: FBT001 - Typer calls it with the flag
    if wanted:
        typer.echo(f"rollcage {metadata.version('rollcage-cli')}")
        raise typer.Exit


@rollcage.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version.")
    ] = OFF,
    _debug: Annotated[
        bool, typer.Option("--debug", help="Show an error with its traceback; goes anywhere.")
    ] = OFF,
) -> None:
    """Hold the options that come before a command."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the process's exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what an encoding lacks is shown by its number
            stream.reconfigure(errors="backslashreplace")
    given = list(sys.argv[1:] if arguments is None else arguments)
    words = [word for word in given if word != "--debug"]
    try:
        rollcage(words, prog_name="rollcage")
    except SystemExit as end:  # how Typer ends, its own errors told
        return end.code if isinstance(end.code, int) else FAILED
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if len(words) < len(given):
            raise
        _tell(error, as_json="--json" in words)
        return exit_code(error) if isinstance(error, RollcageError) else FAILED
    return OK


def _tell(error: Exception, *, as_json: bool) -> None:
    """One error on stderr: for people a line, for machines an object."""
    expected = isinstance(error, RollcageError)
    code = error.code if isinstance(error, RollcageError) else "unexpected"
    message = str(error) if expected else f"{type(error).__name__}: {error}"
    if as_json:
        print_json({"error": {"code": code, "message": message}}, error=True)
        return
    said = (
        "\n".join(visible(line) for line in message.split("\n")) if expected else visible(message)
    )
    hint = "" if expected else " (--debug shows where)"
    text = Text("rollcage: ", style="bold red").append(f"{said}{hint}", style="default")
    console(error=True).print(text, soft_wrap=True)
