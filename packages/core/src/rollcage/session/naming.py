"""Names: of a session that was given none, and of calls, which may quote no secret."""

from __future__ import annotations

import logging
import sys
import sysconfig
from pathlib import Path
from typing import Final

from rollcage.errors import Blocked, SessionError
from rollcage.gate import Sealing
from rollcage.step.call import Call

__all__ = ["Names", "name_of_script", "writable"]

_log: Final = logging.getLogger("rollcage")


def name_of_script() -> str:
    """The job's name if none is given: the script's own name, without `.py`.

    Raises:
        SessionError: no script of the user's own is running.
    """
    main = sys.modules.get("__main__")
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if file is None or not Path(file).is_file():  # a prompt, `-c`, or what comes from stdin
        raise _nameless("no script is running")
    path = Path(file).resolve()
    if any(path.is_relative_to(folder) for folder in _installed()):
        raise _nameless(f"{path.name} is not a script of yours")
    name = path.stem if spec is None else str(spec.name).removesuffix(".__main__")
    _log.warning("this session was given no name: it is called %r, after its script", name)
    return name


def _nameless(why: str) -> SessionError:
    return SessionError(f'{why}, so this session has no name: say which job it is, Session("name")')


def _installed() -> set[Path]:
    """Where programs are that run what users wrote: pytest, ipython, uvicorn."""
    kinds = ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
    return {Path(sysconfig.get_path(kind)).resolve() for kind in kinds}


class Names:
    """Finds names of calls that quote a declared secret.

    Names are identities: replaced, they would match nothing at replay; as they are, the secret
    would be on the disk. So such a call is refused. An agent or a conversation that was recorded
    before its name became a secret keeps it: there is nothing left to protect.
    """

    def __init__(self, seal: Sealing) -> None:
        self._seal = seal
        self._recorded: set[str] = set()

    def keep(self, name: str) -> None:
        """A name that the trace holds."""
        if name:
            self._recorded.add(name)

    def refusal(self, call: Call) -> Blocked | None:
        """Why a call must not be recorded as it is; None if none of its names quotes a secret."""
        what = self._quoting(call)
        if not what:
            return None
        reason = (
            f"{call.contract.name} was not called: {what} quotes a declared secret, and names are "
            f"written to the trace as they are. Use one without the secret."
        )
        return Blocked(reason, rule="", code="secret_in_name")

    def _quoting(self, call: Call) -> str:
        for what, name in (("its agent", call.agent), ("its conversation", call.conversation)):
            if name and name not in self._recorded:
                if self._seal.is_quoted_by(name):
                    return f"the name of {what}"
                self._recorded.add(name)
        quoted = call.call_id and not self._seal.idle and self._seal.is_quoted_by(call.call_id)
        return "its call id" if quoted else ""


def writable(text: str) -> str:
    """A name from outside, without what UTF-8 can't hold (lone surrogates)."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
