"""Ask for approval at the terminal, while the call waits."""

from __future__ import annotations

import json
import sys
import threading
from typing import Any, Final, TextIO

from rollcage import Approval, ApprovalRequest
from rollcage.errors import ApprovalInvalid
from rollcage.gate import person

__all__ = ["ConsoleApprover"]

_CHOICES: Final = "[a]pprove, [e]dit, [r]eject, re[s]pond? "
_ONE_AT_A_TIME: Final = threading.Lock()  # all approvers share one terminal


def _os_user() -> str:
    """Return the name of the operating system's user; empty if unknown."""
    import getpass  # imported late: it loads terminal modules, and few sessions need it

    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return ""


class ConsoleApprover:
    """Show a call at the terminal, and ask there.

    Anything but a clear yes is a no, including the end of the input.

    Args:
        by: the name of the person at the terminal; by default the operating system's user.
        given: the stream of answers; by default standard input.
        shown: the stream on which to show the call; by default standard error.

    Raises:
        ApprovalInvalid: the name is missing, or can't be distinguished from others.
    """

    def __init__(
        self, *, by: str = "", given: TextIO | None = None, shown: TextIO | None = None
    ) -> None:
        try:
            self._by = person(by or _os_user())
        except ValueError as error:
            raise ApprovalInvalid(f"say who decides, ConsoleApprover(by=...): {error}") from None
        self._given = given
        self._shown = shown

    def __call__(self, request: ApprovalRequest) -> Approval:
        """Return the person's decision on this call."""
        with _ONE_AT_A_TIME:
            self._show(request)
            match self._ask(_CHOICES).lower():
                case "a" | "approve":
                    return Approval(True, by=self._by)
                case "e" | "edit":
                    return self._edited()
                case "s" | "respond":
                    return self._answered()
                case "r" | "reject":
                    return Approval.reject(self._ask("Why? "), by=self._by)
                case _:
                    return Approval.reject("not approved", by=self._by)

    def _edited(self) -> Approval:
        args = self._json("All its arguments, as JSON: ")
        if isinstance(args, dict):
            return Approval.edit(args, by=self._by)
        return Approval.reject("its edited arguments were not a JSON object", by=self._by)

    def _answered(self) -> Approval:
        value = self._json("Its result, as JSON: ")
        if value is _NOTHING:
            return Approval.reject("the answer was not JSON", by=self._by)
        return Approval.respond(value, by=self._by)

    def _json(self, question: str) -> Any:
        try:
            return json.loads(self._ask(question))
        except ValueError:
            return _NOTHING

    def _show(self, request: ApprovalRequest) -> None:
        who = f" (agent {_plain(request.agent)})" if request.agent else ""
        verdict = request.verdict
        self._say(f"\n{_plain(request.name)}{who} needs approval: {_plain(verdict.reason)}\n")
        for name, value in request.args.items():
            self._say(f"  {_plain(name)} = {_plain(value)}\n")

    def _ask(self, question: str) -> str:
        self._say(question)
        return (self._given or sys.stdin).readline().strip()

    def _say(self, text: str) -> None:
        shown = self._shown or sys.stderr
        shown.write(text)
        shown.flush()


_NOTHING: Final = object()


def _plain(value: Any) -> str:
    """Return text without control characters for a terminal: the arguments come from a model."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
