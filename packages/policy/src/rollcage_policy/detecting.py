"""Keep undeclared credentials off the disk, like declared secrets."""

from __future__ import annotations

import functools
from typing import Any

from rollcage import Secrets
from rollcage.gate import Sealing
from rollcage.trace import STAND_IN

from rollcage_policy.credentials import detect, hide_secrets, names_secret

__all__ = ["DetectedSecrets", "Detecting"]


class DetectedSecrets(Secrets):
    """Conceal undeclared credentials, besides declared secrets, in every recorded value.

    It stands in `stages=` and needs `rollcage[secrets]`.

    Raises:
        DetectorMissing: the credential detector is not installed.
    """

    def __init__(self) -> None:
        detect("")  # fails now rather than in the middle of a run
        super().__init__(Detecting)


class Detecting(Sealing):
    """Seals undeclared credentials, too.

    Once found, a credential is replaced wherever it is quoted.
    """

    @property
    def idle(self) -> bool:
        """See `Sealing`: credentials may be anywhere."""
        return False

    def hide_text(self, text: str, path: str, found: list[str]) -> str:
        """Replace the secrets and credentials in a text."""
        text = super().hide_text(text, path, found)
        return hide_secrets(text, functools.partial(self._found, path, found))

    def hide_named(self, name: Any, value: Any, path: str, found: list[str]) -> Any:
        """Replace a value whose name marks it as a credential, or the credentials in it."""
        if type(value) is str and value and type(name) is str and names_secret(name):
            if STAND_IN.fullmatch(value):
                return value
            return self._found(path, found, "Secret Keyword", value)
        return super().hide_named(name, value, path, found)

    def _found(self, path: str, found: list[str], kind: str, credential: str) -> str:
        self.remember(credential, kind)
        return self.seal_found(path, found, kind, credential)
