"""Names of people: who asks, who approves, who proposes. Two that look alike are the same one."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from rollcage.gate.lookalikes import drawn

__all__ = ["looks_like", "person", "same_person"]

_LONGEST: Final = 256  # characters
# What is drawn as nothing, though Unicode counts it as a letter, a mark or a symbol.
_BLANK: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


def person(name: object) -> str:
    """The name of a person as it is recorded and compared: NFKC, blanks as one space each.

    Raises:
        ValueError: it is no name. It says nothing, is too long, or holds a character that can't be
            seen: a control or format character (zero width, direction), one that UTF-8 can't hold
            or that Unicode does not know, or one that is drawn as nothing.
    """
    if not isinstance(name, str):
        raise ValueError(f"a {type(name).__name__} is no name")
    for char in name:
        category = unicodedata.category(char)
        if category[0] == "C" or category in ("Zl", "Zp") or _BLANK.match(char):
            raise ValueError(
                f"the name {name[:_LONGEST]!a} holds a character that can't be seen "
                f"(U+{ord(char):04X})"
            )
    plain = " ".join(unicodedata.normalize("NFKC", name).split())
    if not any(each.isalnum() for each in plain):
        raise ValueError("the name is empty" if not plain else f"{plain[:_LONGEST]!r} is no name")
    if len(plain) > _LONGEST:
        raise ValueError(f"the name has {len(plain)} characters; {_LONGEST} are the most")
    return plain


def same_person(one: str, other: str) -> bool:
    """Whether two names are one, however they are written."""
    return _folded(one) == _folded(other) != ""


def looks_like(one: str, other: str) -> bool:
    """Whether two names may be one person's: they are one, or can be taken for one another.

    It is for what must not be the same person, as who asks and who approves. Whether somebody is
    on a list is for `same_person`: who only looks like them is not.
    """
    if same_person(one, other):
        return True
    seen = [unicodedata.normalize("NFKC", each) for each in (one, other)]
    first, second = (drawn(_folded(each)) for each in seen)
    capital, other_capital = (_folded(drawn(" ".join(each.split()))) for each in seen)
    return first == second != "" or capital == other_capital != ""


def _folded(name: str) -> str:
    """A name as it is compared, also where it is none: what can't be seen tells nobody apart."""
    seen = "".join(c for c in name if unicodedata.category(c)[0] != "C" and not _BLANK.match(c))
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", seen).casefold())
    return " ".join(folded.split())
