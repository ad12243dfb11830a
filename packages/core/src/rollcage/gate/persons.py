"""Compare names of requesters, approvers and proposers: look-alikes count as one person."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from rollcage.gate.lookalikes import drawn

__all__ = ["looks_like", "person", "same_person"]

_LONGEST: Final = 256  # characters
# Invisible characters that Unicode classifies as letters, marks or symbols.
_BLANK: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


def person(name: object) -> str:
    """Return the recorded form of a person's name: NFKC, runs of blanks as one space.

    Raises:
        ValueError: the name is not usable. It is empty, too long, or holds an invisible character:
            a control or format character (zero width, direction), a character that UTF-8 can't
            encode, that is unassigned in Unicode, or that is drawn as nothing.
    """
    if not isinstance(name, str):
        raise ValueError(f"a {type(name).__name__} is not a name")
    for char in name:
        category = unicodedata.category(char)
        if category[0] == "C" or category in ("Zl", "Zp") or _BLANK.match(char):
            raise ValueError(
                f"the name {name[:_LONGEST]!a} holds a character that can't be seen "
                f"(U+{ord(char):04X})"
            )
    plain = " ".join(unicodedata.normalize("NFKC", name).split())
    if not any(each.isalnum() for each in plain):
        raise ValueError(
            "the name is empty" if not plain else f"{plain[:_LONGEST]!r} is not a name"
        )
    if len(plain) > _LONGEST:
        raise ValueError(f"the name has {len(plain)} characters; {_LONGEST} are the most")
    return plain


def same_person(one: str, other: str) -> bool:
    """Tell whether two spellings are the same name."""
    return _folded(one) == _folded(other) != ""


def looks_like(one: str, other: str) -> bool:
    """Tell whether two names may belong to one person: they are the same, or look alike.

    Use it if two people must differ, as requester and approver. To check whether a person is on a
    list, use `same_person`: a name that only looks like an entry is not on the list.
    """
    if same_person(one, other):
        return True
    seen = [unicodedata.normalize("NFKC", each) for each in (one, other)]
    first, second = (drawn(_folded(each)) for each in seen)
    capital, other_capital = (_folded(drawn(" ".join(each.split()))) for each in seen)
    return first == second != "" or capital == other_capital != ""


def _folded(name: str) -> str:
    """Return a name in the form for comparisons, without invisible characters."""
    seen = "".join(c for c in name if unicodedata.category(c)[0] != "C" and not _BLANK.match(c))
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", seen).casefold())
    return " ".join(folded.split())
