"""`rollcage serve` as a process of its own."""

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page
from rollcage_server.roles import Role
from rollcage_server.tokens import TokenFile

SignIn = Callable[..., Page]
"""Signs somebody in, by name, in a browser of their own; gives the page."""


class Server:
    """`rollcage serve` on a store, with tokens for each role.

    Attributes:
        url: where it listens, without a slash at the end.
        log: what it said, once it has ended: all that it did not expect is there.
        store: the URL of its store.
        tokens: the text of a token, by the name of whoever has it.
    """

    def __init__(self, folder: Path, store: str) -> None:
        self.store = store
        self.tokens: dict[str, str] = {}
        self._file = folder / "tokens.json"
        self._port = 0
        self._process: subprocess.Popen[str] | None = None
        self._reader = threading.Thread()
        self.url = ""
        self.log: list[str] = []

    def known(self, name: str, *roles: str) -> str:
        """Make a token for somebody; its text."""
        if name not in self.tokens:
            roles_known = [Role(role) for role in roles]
            self.tokens[name] = TokenFile(self._file).create(name, roles_known, 3600)[1]
        return self.tokens[name]

    def start(self) -> None:
        """Start it, at the same port as before."""
        command = [
            sys.executable, "-m", "rollcage", "serve", "--store", self.store,
            "--tokens", str(self._file), "--port", str(self._port),
        ]  # fmt: skip
        self._process = process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        errors = process.stderr
        assert errors is not None
        told = errors.readline()
        assert told.startswith("Mission Control: http://"), told + errors.read()
        self.url = told.split(": ", 1)[1].strip().rstrip("/")
        self._port = int(self.url.rsplit(":", 1)[1])
        self._reader = threading.Thread(target=lambda: self.log.append(errors.read()))
        self._reader.start()

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End it, by a signal."""
        if (process := self._process) is None:
            return
        process.send_signal(how)
        process.wait(20)
        self._reader.join()
        assert process.stderr is not None
        process.stderr.close()
        self._process = None
