"""`rollcage policy init`: a starting policy, and its tests."""

from __future__ import annotations

import json
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text
from rollcage.errors import StoreError
from rollcage_cli.errors import UsageError
from rollcage_cli.options import OFF
from rollcage_cli.output import console, visible

__all__ = ["init"]


class Start(StrEnum):
    """The starting point of a policy."""

    WORKSPACE = "workspace"
    NETWORK = "network"
    READ_ONLY = "read-only"
    REVERSIBLE_ONLY = "reversible-only"
    BUDGET = "budget"
    SECRETS = "secrets"


def init(
    policy: Annotated[Path, typer.Argument(metavar="[POLICY]", help="A .toml.")] = Path(
        "policy.toml"
    ),
    preset: Annotated[Start, typer.Option(help="A preset to start from.")] = Start.READ_ONLY,
    root: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The workspace's folder; by default this one."),
    ] = None,
    host: Annotated[
        list[str] | None, typer.Option(metavar="HOST", help="A host that the agent may reach.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = OFF,
) -> None:
    """Write a policy to start from, and its tests.

    The files are NAME.toml and NAME.tests.toml. The policy denies calls that no rule allows. Both
    pass
    `rollcage policy check` and `test`.
    """
    if policy.suffix != ".toml":
        raise UsageError(f"{visible(str(policy))}: init writes TOML; call it NAME.toml")
    if root is not None and preset is not Start.WORKSPACE:
        raise UsageError("--root is for --preset workspace")
    if host and preset is not Start.NETWORK:
        raise UsageError("--host is for --preset network")
    tests = policy.with_suffix(".tests.toml")
    there = [path for path in (policy, tests) if path.exists()]
    if there and not force:
        raise UsageError(f"{visible(str(there[0]))} exists already; --force overwrites it")
    starters = files("rollcage_policy.commands") / "starters"
    hosts = host or ["api.example.com"]
    values = {
        "ROOT": _quoted(str((root or Path.cwd()).resolve())),
        "INSIDE": _quoted(str((root or Path.cwd()).resolve() / "notes.txt")),
        "HOSTS": f"[{', '.join(map(_quoted, hosts))}]",
        "HOST": _host_of(hosts[0]),
        "POLICY": _quoted(policy.name),
    }
    for path, ending in ((policy, ".toml"), (tests, ".tests.toml")):
        text = (starters / f"{preset.value}{ending}").read_text(encoding="utf-8")
        for name, value in values.items():
            text = text.replace(f"@{name}@", value)
        _write(path, text, force=force)
    out = console()
    out.print(Text(f"{visible(str(policy))} and {visible(str(tests))} are written", style="green"))
    out.print(f"Next: rollcage policy test {visible(str(tests))}", soft_wrap=True)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _host_of(host: str) -> str:
    """Return a host that matches a glob, for a test."""
    return host.replace("*", "api") if host != "*" else "api.example.com"


def _write(path: Path, text: str, *, force: bool) -> None:
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{visible(str(path))} exists already; --force overwrites it") from None
    except OSError as error:
        raise StoreError(f"{visible(str(path))} can't be written: {error.strerror}") from error
