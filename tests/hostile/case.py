"""What the corpus is made of: calls that must not run beside calls that must."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

PUBLIC = "93.184.216.34"
PUBLIC6 = "2606:2800:220:1:248:1893:25c8:1946"


class Case(NamedTuple):
    """A call.

    Attributes:
        tool: its name.
        args: as a model gives them.
        policy: a text of its own, instead of its category's.
        form: of that text.
    """

    tool: str
    args: dict[str, Any]
    policy: str = ""
    form: Literal["toml", "yaml"] = "toml"


@dataclasses.dataclass(frozen=True)
class Category:
    """Calls of one kind, decided by one policy.

    Attributes:
        name: as the table shows it.
        hostile: none of these may run.
        benign: each of these must.
        policy: what decides.
        answers: what names resolve to; any other has no address.
        user_input: the user input; None if there is none.
    """

    name: str
    hostile: Sequence[Case]
    benign: Sequence[Case]
    policy: str = ""
    answers: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    user_input: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Place:
    """A folder to work in, beside what is not to be reached."""

    root: str
    outside: str


def plant(base: Path) -> Place:
    """Make the folder, with links in it of all kinds."""
    base = base.resolve()
    work, outside = base / "desk", base / "outside"
    (work / "docs" / "deep").mkdir(parents=True)
    outside.mkdir()
    (outside / "secret.txt").write_text("secret")
    (base / "desktop").mkdir()
    (work / "notes.txt").write_text("notes")
    (work / "docs" / "guide.md").write_text("guide")
    for name, target in (
        ("link_out", "../outside"), ("link_file", "../outside/secret.txt"), ("link_root", "/"),
        ("link_up", ".."), ("link_chain", "docs/link_two"), ("docs/link_two", "../link_out"),
        ("dangling", "../outside/new.txt"), ("loop", "loop"), ("loop_a", "loop_b"),
        ("loop_b", "loop_a"), ("link_proc", "/proc/self/root"), ("link_in", "docs"),
        ("docs/link_back", "../notes.txt"),
    ):  # fmt: skip
        (work / name).symlink_to(target)
    return Place(str(work), str(outside))


def quoted(text: str) -> str:
    """A text as TOML writes it."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def rule(tool: str, condition: str, **more: str) -> str:
    """A policy that allows a tool where a condition holds, and nothing else."""
    said = "".join(f"{name} = {quoted(value)}\n" for name, value in more.items())
    return (
        f'version = 1\n\n[[rules]]\nid = "only"\ntools = ["{tool}"]\n'
        f'when = {quoted(condition)}\n{said}decision = "allow"\n'
    )
