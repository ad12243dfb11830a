"""Read the names and the maximal cost of a condition from its text, before any evaluation.

CEL always terminates, but not always soon: nested loops over a call's arguments multiply, `map` and
`filter` copy their result for each element, and a text that is added to itself grows. An
evaluation can't be interrupted, so its cost is bounded here, once, as a function of the size of the
arguments (`Expression.cost`), and checked against that size before each evaluation. Anything that
would exhaust the stack (very long nestings, chains and sums) is refused when the policy is loaded;
so is an unknown name, which would deny every call.

This is not a second parser: it reads tokens, and `cel` has the last word on the syntax.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from rollcage_policy.expression import Expression, variable
from rollcage_policy.tokens import END, ConditionInvalid, Token, literal, place, tokens
from rollcage_policy.vocabulary import (
    ARITHMETIC,
    CEL_FUNCTIONS,
    CEL_METHODS,
    CLOSED,
    CONTINUING,
    GATHERING,
    LOOPS,
    RELATIONS,
    ROOTS,
    TYPES,
    WORDS,
)

__all__ = ["MOST_CHARACTERS", "read_expression"]

MOST_CHARACTERS: Final = 4096
"""How long a condition may be."""

_MOST_NESTED: Final = 16  # brackets; each takes 8 KiB of the stack, and a thread may have 256
_MOST_CHAINED: Final = 64  # .a[0].b: each takes a third of a KiB
_MOST_SUMS: Final = 32  # + - * / %: the same, and each + may copy its left operand
_MOST_RELATIONS: Final = 8
_MOST_LOOPS: Final = 8
_MOST_LOOPS_IN_LOOPS: Final = 2

_OURS: Final = 100  # the cost of a Rollcage function, in CEL's own operations

# `const` is a reserved word of CEL, and CEL's `matches` compiles the pattern each time: both are
# renamed to names of the same length, so that a column in an error is the column in the source.
_INNER_NAMES: Final = {"const": "Const", "matches": "Matches"}

_COUNTED: Final = re.compile(r"\{([0-9]{1,6})(?:,([0-9]{0,6}))?\}")
_OPENING: Final = {"(": ")", "[": "]", "{": "}"}


@dataclasses.dataclass
class _Bracket:
    """An open bracket; the bracket of a loop knows the loop's variable and its domain."""

    closing: str
    loop: str = ""
    variable: str = ""
    domain: tuple[str, ...] | None = None
    of_texts: bool = False  # the loop's variable is a text
    in_body: bool = False
    looks_out: bool = False  # the body uses something besides its loop variable
    before: int = 0  # operations before the bracket
    sums: int = 0
    chain: int = 0
    relations: int = 0


def read_expression(source: str, constants: Mapping[str, Any], ours: Iterable[str]) -> Expression:
    """Read a condition, and refuse it if it can't be right.

    Args:
        source: the condition.
        constants: the values below `const`, by name.
        ours: the names of the functions besides CEL's own.

    Raises:
        ConditionInvalid: it is too long, too deep or too costly, or uses an unknown name, or a
            field of a value that has none.
    """
    if len(source) > MOST_CHARACTERS:
        raise ConditionInvalid(f"longer than {MOST_CHARACTERS} characters")
    return _Reading(source, constants, frozenset(ours)).expression()


class _Reading:
    """One pass over the tokens of a condition, from left to right."""

    def __init__(self, source: str, constants: Mapping[str, Any], ours: frozenset[str]) -> None:
        self.source = source
        self.roots: dict[str, Any] = {**ROOTS, "const": constants}
        self.ours = ours
        self.tokens = tokens(source)
        self.open: list[_Bracket] = [_Bracket("")]
        self.fields: dict[str, set[str] | None] = {}
        self.functions: set[str] = set()
        self.patterns: set[str] = set()
        self.degree = self.growth = 1
        self.loops = self.operations = self.scanning = self.sums = self.literals = 0

    def expression(self) -> Expression:
        for at, token in enumerate(self.tokens):
            if token.kind == "name":
                self._name(at, token)
            elif token.kind == "sign":
                self._sign(at, token)
        fields = {n: None if f is None else frozenset(f) for n, f in self.fields.items()}
        return Expression(
            self.source,
            self._inner(),
            self._named(),
            fields,
            frozenset(self.functions),
            frozenset(self.patterns),
            self.degree,
            max(1, self.operations),
            self.scanning,
            self.sums,
            self.growth,
            self.literals,
        )

    def _inner(self) -> str:
        text = self.source
        for at, token in enumerate(self.tokens):
            inner = _INNER_NAMES.get(token.text) if token.kind == "name" else None
            is_member = self._at(at - 1).text == "."
            is_method = is_member and self._at(at + 1).text == "("
            if inner and (is_method if token.text == "matches" else not is_member):
                text = text[: token.at] + inner + text[token.at + len(inner) :]
        return text

    def _named(self) -> str | None:
        text = self._inner()
        for at in reversed(range(len(self.tokens))):  # from the end, so that positions stay valid
            token = self.tokens[at]
            if token.kind == "name" and token.text.startswith(variable("")):
                return None  # a loop may give its own variable this name
            if token != Token("name", "args", token.at) or self._at(at - 1).text == ".":
                continue
            dot, field, after = (self._at(at + each) for each in (1, 2, 3))
            if dot.text != "." or field.kind != "name" or after.text == "(":
                return None
            first, end, replacement = token.at, field.at + len(field.text), variable(field.text)
            if (self._at(at - 2).text, self._at(at - 1).text, after.text) == ("has", "(", ")"):
                first, end, replacement = self._at(at - 2).at, after.at + 1, "true"
            text = text[:first] + replacement + text[end:]
        return text

    def _at(self, at: int) -> Token:
        return self.tokens[at] if 0 <= at < len(self.tokens) else END

    def _fail(self, token: Token, reason: str) -> ConditionInvalid:
        return ConditionInvalid(f"{place(self.source, token.at)}: {reason}")

    # --- brackets and operators ------------------------------------------------------------------

    def _sign(self, at: int, token: Token) -> None:
        sign, here = token.text, self.open[-1]
        if sign in _OPENING:
            self._enter(at, token)
        elif sign == here.closing:
            self._leave()
        elif sign == ",":
            here.chain = here.relations = 0
            here.in_body = bool(here.loop)
            self.literals += not here.loop
        elif sign == ".":
            self._chained(token)
            before = self._at(at - 1)
            if before.kind == "end" or (before.kind == "sign" and before.text not in CLOSED):
                raise self._fail(token, "a name can't begin with a dot")
        else:
            self._operator(token)

    def _operator(self, token: Token) -> None:
        here = self.open[-1]
        here.chain = 0
        self.operations += 1
        if token.text in ARITHMETIC:
            self._summed(token)
        elif token.text in RELATIONS:
            here.relations += 1
            if here.relations > _MOST_RELATIONS:
                raise self._fail(token, f"more than {_MOST_RELATIONS} comparisons in a row")
        else:
            here.relations = 0

    def _summed(self, token: Token) -> None:
        self.sums += 1
        if self.sums > _MOST_SUMS:
            raise self._fail(token, f"more than {_MOST_SUMS} of + - * / %")
        for each in self.open:
            each.sums += 1

    def _chained(self, token: Token) -> None:
        self.open[-1].chain += 1
        if self.open[-1].chain > _MOST_CHAINED:
            raise self._fail(token, f"more than {_MOST_CHAINED} members in a row")

    def _enter(self, at: int, token: Token) -> None:
        if len(self.open) > _MOST_NESTED:
            raise self._fail(token, f"nested deeper than {_MOST_NESTED} brackets")
        before = self._at(at - 1)
        if token.text == "{" and before.kind == "name" and before.text != "in":
            raise self._fail(token, "there are no messages here, only maps")
        self._chained(token)
        bracket = _Bracket(_OPENING[token.text], before=self.operations)
        name, dot = before.text, self._at(at - 2).text
        if token.text == "(" and before.kind == "name" and dot == "." and name in LOOPS:
            self._enter_loop(at, bracket, name)
        elif token.text != "(":
            self.literals += 1
        self.open.append(bracket)

    def _enter_loop(self, at: int, bracket: _Bracket, name: str) -> None:
        variable, comma = self._at(at + 1), self._at(at + 2)
        if variable.kind != "name" or comma.text != ",":
            return  # not valid CEL: its parser reports that
        if variable.text in self.roots or variable.text in TYPES | WORDS:
            raise self._fail(variable, f"a loop can't call its variable {variable.text!r}")
        around = [each for each in self.open if each.loop]
        if any(each.variable == variable.text for each in around):
            raise self._fail(variable, f"{variable.text!r} is the variable of a loop around this")
        self.loops += 1
        if self.loops > _MOST_LOOPS:
            raise self._fail(variable, f"more than {_MOST_LOOPS} loops")
        if len(around) >= _MOST_LOOPS_IN_LOOPS:
            raise self._fail(variable, f"loops nested deeper than {_MOST_LOOPS_IN_LOOPS}")
        bracket.loop, bracket.variable = name, variable.text
        bracket.domain = self._listed(at - 3)
        of_labels = self._at(at - 3).text == "labels" and self._at(at - 4).text != "."
        bracket.of_texts = bracket.domain is not None or of_labels

    def _listed(self, at: int) -> tuple[str, ...] | None:
        """Return the texts of the list that ends here, if it holds nothing else."""
        found: list[str] = []
        if self._at(at).text != "]":
            return None
        while (at := at - 1) >= 0 and self._at(at).text != "[":
            text = literal(self._at(at))
            if text is not None:
                found.append(text)
            elif self._at(at).text != ",":
                return None
        is_index = self._at(at - 1).kind == "name" or self._at(at - 1).text in CLOSED
        return None if is_index else tuple(found)

    def _leave(self) -> None:
        left = self.open.pop()
        if not left.loop:
            return
        if left.domain is not None:  # as often as it has texts, for any arguments
            self.operations += (self.operations - left.before) * len(left.domain)
        else:
            around = [each for each in self.open if each.loop and each.domain is None]
            looks_out = left.looks_out or any(each.looks_out for each in around)
            degree = len(around) + 1 + (left.loop in GATHERING) + looks_out
            self.degree = max(self.degree, degree)
        if left.loop == "map":
            self.growth *= 1 + left.sums

    # --- names -----------------------------------------------------------------------------------

    def _name(self, at: int, token: Token) -> None:
        before, after = self._at(at - 1), self._at(at + 1)
        if after.text == "(":
            self._call(at, token, is_method=before.text == ".")
        elif before.text == "." or token.text in WORDS:
            return
        elif token.text == "in":
            self._operator(token)
        elif token.text in self.roots:
            self._root(at, token)
        elif not self._is_bound(at, token) and token.text not in TYPES:
            known = [*self.roots, *(each.variable for each in self.open if each.loop)]
            raise self._fail(token, f"unknown name {token.text!r}{_nearest(token.text, known)}")

    def _is_bound(self, at: int, token: Token) -> bool:
        """Return whether a token is a loop's variable, at its binding or in the loop's body."""
        binding = self._at(at - 1).text == "(" and self._at(at + 1).text == ","
        for each in self.open:
            if each.loop and each.variable == token.text and (each.in_body or binding):
                if each.of_texts:
                    self._check_fields(at, token, "")
                inner = [other for other in self.open if other.loop]
                for other in inner[inner.index(each) + 1 :]:
                    other.looks_out = other.looks_out or other.in_body
                return True
        return False

    def _call(self, at: int, token: Token, *, is_method: bool) -> None:
        name = token.text
        if name in LOOPS and is_method:
            self.operations += 1
            return
        known = (CEL_METHODS if is_method else CEL_FUNCTIONS) | self.ours
        if name not in known:
            known = known | LOOPS if is_method else known
            raise self._fail(token, f"unknown function {name!r}{_nearest(name, known)}")
        if name == "matches":
            pattern = literal(self._at(at + 2))
            if pattern is None or self._at(at + 3).text != ")":
                raise self._fail(token, _NO_PATTERN)
            self.patterns.add(pattern)
            self.scanning += _states(pattern)
        own = name in self.ours
        if own:
            self.functions.add(name)
        self.operations += _OURS if own or name == "matches" else 1

    def _root(self, at: int, token: Token) -> None:
        """Note the used field of a root name."""
        if token.text == "args":
            for each in self.open:
                each.looks_out = each.looks_out or (bool(each.loop) and each.in_body)
        names = self._fields_at(at)
        known = self.roots[token.text]
        self._check_fields(at, token, known)
        if names is None or token.text == "labels":
            self.fields[token.text] = None
            return
        for name in names:
            if known is not None and name not in known:
                raise self._fail(token, f"{token.text} has no {name!r}{_nearest(name, known)}")
        if (found := self.fields.setdefault(token.text, set())) is not None:
            found.update(names)

    def _check_fields(self, at: int, token: Token, value: Any) -> None:
        """Refuse a field of a value that has none: of a list, a text, a number, a bool.

        Args:
            at: the name's position among the tokens.
            token: the name.
            value: an example of its value.
        """
        name = token.text
        while (field := self._field_at(at)) is not None:
            text, length = field
            if isinstance(value, Mapping):
                if text not in value:
                    return  # a root's own fields are checked as they are noted
                value = value[text]
            elif text is not None and value is not None:
                kind = _KINDS.get(type(value), "no map")
                raise self._fail(token, f"{name} is {kind}: it has no field {text!r}")
            elif isinstance(value, list) and len({*map(type, value)}) == 1:
                value = value[0]
            else:
                return
            name, at = f"{name}.{text}" if text is not None else f"{name}[…]", at + length

    def _field_at(self, at: int) -> tuple[str | None, int] | None:
        """Return the field that is asked for after a token, and the number of tokens for that.

        The field is None for a number as an index. None: there is no field, or it varies.
        """
        sign, field, after = self._at(at + 1), self._at(at + 2), self._at(at + 3)
        if sign.text == "." and field.kind == "name" and after.text != "(":
            return field.text, 2
        if sign.text != "[" or after.text != "]":
            return None
        text = literal(field)
        return (text, 3) if text is not None or field.kind == "number" else None

    def _fields_at(self, at: int) -> tuple[str, ...] | None:
        """Return the fields used here; None if unknown: any field may be used."""
        after, field, closing = self._at(at + 1), self._at(at + 2), self._at(at + 3)
        if after.text == "." and field.kind == "name" and closing.text != "(":
            return (field.text,)
        if after.text == "[" and closing.text == "]":
            return self._texts_of(field)
        if self._at(at - 1).text == "in" and after.text not in ("[", "."):
            element = self._at(at - 2)
            if self._at(at - 3).text not in CONTINUING:
                return self._texts_of(element)
        return None

    def _texts_of(self, token: Token) -> tuple[str, ...] | None:
        """Return the value of a string literal, or the values of a loop variable over literals."""
        if (text := literal(token)) is not None:
            return (text,)
        if token.kind != "name":
            return None
        loops = (e.domain for e in reversed(self.open) if e.loop and e.variable == token.text)
        return next(loops, None)


_KINDS: Final = {list: "a list", str: "a text", bool: "a bool", int: "a number", float: "a number"}
_NO_PATTERN: Final = 'the pattern of matches has to be written here, as r"…"'


def _states(pattern: str) -> int:
    """Return how many states a pattern's automaton may have: a repeated part counts as often."""
    states = len(pattern)
    for least, most in _COUNTED.findall(pattern):
        states *= max(1, int(least), int(most or 0))
    return states


def _nearest(name: str, known: Iterable[str]) -> str:
    found = difflib.get_close_matches(name, sorted(known), 1)
    return f"; did you mean {found[0]!r}?" if found else ""
