"""`rollcage policy`: write a policy, check it, test it, and try it on recorded runs."""

from __future__ import annotations

import typer

from rollcage_policy.commands.checking import check
from rollcage_policy.commands.explaining import explain
from rollcage_policy.commands.replaying import replay
from rollcage_policy.commands.starting import init
from rollcage_policy.commands.testing import run_tests

__all__ = ["policy"]

policy = typer.Typer(
    name="policy",
    help="Write, check, test and explain policies. No tool runs.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
for _name, _command in (
    ("init", init),
    ("check", check),
    ("test", run_tests),
    ("explain", explain),
    ("replay", replay),
):
    policy.command(_name)(_command)
