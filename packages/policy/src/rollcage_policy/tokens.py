"""The tokens of a condition, and the values of its string literals."""

from __future__ import annotations

import ast
import functools
import re
from typing import Final, NamedTuple

__all__ = ["END", "ConditionInvalid", "Token", "literal", "place", "tokens"]

_STRING: Final = (
    r"(?:[bB]?[rR]|[rR][bB])(?:\"\"\"[\s\S]*?\"\"\"|'''[\s\S]*?'''|\"[^\"\n]*\"|'[^'\n]*')"
    r"|[bB]?(?:\"\"\"(?:\\[\s\S]|[^\\])*?\"\"\"|'''(?:\\[\s\S]|[^\\])*?'''"
    r"|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*')"
)
_NEXT: Final = re.compile(
    rf"(?P<blank>[ \t\r\n\f]+|//[^\n]*)|(?P<string>{_STRING})"
    r"|(?P<number>0[xX][0-9a-fA-F]+[uU]?|[0-9]*\.[0-9]+(?:[eE][+-]?[0-9]+)?"
    r"|[0-9]+(?:[eE][+-]?[0-9]+)?[uU]?)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<sign>&&|\|\||[=!<>]=|[-+*/%<>!?:.,()\[\]{}])"
)


class ConditionInvalid(ValueError):
    """A condition that can't be used; the message says why, and at which position."""


class Token(NamedTuple):
    """One token: its kind (`string`, `number`, `name`, `sign`), its text, and its position."""

    kind: str
    text: str
    at: int


END: Final = Token("end", "", -1)
"""The token before the first one, and after the last."""


def tokens(source: str) -> list[Token]:
    """Return all of a condition's tokens, without blanks and comments.

    Raises:
        ConditionInvalid: a character that begins no token.
    """
    found: list[Token] = []
    at = 0
    while at < len(source):
        match = _NEXT.match(source, at)
        if match is None:
            shown = ascii(source[at])
            raise ConditionInvalid(f"{place(source, at)}: {shown} is not allowed here")
        if match.lastgroup != "blank":
            found.append(Token(str(match.lastgroup), match[0], at))
        at = match.end()
    return found


def literal(token: Token) -> str | None:
    """Return the value of a string literal; None for other tokens and ambiguous values."""
    return _unquoted(token.text) if token.kind == "string" else None


@functools.lru_cache(maxsize=256)
def _unquoted(text: str) -> str | None:
    """Return the value of a string literal; None if CEL and Python may read it differently."""
    raw = text[0] in "rR"
    body = text[1:] if raw else text
    if body[0] not in "\"'" or (not raw and re.search(r"\\[^\\\"'nrtabfv]", body)):
        return None
    try:
        value: object = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return None
    return value if isinstance(value, str) else None


def place(source: str, at: int) -> str:
    """Return a position in a condition, counted from 1."""
    before = source[:at]
    line, column = before.count("\n") + 1, at - (before.rfind("\n") + 1) + 1
    return f"column {column}" if "\n" not in source else f"its line {line}, column {column}"
