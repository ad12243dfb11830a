"""`rollcage tools`: the registry of tools: proposals, decisions, and the people who made them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.text import Text
from rollcage import Contract, open_store
from rollcage_adapter import model_contract
from rollcage_cli.errors import DIFFERENT, UsageError
from rollcage_cli.options import DEFAULT_STORE, OFF, JsonOption, StoreOption, who
from rollcage_cli.output import console, print_json, visible
from rollcage_cli.tools import Source, contracts_of, load_tools

from rollcage_governance.facade import FacadeSnapshot
from rollcage_governance.lifecycle import Governed, Kind
from rollcage_governance.registry import Registry
from rollcage_governance.views import (
    diff_text,
    facade_data,
    facades_table,
    governed_data,
    governed_table,
    history_table,
    lines_of,
    review_text,
)

__all__ = ["tools"]

NameArgument = Annotated[
    str, typer.Argument(metavar="TOOL", help="A tool's name.", show_default=False)
]
PackArgument = Annotated[
    str, typer.Argument(metavar="PACK", help="A pack's name.", show_default=False)
]
ByOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="Who does this (by default, this user).")
]
WhyOption = Annotated[str, typer.Option(metavar="TEXT", help="Why; it is kept.")]
ModelOption = Annotated[bool, typer.Option("--model", help="It is a model, not a tool.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Don't ask for confirmation.")]
DigestOption = Annotated[
    str | None,
    typer.Option(metavar="SHA256", help="Digest of the proposal that was reviewed."),
]

tools = typer.Typer(
    name="tools",
    help="Govern tools: propose, review, approve, freeze, group them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


# --- looking -------------------------------------------------------------------------------------


@tools.command(name="list")
def list_(store: StoreOption = DEFAULT_STORE, as_json: JsonOption = OFF) -> None:
    """List every tool that was proposed, with its status."""
    state = Registry(store).state()
    found = [state.tools[at] for at in sorted(state.tools)]
    if as_json:
        print_json({"store": open_store(store).url, "tools": [*map(governed_data, found)]})
    elif found:
        console().print(governed_table(found))
    else:
        console().print(f"No tools in the registry of {visible(open_store(store).url)}.")


@tools.command()
def review(
    name: NameArgument,
    model: ModelOption = OFF,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = OFF,
) -> None:
    """Show a proposal, and its difference from the approved form."""
    registry, kind = Registry(store), _kind(model)
    governed = registry.tool(name, kind=kind)
    differs = registry.diff(name, kind=kind)
    if as_json:
        print_json(governed_data(governed, whole=True) | {"diff": differs})
        return
    _print(review_text(governed, differs))


@tools.command()
def diff(
    named: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODULE[:ATTRIBUTE]...", show_default=False),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = OFF,
) -> None:
    """Compare tools, field by field, with their approved forms.

    Without arguments, the tools that tool.rollcage.tools in pyproject.toml names. Exits with 1 if a
    tool differs, or was never approved.
    """
    registry = Registry(store)
    known = registry.state().tools
    found: list[dict[str, Any]] = []
    for contract in _contracts(load_tools(named), named):
        governed = known.get(("tool", contract.name))
        approved = governed is not None and governed.pin is not None
        differs = registry.diff(contract.name, contract) if approved else ""
        found.append({"tool": contract.name, "approved": approved, "diff": differs})
    if as_json:
        print_json({"tools": found})
    else:
        for each in found:
            _print(diff_text(each["tool"], each["diff"], approved=each["approved"]))
    if any(each["diff"] or not each["approved"] for each in found):
        raise typer.Exit(DIFFERENT)


@tools.command()
def log(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="Only lines about this tool or facade.", show_default=False
        ),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = OFF,
) -> None:
    """Show all transitions, oldest first."""
    events = Registry(store).history(name)
    if as_json:
        print_json({"events": events})
    elif events:
        console().print(history_table(events))
    else:
        console().print("Nothing is on record.")


# --- proposing and deciding ----------------------------------------------------------------------


@tools.command()
def propose(
    named: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODULE[:ATTRIBUTE]...", show_default=False),
    ] = None,
    by: ByOption = None,
    why: WhyOption = "",
    model: Annotated[
        bool, typer.Option("--model", help="The arguments are names of models.")
    ] = OFF,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = OFF,
) -> None:
    """Propose tools, for another person to approve.

    Without arguments, the tools that tool.rollcage.tools in pyproject.toml names. Of these, and of
    several tools in a module, unchanged tools that are approved or proposed are skipped.
    """
    registry, proposer = Registry(store), who(by)
    if model:
        contracts = [model_contract(each, "") for each in named or ()]
    else:
        contracts = _contracts(load_tools(named), named)
    if not contracts:
        raise UsageError("name a tool as MODULE[:ATTRIBUTE], or a model as NAME --model")
    kind = _kind(model)
    if len(contracts) > 1:
        contracts = [each for each in contracts if registry.is_new(each, kind=kind)]
    found = [registry.propose(each, by=proposer, why=why, kind=kind) for each in contracts]
    if as_json:
        print_json({"tools": [*map(governed_data, found)]})
        return
    out = console()
    for each in found:
        _print(Text(f"{visible(each.name)} is proposed by {visible(proposer)}", style="green"))
    out.print(
        f"Another person approves it with: rollcage tools approve TOOL{registry.option}"
        if found
        else "Nothing is new: all of them are approved or proposed already.",
        soft_wrap=True,
    )


@tools.command()
def approve(
    name: NameArgument,
    by: ByOption = None,
    why: WhyOption = "",
    digest: DigestOption = None,
    model: ModelOption = OFF,
    yes: YesOption = OFF,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = OFF,
) -> None:
    """Approve the proposal of a tool.

    From now on, its proposed contract is the only accepted one. Shows the change first, and asks.
    The proposer can't approve it.
    """
    if as_json and not (yes and digest):
        raise UsageError("--json can't ask: pass --yes, and the --digest that was reviewed")
    registry, kind = Registry(store), _kind(model)
    governed = registry.tool(name, kind=kind)
    proposal = governed.proposal
    seen = digest or ("" if proposal is None else proposal.digest)
    if proposal is not None and not as_json:
        _print(review_text(governed, registry.diff(name, kind=kind)))
    if proposal is not None and not yes and not typer.confirm("Approve this?"):
        raise typer.Exit(DIFFERENT)
    found = registry.approve(name, by=who(by), why=why, digest=seen or None, kind=kind)
    _tell(found, "approved", as_json=as_json)


@tools.command()
def reject(
    name: NameArgument,
    why: WhyOption,
    by: ByOption = None,
    model: ModelOption = OFF,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = OFF,
) -> None:
    """Reject the proposal of a tool.

    The approved form stays approved.
    """
    found = Registry(store).reject(name, by=who(by), why=why, kind=_kind(model))
    _tell(found, "not approved as it was proposed", as_json=as_json)


# --- packs and facades ---------------------------------------------------------------------------


@tools.command()
def activate(
    name: NameArgument,
    pack: PackArgument,
    by: ByOption = None,
    why: WhyOption = "",
    model: ModelOption = OFF,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = OFF,
) -> None:
    """Put an approved tool into a pack."""
    found = Registry(store).activate(name, pack, by=who(by), why=why, kind=_kind(model))
    _tell(found, f"active in {visible(pack)}", as_json=as_json)


@tools.command()
def deactivate(
    name: NameArgument,
    pack: PackArgument,
    by: ByOption = None,
    why: WhyOption = "",
    model: ModelOption = OFF,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = OFF,
) -> None:
    """Take a tool out of a pack."""
    found = Registry(store).deactivate(name, pack, by=who(by), why=why, kind=_kind(model))
    _tell(found, f"no longer in {visible(pack)}", as_json=as_json)


@tools.command()
def freeze(
    name: NameArgument,
    why: WhyOption,
    by: ByOption = None,
    model: ModelOption = OFF,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = OFF,
) -> None:
    """Freeze a tool: no new session gets it.

    Open sessions keep it; `rollcage stop` stops them.
    """
    found = Registry(store).freeze(name, by=who(by), why=why, kind=_kind(model))
    _tell(found, "frozen", as_json=as_json)


@tools.command()
def unfreeze(
    name: NameArgument,
    by: ByOption = None,
    why: WhyOption = "",
    model: ModelOption = OFF,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = OFF,
) -> None:
    """Make a frozen tool available again in its packs."""
    found = Registry(store).unfreeze(name, by=who(by), why=why, kind=_kind(model))
    _tell(found, found.status, as_json=as_json)


@tools.command()
def deprecate(
    name: NameArgument,
    why: WhyOption,
    by: ByOption = None,
    model: ModelOption = OFF,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = OFF,
) -> None:
    """Deprecate a tool: its users are warned, no pack may add it."""
    found = Registry(store).deprecate(name, by=who(by), why=why, kind=_kind(model))
    _tell(found, "deprecated", as_json=as_json)


@tools.command()
def facade(
    name: Annotated[
        str | None, typer.Argument(metavar="FACADE", help="Its name.", show_default=False)
    ] = None,
    packs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PACK...",
            help="The packs that the facade gives from now on.",
            show_default=False,
        ),
    ] = None,
    by: ByOption = None,
    why: WhyOption = "",
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = OFF,
) -> None:
    """Define a facade, the tools that an agent gets; or show them.

    It gets the active tools of the packs.
    """
    registry = Registry(store)
    if name is not None and packs:
        registry.define_facade(name, packs, by=who(by), why=why)
    state = registry.state()
    found: list[FacadeSnapshot] = [
        registry.facade(each) for each in ([name] if name is not None else sorted(state.facades))
    ]
    if as_json:
        print_json({"facades": [facade_data(each, state) for each in found]})
    elif found:
        console().print(facades_table(found, state))
    else:
        console().print("No facade is defined.")


# --- shared --------------------------------------------------------------------------------------


def _kind(model: bool) -> Kind:  # noqa: FBT001 - a flag of the command line
    return "model" if model else "tool"


def _contracts(found: Sequence[Source], named: Sequence[str] | None) -> list[Contract]:
    if not found and named:
        raise UsageError(f"there is no tool in {visible(', '.join(named))}")
    return contracts_of(found)


def _tell(governed: Governed, status: str, *, as_json: bool) -> None:
    if as_json:
        print_json(governed_data(governed))
    else:
        _print(Text(f"{visible(governed.name)} is {status}", style="green"))


def _print(text: Text) -> None:
    for line in lines_of(text):
        console().print(line, soft_wrap=True)
