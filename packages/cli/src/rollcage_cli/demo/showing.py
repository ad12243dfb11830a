"""Checked output on a terminal: claims, commands that are run, a folder of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from rich.console import Console
from rich.text import Text

from rollcage_cli.demo.process import own_environment
from rollcage_cli.errors import ClaimFailed, DemoUnavailable
from rollcage_cli.output import visible

__all__ = ["Claim", "Show", "new_folder"]

T = TypeVar("T")


class Claim(NamedTuple):
    """A displayed statement, and whether it holds."""

    text: str
    true: bool


def new_folder(wanted: Path | None, default: Path, make: Callable[[Path], T]) -> T:
    """Make the folder and its contents; an existing folder is never touched.

    Args:
        wanted: the user's folder.
        default: the folder to use otherwise; an existing one gets a number.
        make: makes the folder; FileExistsError if it exists.

    Raises:
        DemoUnavailable: the folder exists, or can't be made.
    """
    folder = wanted or default
    number = 1
    while wanted is None and folder.exists():
        number += 1
        folder = Path(f"{default}-{number}")
    try:
        return make(folder)
    except FileExistsError:
        raise DemoUnavailable(f"{folder} exists already; choose another one with --dir") from None
    except OSError as error:
        raise DemoUnavailable(f"{folder} can't be made: {error.strerror}") from error


class Show:
    """Shows events in a folder, and checks them."""

    def __init__(self, folder: Path, out: Console) -> None:
        self.claims: list[Claim] = []
        self.out = out
        self._folder = folder

    def title(self, text: str) -> None:
        """Begin a part."""
        self.out.print()
        self.out.print(Text(text, style="bold"))

    def claim(self, text: str, true: object) -> None:
        """Print a claim, and whether it holds."""
        self.claims.append(Claim(text, bool(true)))
        mark = Text("    ✓ ", style="green") if true else Text("    ✗ ", style="bold red")
        self.out.print(mark.append(text, style="default"), soft_wrap=True)

    def check(self) -> None:
        """Stop if a claim did not hold.

        Raises:
            ClaimFailed: names the claim.
        """
        failed = [claim.text for claim in self.claims if not claim.true]
        if failed:
            raise ClaimFailed(
                f"the files left in {self._folder} do not show this: {'; '.join(failed)}"
            )

    def command(self, *arguments: str, quiet: bool = False) -> int:
        """Run `rollcage` in the folder, show its output unless `quiet`; return the exit code."""
        self.out.print(f"    $ rollcage {' '.join(arguments)}", soft_wrap=True)
        with (self._folder / f"{arguments[0]}.log").open("ab") as errors:
            ended = subprocess.run(  # noqa: S603 - our own program
                [sys.executable, "-m", "rollcage", *arguments],
                cwd=self._folder, stdout=subprocess.PIPE, stderr=errors,
                env=own_environment(COLUMNS=str(self.out.width - 4)), encoding="utf-8",
                check=False,
            )  # fmt: skip
        for line in [] if quiet else ended.stdout.splitlines():
            self.out.print(f"    {visible(line.rstrip())}", soft_wrap=True)
        return ended.returncode

    def farewell(self, title: str, commands: Sequence[str]) -> None:
        """Print the next commands to type."""
        self.title(title)
        for command in commands:
            self.out.print(f"    {command}", soft_wrap=True)
