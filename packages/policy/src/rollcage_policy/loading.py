"""A policy's file, with all included files, and with every preset expanded.

Every problem is reported with its file and line, all of them at once if possible, and
no part of such a policy is used.
"""

from __future__ import annotations

import dataclasses
import difflib
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path as FilePath
from typing import Any, Final, Literal, NamedTuple

import pydantic
from rollcage.errors import PolicyInvalid, PolicyProblem
from rollcage.gate import Decision

from rollcage_policy.limits import Limits
from rollcage_policy.lines import Document, Form, Path, read_document
from rollcage_policy.policyfile import (
    ApprovalTerms,
    Flow,
    Mode,
    PolicyFile,
    RuleData,
    problems_of,
)
from rollcage_policy.presets import PRESETS
from rollcage_policy.prices import Prices

__all__ = ["LoadedPolicy", "Placed", "read_file", "read_policy", "resolve"]

_MOST_FILES: Final = 64
_MOST_BYTES: Final = 4_000_000
_MOST_RULES: Final = 10_000
_FORMS: Final[Mapping[str, Form]] = {".toml": "toml", ".yaml": "yaml", ".yml": "yaml"}
_INHERITED: Final = ("default", "flow", "approval")


class Placed(NamedTuple):
    """A rule, and its place."""

    rule: RuleData
    document: Document
    path: Path

    def problem(self, reason: str, field: str = "") -> PolicyProblem:
        """Return a problem with the rule."""
        return self.document.problem((*self.path, field) if field else self.path, reason)


@dataclasses.dataclass(frozen=True)
class LoadedPolicy:
    """A policy as its files define it, all in one."""

    name: str
    default: Decision
    mode: Mode
    strict: bool
    flow: Flow
    constants: Mapping[str, Any]
    rules: tuple[Placed, ...]
    limits: Limits
    labels: Mapping[str, tuple[str, ...]]
    approval: ApprovalTerms
    prices: Prices


class _Part(NamedTuple):
    """A file of the policy; included files come before the files that include them."""

    document: Document
    file: PolicyFile


def read_policy(path: FilePath) -> LoadedPolicy:
    """Read the policy in a file, TOML or YAML by its extension.

    Raises:
        PolicyInvalid: the file, or a file that it includes, can't be used.
    """
    return _Resolving().of(read_file(path), path)


def resolve(
    text: str, form: Literal["toml", "yaml"], where: str, base: FilePath | None
) -> LoadedPolicy:
    """Read the policy in a text; `base` is the folder from which it includes files.

    Raises:
        PolicyInvalid: the text, or a file that it includes, can't be used.
    """
    document = read_document(text.removeprefix("\ufeff"), form, where)
    return _Resolving().of(document, None if base is None else base / "policy")


def read_file(path: FilePath) -> Document:
    """Read a file's data and lines: a policy, or tests of a policy.

    Raises:
        PolicyInvalid: the file can't be read, or its extension is not of TOML or YAML.
    """
    where = str(path)
    try:
        form = _FORMS[path.suffix.lower()]
    except KeyError:
        raise _invalid(where, "a policy is a .toml, a .yaml or a .yml") from None
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise _invalid(where, "is no file")
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise _invalid(where, f"can't be read: {error.strerror or error}") from None
    except ValueError as error:  # a NUL in its name
        raise _invalid(where, f"can't be read: {error}") from None
    if len(data) > _MOST_BYTES:
        raise _invalid(where, f"longer than {_MOST_BYTES} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise PolicyInvalid([PolicyProblem(where, line, "", "is no UTF-8")]) from None
    return read_document(text.removeprefix("\ufeff"), form, where)


def _invalid(where: str, reason: str) -> PolicyInvalid:
    return PolicyInvalid([PolicyProblem(where, 0, "", reason)])


class _Resolving:
    """One resolution."""

    def __init__(self) -> None:
        self.parts: list[_Part] = []
        self.problems: list[PolicyProblem] = []
        self.seen: set[FilePath] = set()

    def of(self, document: Document, path: FilePath | None) -> LoadedPolicy:
        self._take(document, path, ())
        self._check()
        limits = self._limits()
        rules = tuple(self._rules())
        self._check_ids(rules)
        resolved = LoadedPolicy(
            name=self.parts[-1].file.name or "",
            default=self._inherited("default") or "deny",
            mode=self.parts[-1].file.mode or "enforce",  # of this file: included files don't count
            strict=any(part.file.strict for part in self.parts),  # no file can turn it off
            flow=self._inherited("flow") or "value",  # turns enforcement off
            constants=self._merged("constants", lambda file: file.constants),
            rules=rules,
            limits=limits,
            labels=self._labels(),
            approval=self._inherited("approval") or ApprovalTerms(),
            prices=Prices(
                calls=self._merged("prices", lambda file: file.prices.calls if file.prices else {}),
                models=self._merged(
                    "prices.models", lambda file: file.prices.models if file.prices else {}
                ),
            ),
        )
        self._check()
        return resolved

    def _check(self) -> None:
        if self.problems:
            raise PolicyInvalid(self.problems)

    # --- files -----------------------------------------------------------------------------------

    def _take(
        self, document: Document, path: FilePath | None, around: tuple[FilePath, ...]
    ) -> None:
        """Add a file, after the files that it includes."""
        try:
            file = PolicyFile.model_validate(document.data)
        except pydantic.ValidationError as error:
            self.problems += problems_of(document, error)
            return
        here = None if path is None else path.resolve()
        if here is not None:
            self.seen.add(here)
            around = (*around, here)
        for index, name in enumerate(file.include):
            self._include(document, index, name, path, around)
        self.parts.append(_Part(document, file))

    def _include(
        self,
        document: Document,
        index: int,
        name: str,
        path: FilePath | None,
        around: tuple[FilePath, ...],
    ) -> None:
        at: Path = ("include", index)
        if path is None:
            reason = "a text has no folder to include files from; pass base="
            self.problems.append(document.problem(at, reason))
            return
        target = path.parent / name
        there = target.resolve()
        if there in around:
            self.problems.append(document.problem(at, f"{name} includes this file: a cycle"))
        elif there not in self.seen:  # a file that several files include counts once
            if len(self.seen) >= _MOST_FILES:
                self.problems.append(document.problem(at, f"more than {_MOST_FILES} files"))
                return
            self.seen.add(there)
            try:
                found = read_file(target)
            except PolicyInvalid as error:
                first = error.problems[0]
                problems = error.problems if first.line else [document.problem(at, str(first))]
                self.problems += problems
                return
            self._take(found, target, around)

    # --- settings of all files -------------------------------------------------------------------

    def _inherited(self, field: str) -> Any:
        """Return the file's own setting, or else that of its included files, if they agree."""
        own = getattr(self.parts[-1].file, field)
        if own is not None:
            return own
        inherited = None
        for document, file in self.parts:
            value = getattr(file, field)
            if value is None:
                continue
            if inherited is not None and value != inherited:
                reason = "included files disagree: set it in the file itself"
                self.problems.append(document.problem((field,), reason))
            inherited = value
        return inherited

    def _merged(self, field: str, of: Callable[[PolicyFile], Mapping[str, Any]]) -> dict[str, Any]:
        """Merge the tables of all files; a name may have only one value."""
        found: dict[str, Any] = {}
        for document, file in self.parts:
            for name, value in of(file).items():
                if name in found and not _same(found[name], value):
                    path = (*field.split("."), name)
                    self.problems.append(document.problem(path, "another file says otherwise"))
                found[name] = value
        return found

    def _labels(self) -> dict[str, tuple[str, ...]]:
        """Return the labels of all files together."""
        found: dict[str, set[str]] = {}
        for _, file in self.parts:
            for glob, labels in file.labels.items():
                found.setdefault(glob, set()).update(labels)
        return {glob: tuple(sorted(labels)) for glob, labels in sorted(found.items())}

    def _limits(self) -> Limits:
        """Merge the limits of all files; loop detection may be set once."""
        rules: list[Any] = []
        loops = None
        for document, file in self.parts:
            for index in range(len(file.presets)):
                rules += self._preset(document, file, index).limits
            limits = file.limits or Limits()
            rules += [each.model_dump(exclude_none=True) for each in limits.rules]
            if loops is not None and limits.loops is not None and limits.loops != loops:
                reason = "another file says otherwise"
                self.problems.append(document.problem(("limits", "loops"), reason))
            loops = limits.loops or loops
        try:
            return Limits.model_validate({"rules": rules, "loops": loops})
        except pydantic.ValidationError as error:
            self.problems += problems_of(self.parts[-1].document, error, ("limits",))
            return Limits()

    # --- rules -----------------------------------------------------------------------------------

    def _rules(self) -> Iterator[Placed]:
        for document, file in self.parts:
            for index in range(len(file.presets)):
                for rule in self._preset(document, file, index).rules:
                    yield Placed(rule, document, ("presets", index))
            for index, rule in enumerate(file.rules):
                yield Placed(rule, document, ("rules", index))

    def _preset(self, document: Document, file: PolicyFile, index: int) -> _Expanded:
        """Return the rules of a preset; if it can't be used, none, and report one problem."""
        at: Path = ("presets", index)
        given = dict(file.presets[index])
        use = given.pop("use", None)
        model = PRESETS.get(use) if isinstance(use, str) else None
        problems: list[PolicyProblem] = []
        expanded = _Expanded([], [])
        if model is None:
            near = difflib.get_close_matches(str(use), list(PRESETS), 1)
            known = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(PRESETS)}"
            problem = "is missing" if use is None else f"no preset {str(use)[:60]!r}"
            problems.append(document.problem((*at, "use"), f"{problem}; {known}"))
        else:
            try:
                preset = model.model_validate(given)
                rules = [RuleData.model_validate(each) for each in preset.rules()]
                expanded = _Expanded(rules, preset.limits())
            except pydantic.ValidationError as error:
                problems += problems_of(document, error, at, ("presets", model.use))
        self.problems += (each for each in problems if each not in self.problems)
        return expanded

    def _check_ids(self, rules: tuple[Placed, ...]) -> None:
        if len(rules) > _MOST_RULES:
            self.problems.append(rules[_MOST_RULES].problem(f"more than {_MOST_RULES} rules"))
        first: dict[str, Placed] = {}
        for each in rules:
            known = first.setdefault(each.rule.id, each)
            if known is not each:
                there = known.problem("")
                line = f"line {there.line}"
                place = line if known.document is each.document else f"{there.where}, {line}"
                reason = f"a rule {each.rule.id!r} is there already ({place})"
                if each.path[0] == "presets":
                    reason += "; give one of the presets a name ="
                    self.problems.append(each.problem(reason))
                else:
                    self.problems.append(each.problem(reason, "id"))


class _Expanded(NamedTuple):
    """The rules that a preset expands to."""

    rules: list[RuleData]
    limits: list[dict[str, Any]]


def _same(one: object, other: object) -> bool:
    """Return whether two values are the same; 1, 1.0 and true differ."""
    return one == other and repr(one) == repr(other)
