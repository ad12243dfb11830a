"""Names of calls, which may quote no secret."""

from __future__ import annotations

from rollcage.errors import Blocked
from rollcage.gate import Sealing
from rollcage.step.call import Call

__all__ = ["Names"]


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
