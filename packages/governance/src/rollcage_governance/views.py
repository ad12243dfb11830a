"""The output of `rollcage tools`, for people and for machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.table import Table
from rich.text import Text
from rollcage_cli.output import visible
from rollcage_views import time_text

from rollcage_governance.facade import FacadeSnapshot
from rollcage_governance.lifecycle import Governed, Lifecycle

__all__ = [
    "diff_text",
    "facade_data",
    "facades_table",
    "governed_data",
    "governed_table",
    "history_table",
    "lines_of",
    "review_text",
]

_STYLES: Final = {
    "active": "green", "approved": "green", "proposed": "yellow", "rejected": "dim",
    "frozen": "bold red", "deprecated": "yellow",
}  # fmt: skip
_SHORT: Final = 12  # digits of a digest that a table shows


def lines_of(text: Text) -> Sequence[Text]:
    """Return the lines of a text."""
    return list(text.split("\n"))


def governed_table(found: Sequence[Governed]) -> Table:
    """Tools, one a line."""
    table = _table("tool", "status", "packs", "digest", "proposed by", "approved by", "waiting")
    for each in found:
        pin, proposal = each.pin, each.proposal
        table.add_row(
            Text(visible(each.name) + (" (model)" if each.kind == "model" else "")),
            Text(each.status, style=_STYLES[each.status]),
            Text(visible(", ".join(sorted(each.packs)))),
            Text("" if pin is None else pin.digest[:_SHORT]),
            Text("" if pin is None else visible(pin.proposed_by)),
            Text("" if pin is None else visible(pin.approved_by)),
            Text("" if proposal is None else f"proposed by {visible(proposal.by)}"),
        )
    return table


def governed_data(each: Governed, *, whole: bool = False) -> dict[str, Any]:
    """Return a tool for machines; with its whole description if `whole`."""
    pin, proposal = each.pin, each.proposal
    data: dict[str, Any] = {
        "kind": each.kind, "tool": each.name, "status": each.status, "packs": sorted(each.packs),
        "last_change": {"by": each.last_change[0], "why": each.last_change[1]},
        "pin": None, "proposal": None,
    }  # fmt: skip
    if pin is not None:
        approved: dict[str, Any] = {"contract": dict(pin.contract)} if whole else {}
        data["pin"] = {
            "digest": pin.digest, "proposed_by": pin.proposed_by, "approved_by": pin.approved_by,
            "time": pin.time, **approved,
        }  # fmt: skip
    if proposal is not None:
        proposed: dict[str, Any] = {"contract": dict(proposal.contract)} if whole else {}
        data["proposal"] = {
            "digest": proposal.digest, "by": proposal.by, "why": proposal.why,
            "time": proposal.time, **proposed,
        }  # fmt: skip
    return data


def review_text(each: Governed, differs: str) -> Text:
    """Return a tool, and its proposal."""
    text = Text(visible(each.name), style="bold").append(f"  {each.status}", style="default")
    if each.pin is not None:
        pin = each.pin
        text.append(
            f"\napproved by {visible(pin.approved_by)} at {time_text(pin.time)}, proposed by "
            f"{visible(pin.proposed_by)}: {pin.digest}",
            style="default",
        )
    if each.proposal is None:
        return text.append("\nnothing is proposed", style="default")
    proposal = each.proposal
    why = f": {visible(proposal.why)}" if proposal.why else ""
    text.append(
        f"\nproposed by {visible(proposal.by)} at {time_text(proposal.time)}{why}\n"
        f"digest {proposal.digest}\n",
        style="default",
    )
    return text.append_text(_diff(differs))


def diff_text(name: str, differs: str, *, approved: bool) -> Text:
    """Return a tool's differences from its approved form."""
    text = Text(visible(name), style="bold")
    if not approved:
        return text.append("  was never approved", style="yellow")
    if not differs:
        return text.append("  is what was approved", style="green")
    return text.append("  is not what was approved\n", style="bold red").append_text(_diff(differs))


def _diff(differs: str) -> Text:
    text = Text(style="default")
    for line in differs.splitlines():
        word = line.strip()[:1]
        style = {"+": "green", "-": "red"}.get(word, "") if line.startswith("  ") else "bold"
        text.append(f"  {visible(line)}\n", style=style or "default")
    text.rstrip()
    return text


def facade_data(facade: FacadeSnapshot, state: Lifecycle) -> dict[str, Any]:
    """Return a facade, with its packs."""
    return facade.as_data() | {"packs": list(state.facades[facade.name])}


def facades_table(found: Sequence[FacadeSnapshot], state: Lifecycle) -> Table:
    """Facades, one a line."""
    table = _table("facade", "packs", "tools", "models", "digest")
    for each in found:
        table.add_row(
            Text(visible(each.name)),
            Text(visible(", ".join(state.facades[each.name]))),
            Text(visible(", ".join(each.tools)), overflow="fold"),
            Text("any" if each.models is None else visible(", ".join(each.models))),
            Text(each.digest[:_SHORT]),
        )
    return table


def history_table(events: Sequence[Mapping[str, Any]]) -> Table:
    """Transitions, one a line."""
    table = _table("when", "what", "of", "by", "why")
    for event in events:
        of = str(event.get("tool") or event.get("facade"))
        more = event.get("pack") or ", ".join(event.get("packs", ())) or event.get("digest", "")
        detail = str(more)[:_SHORT] if "digest" in event else str(more)
        table.add_row(
            time_text(event["time"]),
            Text(str(event["event"])),
            Text(visible(f"{of} {detail}".strip())),
            Text(visible(str(event["by"]))),
            Text(visible(str(event["why"])), overflow="fold"),
        )
    return table


def _table(*titles: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in titles:
        table.add_column(title, overflow="fold")
    return table
