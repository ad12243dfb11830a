"""Pages in Chinese have the code of the English ones: `python -m website.translated`.

What runs is tested on the English page; a test sees that the blocks of both are the same. This
command copies blocks that have changed; a block that is new needs its place in the translation.
"""

import re
import sys
from pathlib import Path
from typing import Final

from website.pages import ROOT

PAIRS: Final = {
    ROOT / "README.md": ROOT / "README.zh-CN.md",
    ROOT / "docs" / "quickstart.md": ROOT / "docs" / "quickstart.zh-CN.md",
}
_BLOCK: Final = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def code_of(page: Path) -> list[str]:
    """The code blocks of a page, in order."""
    return _BLOCK.findall(page.read_text(encoding="utf-8"))


def headings_of(page: Path) -> list[int]:
    """The levels of a page's headings, in order."""
    text = _BLOCK.sub("", page.read_text(encoding="utf-8"))
    return [len(marks) for marks in re.findall(r"^(#+) ", text, re.MULTILINE)]


def copy_code(source: Path, target: Path) -> None:
    """Put the blocks of the source into the places of the target.

    Raises:
        ValueError: one of them has more blocks than the other.
    """
    blocks = iter(code_of(source))
    if len(code_of(source)) != len(code_of(target)):
        raise ValueError(f"{target.name} has another number of blocks than {source.name}")
    text = _BLOCK.sub(lambda _: next(blocks), target.read_text(encoding="utf-8"))
    target.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for each in PAIRS.items():
        try:
            copy_code(*each)
        except ValueError as error:
            sys.exit(str(error))
