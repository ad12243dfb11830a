"""The form of a plan: its fields and their types.

What lacks it is mended in a copy, so that all the rest of the plan is checked in the same run.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

import pydantic

from rollcage_workflow.files import Path
from rollcage_workflow.plan import (
    KINDS,
    RESERVED,
    Each,
    Jump,
    Plan,
    PlanStep,
    Repeat,
    Retry,
    Team,
    Wait,
)
from rollcage_workflow.schemas import nearest

__all__ = ["Mending"]

_MOST_ROUNDS: Final = 200
_PARTS: Final[Mapping[str, type[pydantic.BaseModel]]] = {
    "team": Team, "each": Each, "repeat": Repeat, "wait": Wait, "retry": Retry, "next": Jump,
}  # fmt: skip
_MAPS: Final[Mapping[str, type[pydantic.BaseModel] | None]] = {
    "steps": PlanStep, "members": PlanStep, "args": None, "inputs": None, "accepts": None,
}  # fmt: skip
_MODELS: Final[tuple[type[pydantic.BaseModel], ...]] = (Plan, PlanStep, *_PARTS.values())
_FIELDS: Final = frozenset(name for model in _MODELS for name in model.model_fields)
_LISTS: Final = frozenset({"after", "approvers", "on"})
_WAITS: Final = ("until", "approval", "signal", "seconds")
_BLOCKS: Final = ("each", "repeat", "team")
_SAID: Final = {
    "tuple_type": "has to be a list",
    "dict_type": "has to be a table",
    "model_type": "has to be a table",
}
_NEUTRAL: Final[Mapping[tuple[type[pydantic.BaseModel], str], Any]] = {
    (Plan, "name"): "plan",
    (Plan, "inputs"): {},
    (Plan, "time_limit"): 1,
    (PlanStep, "when"): "=true",
    (PlanStep, "timeout"): 1,
    (PlanStep, "retry"): {"attempts": 2},
    (Each, "over"): "=[]",
    (Each, "size"): 1,
    (Repeat, "until"): "=true",
    (Repeat, "most"): 1,
    (Team, "time_limit"): 1,
    (Wait, "signal"): "signal",
    (Wait, "seconds"): 1,
    (Wait, "until"): "=''",
    (Wait, "approval"): "approval",
    (Retry, "attempts"): 2,
    (Jump, "when"): "=true",
}
"""The values that stand for invalid and missing ones: nothing is found about them."""


@dataclasses.dataclass
class Mending:
    """The form of a plan, and what was mended.

    Attributes:
        plan: the plan, mended where necessary; None if too little of it is there.
        findings: its problems: place, code and reason.
        opaque: the steps whose result may be anything.
        unnamed: words that were names of steps, or would be, if the plan had its form.
    """

    plan: Plan | None = None
    findings: dict[tuple[Path, str, str], None] = dataclasses.field(default_factory=dict)
    opaque: set[Path] = dataclasses.field(default_factory=set)
    unnamed: set[str] = dataclasses.field(default_factory=set)
    _data: Any = None
    _moved: dict[Path, Path] = dataclasses.field(default_factory=dict)  # to where it was
    _guessed: set[Path] = dataclasses.field(default_factory=set)  # fields by their nearest name
    _mended: set[Path] = dataclasses.field(default_factory=set)  # values that were replaced
    _stripped: set[Path] = dataclasses.field(default_factory=set)  # tables that lost a field

    @classmethod
    def of(cls, data: Any) -> Mending:
        """Return the form of a plan's data."""
        form = cls()
        try:
            form.plan = Plan.model_validate(data)
        except pydantic.ValidationError as error:
            form._data = _copy(data)
            form._mend_all(error)
        return form

    def at(self, path: Path) -> Path:
        """Return the place in the plan as it was given."""
        for length in range(len(path), 0, -1):
            if path[:length] in self._moved:
                return self.at(self._moved[path[:length]]) + path[length:]
        return path

    def is_mended(self, path: Path) -> bool:
        """Return whether a value was replaced."""
        return path in self._mended

    def explains(self, path: Path, code: str) -> bool:
        """Return whether a problem is only a consequence of what was mended."""
        if path in self._mended:
            return code not in ("bad_retry", "bad_timeout")
        if code == "missing_argument":
            return path in self._stripped or path[:-1] in self._stripped
        return False

    # --- mending ---------------------------------------------------------------------------------

    def _mend_all(self, error: pydantic.ValidationError) -> None:
        for _ in range(_MOST_ROUNDS):
            problems = error.errors(include_url=False, include_input=False)
            problems.sort(key=lambda each: each["type"] != "extra_forbidden")  # stable
            can_go_on = True
            for each in problems:
                if each["type"] == "missing" and self._value(each["loc"]) is not None:
                    continue  # it was there, by a similar name
                self._tell(each["loc"], each["type"], each["msg"])
                can_go_on = self._mend(each) and can_go_on
            if not can_go_on:
                return
            try:
                self.plan = Plan.model_validate(self._data)
                return
            except pydantic.ValidationError as further:
                error = further

    def _tell(self, loc: Path, kind: str, message: str) -> None:
        path, _ = self._named(loc)
        if self._lacks_all(path) if kind == "value_error" else path in self._guessed:
            return
        code, reason = "invalid", _SAID.get(kind, message.removeprefix("Value error, "))
        if kind == "extra_forbidden":
            code, reason = "unknown_field", f"there is no such field{_near(path)}"
        elif kind == "missing":
            code, reason = "missing_field", "is missing"
        self.findings[self.at(path), code, reason] = None

    def _lacks_all(self, path: Path) -> bool:
        """Return whether a step, or a wait, has no kind because the field for it was dropped."""
        table = self._value(path)
        if path not in self._stripped or not isinstance(table, dict):
            return False
        kinds = _WAITS if path[-1] == "wait" else KINDS
        return not any(kind in table for kind in kinds)

    def _named(self, loc: Path) -> tuple[Path, bool]:
        """Return the path of an error's place, and whether the error is about a name."""
        if loc and loc[-1] == "[key]" and (_is_entry(loc[:-1]) or not _is_entry(loc)):
            return loc[:-1], True
        return loc, False

    def _value(self, path: Path) -> Any:
        found: Any = self._data
        for part in path:
            try:
                found = found[part]
            except (KeyError, IndexError, TypeError):
                return None
        return found

    def _mend(self, problem: Any) -> bool:
        """Mend the copy; return whether that is possible."""
        path, is_name = self._named(problem["loc"])
        if not path or path == ("steps",):
            return False
        table = self._value(path[:-1])
        if is_name:
            return self._mend_name(path, table)
        if path[0] == "inputs" and len(path) > 1:
            path, table = path[:2], self._value(path[:1])
            self._replace(path, table, {})
            return True
        if _model(path) is PlanStep and _is_entry(path):
            self._mend_step(path)
        elif problem["type"] == "extra_forbidden":
            self._mend_unknown(path, table)
        elif path in self._guessed and problem["type"] != "value_error":
            self._drop(path, table)
            self._stripped.add(path[:-1])
        elif problem["type"] == "literal_error":
            self._mend_word(path, table, problem["ctx"]["expected"])
        else:
            self._mend_field(path, table, problem)
        return True

    def _mend_field(self, path: Path, table: Any, problem: Any) -> None:
        """Mend a field that is missing, or has an invalid value."""
        model, field = _model(path[:-1]), path[-1]
        if isinstance(field, int):
            self._replace(path, table, "")
        elif field == "wait" and problem["type"] == "value_error":
            self._mend_wait(path)
        elif model is PlanStep and field in KINDS:
            self._hide(path[:-1])
        elif field in ("steps", "members"):
            self._hide(path[:-2])
        elif field == "next" or (model is Jump and field == "to"):
            jumps = path if field == "next" else path[:-1]
            self._drop(jumps, self._value(jumps[:-1]))
            self.unnamed.add("last")
        elif field in _LISTS and isinstance(table, dict) and isinstance(table.get(field), str):
            self._replace(path, table, [table[field]])
            self._mended.discard(path)
        elif model is not None and (model, field) in _NEUTRAL:
            self._replace(path, table, _copy(_NEUTRAL[model, field]))
        else:
            self._drop(path, table)

    def _replace(self, path: Path, table: Any, value: Any) -> None:
        if table is not None:  # it was mended with what is around it
            table[path[-1]] = value
        self._mended.add(path)

    def _drop(self, path: Path, table: Any) -> None:
        if isinstance(table, dict):
            table.pop(path[-1], None)
        self._mended.add(path)

    def _mend_name(self, path: Path, table: Any) -> bool:
        """Rename a step; drop any other value whose name is none."""
        if not isinstance(table, dict):
            return True
        key = next((key for key in table if key == path[-1] or str(key) == str(path[-1])), None)
        if key is None:
            return True  # it was mended with the table around it
        if _model(path) is not PlanStep:
            del table[key]
            self._stripped.add(path[:-1])
            return True
        words = re.sub(r"\W", "_", str(key), flags=re.ASCII)[:50]
        name = f"_{words}"
        while name in table or name in RESERVED:
            name += "_"
        renamed = {name if each is key else each: step for each, step in table.items()}
        for step in renamed.values():
            _rename_in(step, key, name)
        table.clear()
        table.update(renamed)
        self._moved[*path[:-1], name] = (*path[:-1], str(key))
        self.unnamed.update(re.findall(r"[A-Za-z_]\w*", str(key)))
        if path[-2] == "members":
            self.opaque.add(path[:-3])
        return True

    def _mend_unknown(self, path: Path, table: Any) -> None:
        """Take a field as the one that is meant, if that is clear; drop it otherwise."""
        if not isinstance(table, dict) or path[-1] not in table:
            return
        near = _meant(path)
        has_kind = any(kind in table for kind in KINDS)
        if near and near not in table and not (near in KINDS and has_kind):
            taken = {near if name == path[-1] else name: each for name, each in table.items()}
            table.clear()
            table.update(taken)
            self._moved[*path[:-1], near] = path
            self._guessed.add((*path[:-1], near))
        else:
            del table[path[-1]]
            self._stripped.add(path[:-1])

    def _mend_word(self, path: Path, table: Any, expected: str) -> None:
        """Take the word that is meant, if that is clear."""
        given = table.get(path[-1]) if isinstance(table, dict) else None
        words = re.findall(r"'([^']*)'", expected)
        near = difflib.get_close_matches(given, words, 1, 0.7) if isinstance(given, str) else []
        if near:
            self._replace(path, table, near[0])
            return
        self._drop(path, table)
        step = path[:-1]
        if path[-1] == "mode":
            self._drop((*step, "quorum"), table)
            step = step[:-1]
        self.opaque.add(step)

    def _mend_step(self, path: Path) -> None:
        """Mend a step that is none, or has not one kind, or arguments of another kind."""
        table = self._value(path)
        kinds = [kind for kind in KINDS if isinstance(table, dict) and kind in table]
        if len(kinds) == 1 and (table[kinds[0]] is not None or kinds[0] == "value"):
            for field, fits in (("args", ("call", "agent")), ("inputs", ("workflow",))):
                if table.get(field) and kinds[0] not in fits:
                    del table[field]
                    return
        kept = [kind for kind in kinds if kind in _BLOCKS and table[kind] is not None]
        if len(kinds) > 1 and kept:
            for name in {*KINDS, "args", "inputs", "retry"} - {kept[0]}:
                table.pop(name, None)
            self.opaque.add(path)
        else:
            self._hide(path)

    def _mend_wait(self, path: Path) -> None:
        """Let a wait that is for several things be for the first that has an expression."""
        table = self._value(path)
        given = [kind for kind in _WAITS if isinstance(table, dict) and table.get(kind) is not None]
        if not given:
            self._hide(path[:-1])
            return
        for name in [name for name in table if name != given[0]]:
            del table[name]
        self.opaque.add(path[:-1])

    def _hide(self, path: Path) -> None:
        """Let a step have any result. Its expressions are kept, in a value."""
        table, given = self._value(path[:-1]), self._value(path)
        if not isinstance(table, dict):
            return
        old = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
        if path in self.opaque and "value" in old and not any(k in old for k in KINDS[:-1]):
            return  # it is done
        new = {name: old[name] for name in ("when", "after", "timeout", "next") if name in old}
        value: dict[str, Any] = {
            name: old[name] for name in ("args", "inputs", "value") if name in old
        }
        for block, field in (("each", "over"), ("wait", "until"), ("wait", "approval")):
            inner = old.get(block)
            if isinstance(inner, dict) and isinstance(inner.get(field), str):
                value.setdefault(block, {})[field] = inner[field]
        for name in value:
            self._moved[*path, "value", name] = (*path, name)
        table[path[-1]] = {**new, "value": value}
        self.opaque.add(path)


def _near(path: Path) -> str:
    """Return a suggestion for an unknown field: of its own table, or else of another one."""
    model, name = _model(path[:-1]), str(path[-1])
    own = frozenset(model.model_fields) if model is not None else frozenset[str]()
    elsewhere = len(path) > 1 and not _meant(path) and difflib.get_close_matches(name, _FIELDS, 1)
    return nearest(name, _FIELDS if elsewhere else own)


def _meant(path: Path) -> str:
    """Return the field of a table that an unknown one stands for; none if that is unclear."""
    model = _model(path[:-1])
    near = difflib.get_close_matches(str(path[-1]), model.model_fields if model else (), 1)
    return near[0] if near else ""


def _walk(path: Path) -> Iterator[tuple[type[pydantic.BaseModel] | None, bool]]:
    """Yield for each part of a path: the model of what is there; whether it is a map's entry."""
    model: type[pydantic.BaseModel] | None = Plan
    inside: str | None = None
    for part in path:
        if inside is not None:
            model, inside = _MAPS[inside], None
            yield model, True
        elif model is not None and part in model.model_fields and part in _MAPS:
            inside = str(part)
            yield None, False
        else:
            model = _PARTS.get(str(part)) if model is PlanStep else None
            yield model, False


def _model(path: Path) -> type[pydantic.BaseModel] | None:
    """Return the model of the table at a place."""
    found: type[pydantic.BaseModel] | None = Plan
    for model, _ in _walk(path):
        found = model
    return found


def _is_entry(path: Path) -> bool:
    """Return whether a place is the value of a name that the plan's author chose."""
    return bool(path) and [*_walk(path)][-1][1]


def _rename_in(step: Any, old: Any, new: str) -> None:
    """Let a step follow a step, or jump to one, by its new name."""
    if not isinstance(step, dict):
        return
    after, jump = step.get("after"), step.get("next")
    if isinstance(after, list):
        step["after"] = [new if each == old else each for each in after]
    elif after == old:
        step["after"] = new
    if isinstance(jump, dict) and jump.get("to") == old:
        jump["to"] = new


def _copy(value: Any) -> Any:
    """Return a copy of data that can be changed."""
    if isinstance(value, Mapping):
        return {name: _copy(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_copy(each) for each in value]
    return value
