"""File tools that can be undone, for tests here and for processes that those start.

Paths are their own root: a test gives absolute ones. `effects` beside a file gets a line for each
change, so that they can be counted.
"""

import secrets
from pathlib import Path
from typing import Any

from rollcage import Compensation, compensate, current_step, tool


def state(path: str) -> dict[str, Any]:
    """What a file is: its text, or that it is not there."""
    file = Path(path)
    return {"exists": file.exists(), "text": file.read_text() if file.exists() else None}


def observe(args: dict[str, Any]) -> dict[str, Any]:
    return {f"file:{args['path']}": state(args["path"])}


def note(what: str, path: str) -> None:
    step = current_step()
    key = step.idempotency_key if step is not None else "-"
    with Path(path).with_name("effects").open("a") as effects:
        effects.write(f"{key} {what} {Path(path).name}\n")


def write_text(path: str, text: str) -> None:
    part = Path(f"{path}.{secrets.token_hex(4)}")
    part.write_text(text)
    part.replace(path)


@tool(effect="write", idempotent=True, observe=observe)
def restore_file(path: str, text: str | None) -> None:
    """Give a file back the text that it had, or take it away."""
    if text is None:
        Path(path).unlink(missing_ok=True)
    else:
        write_text(path, text)
    note("restored", path)


def restore(args: dict[str, Any], before: dict[str, Any]) -> list[Compensation]:
    was = before[f"file:{args['path']}"]
    return [compensate(restore_file, path=args["path"], text=was["text"])]


def happened_if_changed(args: dict[str, Any], before: dict[str, Any]) -> Any:
    """Say whether a put got through: it is whole or not at all."""
    from rollcage import DidNotHappen, Happened

    now = state(args["path"])
    if now["text"] == args["text"]:
        return Happened(len(args["text"]))
    return DidNotHappen() if now == before[f"file:{args['path']}"] else None


@tool(effect="write", undo=restore, observe=observe, probe=happened_if_changed)
def put_file(path: str, text: str) -> int:
    """Write a file."""
    write_text(path, text)
    note("put", path)
    return len(text)


@tool(effect="write", undo=restore, observe=observe)
def append_file(path: str, text: str) -> str:
    """Add to a file's text."""
    file = Path(path)
    whole = (file.read_text() if file.exists() else "") + text
    write_text(path, whole)
    note("appended", path)
    return whole


@tool(effect="write", undo=restore, observe=observe)
async def aput_file(path: str, text: str) -> int:
    """`put_file`, async."""
    write_text(path, text)
    note("put", path)
    return len(text)


@tool(effect="write", undo=restore, observe=observe)
def half_file(path: str, text: str) -> None:
    """Write a file and fail."""
    write_text(path, text)
    raise OSError("the disk is full")


@tool(effect="write")
def mail(to: str) -> str:
    """Send what can't be called back."""
    return f"sent to {to}"


@tool(effect="read")
def read_file(path: str) -> str | None:
    """Read a file."""
    text: str | None = state(path)["text"]
    return text


@tool(effect="scope")
def both(one: str, two: str) -> str:
    """Act through guarded calls only."""
    put_file(path=one, text="one")
    return append_file(path=two, text="two")


@tool(effect="write")
def plain_outer(path: str) -> int:
    """Call a tool that can be undone, and be none."""
    return put_file(path=path, text="inner")


# --- what is undone by the result ------------------------------------------------------------


@tool(effect="write", idempotent=True)
def remove_row(path: str, row: int) -> None:
    """Take a line out of a file of lines."""
    lines = Path(path).read_text().splitlines()
    Path(path).write_text("".join(f"{line}\n" for line in lines if line.split()[0] != str(row)))


def row_gone(args: dict[str, Any], result: int) -> list[Compensation]:
    return [compensate(remove_row, path=args["path"], row=result)]


@tool(effect="write", undo=row_gone, observe=observe)
def add_row(path: str, text: str) -> int:
    """Add a line; its number is what the caller learns."""
    file = Path(path)
    lines = file.read_text().splitlines() if file.exists() else []
    row = len(lines) + 1
    file.write_text("".join(f"{line}\n" for line in [*lines, f"{row} {text}"]))
    return row


# --- what tests ask of them ------------------------------------------------------------------


def content(disk: Path) -> dict[str, str]:
    """The texts of the files in a folder."""
    return {p.name: p.read_text() for p in disk.iterdir() if p.name != "effects"}


def effects(disk: Path) -> list[str]:
    """What was done to its files, in order."""
    path = disk / "effects"
    lines = path.read_text().splitlines() if path.exists() else []
    return [line.split(" ", 1)[1] for line in lines]


def put(disk: Path, *names: str) -> None:
    """Write files with their own names in them."""
    for name in names:
        put_file(path=str(disk / name), text=name)


def events(store: Any, run: str) -> list[dict[str, Any]]:
    """The lines of a run."""
    from rollcage import open_store
    from rollcage.trace.chain import parse

    return parse(open_store(store).read(run), run)
