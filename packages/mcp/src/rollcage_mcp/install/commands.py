"""`rollcage mcp install` and `uninstall`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rollcage import open_store
from rollcage_cli.errors import DIFFERENT, UsageError
from rollcage_cli.options import OFF, JsonOption
from rollcage_cli.output import console, is_terminal, print_json, visible
from rollcage_cli.table import Table

from rollcage_mcp.errors import PackInvalid
from rollcage_mcp.install.clients import CLIENTS, Client, client_of
from rollcage_mcp.install.errors import ConfigInvalid
from rollcage_mcp.install.plan import InstallPlan, plan_install, plan_uninstall, read
from rollcage_mcp.pack import BUILT_IN, Pack

__all__ = ["install", "uninstall"]

ClientArgument = Annotated[
    str, typer.Argument(metavar="CLIENT", help=f"One of {', '.join(CLIENTS)}.", show_default=False)
]
ServersArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[SERVER]...", help="By default all of them.", show_default=False),
]
ProjectOption = Annotated[
    Path | None,
    typer.Option(
        "--project",
        metavar="FOLDER",
        help="The client's file in this project, instead of the user's.",
        show_default=False,
    ),
]
FileOption = Annotated[
    Path | None,
    typer.Option("--file", help="Another file in the client's format.", show_default=False),
]
YesOption = Annotated[bool, typer.Option("--yes", help="Don't ask for confirmation.")]


def install(
    client: Annotated[
        str | None,
        typer.Argument(metavar="CLIENT", help=f"One of {', '.join(CLIENTS)}.", show_default=False),
    ] = None,
    servers: ServersArgument = None,
    list_: Annotated[
        bool, typer.Option("--list", help="Show which servers there are, and which are guarded.")
    ] = OFF,
    policy: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What decides on each call.", show_default=False),
    ] = None,
    facade: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Give only what this facade gives.", show_default=False),
    ] = None,
    pack: Annotated[
        str | None,
        typer.Option(help="What the tools of the one server do.", show_default=False),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            envvar="ROLLCAGE_STORE",
            metavar="URL",
            help="Where the runs are kept; by default .rollcage in the home folder, or in the "
            "project.",
            show_default=False,
        ),
    ] = None,
    project: ProjectOption = None,
    file: FileOption = None,
    yes: YesOption = OFF,
    as_json: JsonOption = OFF,
) -> None:
    """Have the servers of a client run through rollcage mcp run.

    Shows the change of its configuration, and asks. The rest of the file stays unchanged, and
    rollcage mcp uninstall reverts the change. Values of env blocks are not shown.
    """
    if list_:
        _list(client, project, file, as_json=as_json)
        return
    if client is None:
        raise UsageError(f"name a client: {', '.join(CLIENTS)}; or --list what is there")
    if pack is not None and len(servers or ()) != 1:
        raise UsageError("--pack describes one server: name that server")
    options = _options(policy, facade, pack, store, project)
    which, path = _file(client, project, file)
    plan = plan_install(which, path, servers or [], [*_rollcage(), "mcp", "run", *options, "--"])
    _do(plan, yes=yes, as_json=as_json, verb="guarded")


def uninstall(
    client: ClientArgument,
    servers: ServersArgument = None,
    project: ProjectOption = None,
    file: FileOption = None,
    yes: YesOption = OFF,
    as_json: JsonOption = OFF,
) -> None:
    """Undo the changes of rollcage mcp install.

    Each server gets its original command back. If an installed entry was changed since, nothing is
    written.
    """
    which, path = _file(client, project, file)
    plan = plan_uninstall(which, path, servers or [])
    _do(plan, yes=yes, as_json=as_json, verb="restored")


def _file(client: str, project: Path | None, file: Path | None) -> tuple[Client, Path]:
    which = client_of(client)
    if file is not None and project is not None:
        raise UsageError("--file and --project both name the file: give one of them")
    return which, which.file(project) if file is None else file.absolute()


def _rollcage() -> list[str]:
    """Return how a client starts this program: with its absolute path, without an environment."""
    here = Path(sys.executable).with_name("rollcage")
    return [str(here)] if here.is_file() else [sys.executable, "-m", "rollcage"]


def _options(
    policy: Path | None,
    facade: str | None,
    pack: str | None,
    store: str | None,
    project: Path | None,
) -> list[str]:
    """Return the options of the guard, with absolute paths. Raises `UsageError`."""
    if store is None:
        store = str((project or Path.home()).absolute() / _STORE)
    elif "://" not in store:
        store = str(Path(store).absolute())
    elif store.startswith(_SQLITE):
        store = f"{_SQLITE}{Path(store.removeprefix(_SQLITE)).absolute()}"
    open_store(store)
    found = ["--store", store]
    if policy is not None:
        if not policy.is_file():
            raise UsageError(f"--policy {visible(str(policy))} is no file")
        found += ["--policy", str(policy.absolute())]
    if facade is not None:
        found += ["--facade", facade]
    if pack is not None:
        try:
            Pack.load(pack)
        except PackInvalid as error:
            raise UsageError(str(error)) from None
        found += ["--pack", pack if pack in BUILT_IN else str(Path(pack).absolute())]
    return found


_STORE: Final = ".rollcage"
_SQLITE: Final = "sqlite:///"


def _do(plan: InstallPlan, *, yes: bool, as_json: bool, verb: str) -> None:
    """Show a plan, ask, and carry it out."""
    out = console()
    named = visible(str(plan.file.path))
    if plan.changes and not yes and (as_json or not is_terminal(sys.stdin)):
        if not as_json:
            out.print("\n".join(plan.diff()), soft_wrap=True)
        raise UsageError("there is no terminal to ask on, and nothing was written: pass --yes")
    if not as_json:
        for each, why in plan.left:
            out.print(f"{visible(each.name)} is left unchanged: {why}", soft_wrap=True)
        if plan.changes:
            out.print("\n".join(plan.diff()), soft_wrap=True)
            if not yes and not typer.confirm("Write this?"):
                raise typer.Exit(DIFFERENT)
    plan.write()
    if as_json:
        print_json(_data(plan, verb))
    elif plan.changes:
        again = plan.config.client.again
        out.print(f"{_names(plan)} {'is' if len(plan.servers) == 1 else 'are'} {verb} in {named}. "
                  f"{plan.config.client.title}: {again}.", soft_wrap=True)  # fmt: skip
    else:
        out.print(f"Nothing to do in {named}.", soft_wrap=True)


def _names(plan: InstallPlan) -> str:
    return ", ".join(visible(each.name) for each in plan.servers)


def _data(plan: InstallPlan, verb: str) -> dict[str, Any]:
    return {
        "client": plan.config.client.name,
        "file": str(plan.file.path),
        verb: [each.name for each in plan.servers],
        "left": [{"server": each.name, "why": why} for each, why in plan.left],
        "written": plan.changes,
        "diff": plan.diff() if plan.changes else [],
    }


def _list(client: str | None, project: Path | None, file: Path | None, *, as_json: bool) -> None:
    """List the configured servers, of one client or of all clients with a file."""
    if client is None and file is not None:
        raise UsageError(
            "name the client of the file: rollcage mcp install CLIENT --list --file FILE"
        )
    clients = [client_of(client)] if client is not None else [*CLIENTS.values()]
    found: list[dict[str, Any]] = []
    wrong: list[str] = []
    for each in clients:
        if project is not None and not each.project and client is None:
            continue
        path = each.file(project) if file is None else file.absolute()
        if client is None and not path.is_file():
            continue
        try:
            entries = read(each, path)[1].entries
        except ConfigInvalid as error:
            wrong.append(str(error))
            continue
        found += [
            {"client": each.name, "file": str(path), "server": own.name, "in": own.where,
             "state": own.state, "why": own.why}
            for own in entries
        ]  # fmt: skip
    if as_json:
        print_json({"servers": found, "errors": wrong})
    else:
        _print(found, wrong)
    if wrong:
        raise typer.Exit(DIFFERENT)


def _print(found: list[dict[str, Any]], wrong: list[str]) -> None:
    out = console()
    table = Table()
    for title in ("client", "server", "state", "file"):
        table.add_column(title)
    for each in found:
        name = f"{each['server']} ({each['in']})" if each["in"] else each["server"]
        state = (
            f"{_STATES[each['state']]}: {each['why']}" if each["why"] else _STATES[each["state"]]
        )
        table.add_row(each["client"], visible(name), state, visible(each["file"]))
    if found:
        out.print(table)
    else:
        out.print("No known client has a server configured.")
    for text in wrong:
        console(error=True).print(f"rollcage: {text}", soft_wrap=True)
    if any(each["state"] == "bare" for each in found):
        bare = next(each["client"] for each in found if each["state"] == "bare")
        out.print(f"Guard them with: rollcage mcp install {shlex.quote(bare)}")


_STATES: Final = {"bare": "not guarded", "guarded": "guarded", "left": "can't be guarded here"}
