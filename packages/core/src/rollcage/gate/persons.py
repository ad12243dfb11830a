"""Compare names of requesters, approvers and proposers: look-alikes count as one person."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

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
    first, second = (_drawn(_folded(each)) for each in seen)
    capital, other_capital = (_folded(_drawn(" ".join(each.split()))) for each in seen)
    return first == second != "" or capital == other_capital != ""


def _folded(name: str) -> str:
    """Return a name in the form for comparisons, without invisible characters."""
    seen = "".join(c for c in name if unicodedata.category(c)[0] != "C" and not _BLANK.match(c))
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", seen).casefold())
    return " ".join(folded.split())


# --- letters that look alike ----------------------------------------------------------------------


# The scripts in which a Latin name can be spelled without a visible difference (UTS #39).
_ALIKE: Final = (
    # Cyrillic
    ("\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0455\u0456\u0458\u0501\u051b\u04bb\u04cf",
     "aeopcyxsijdqhl"),
    ("\u0410\u0412\u0415\u041a\u041c\u041d\u041e\u0420\u0421\u0422\u0423\u0425\u0405\u0406\u0408",
     "ABEKMHOPCTYXSIJ"),
    ("\u04ae\u04c0\u050c\u051a", "YIGQ"),
    ("\u043a\u051d\u051c\u0475\u0474\u04af", "kwwvvy"),
    # Greek
    ("\u03b1\u03b3\u03b9\u03ba\u03bd\u03bf\u03c1\u03c3\u03c2\u03c5\u03c7\u03f2\u03f3",
     "ayikvopocuxcj"),
    ("\u0391\u0392\u0395\u0396\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7",
     "ABEZHIKMNOPTYX"),
    # Armenian
    ("\u0585\u0578\u057d\u0570\u0581\u0566\u057c\u054d\u0555", "onuhgqnUO"),
    # Cherokee
    ("\u13aa\u13f4\u13df\u13ac\u13bb\u13ab\u13e6\u13de\u13b7\u13e2\u13a1\u13da\u13a2\u13d9\u13b3",
     "ABCEHJKLMPRSTVW"),
    ("\u13c3", "Z"),
    # Lisu
    ("\ua4ee\ua4d0\ua4da\ua4d3\ua4f0\ua4dd\ua4d6\ua4e7\ua4f2\ua4d9\ua4d7\ua4e1\ua4df\ua4e0\ua4f3",
     "ABCDEFGHIJKLMNO"),
    ("\ua4d1\ua4e3\ua4e2\ua4d4\ua4f4\ua4e6\ua4ea\ua4eb\ua4ec\ua4dc", "PRSTUVWXYZ"),
    # Latin
    ("\u0251\u0261\u0131\u0237\u0269\u028f\u1d04\u1d0f\ua731\u1d1c\u1d20\u1d21\u1d22",
     "agijiycosuvwz"),
)  # fmt: skip
_LATIN: Final = {ord(a): b for others, latin in _ALIKE for a, b in zip(others, latin, strict=True)}
_SHAPES: Final = str.maketrans(
    {"0": "o", "1": "l", "i": "l", "|": "l", "m": "rn", "w": "vv", "5": "s"}
)


def _drawn(text: str) -> str:
    """Return the look of a text, in lower case: equal for two texts that look alike."""
    return text.translate(_LATIN).casefold().translate(_LATIN).translate(_SHAPES)
