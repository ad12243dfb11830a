"""A store with runs of all kinds, and a server of it, for the tests of the server."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from rollcage import (
    ApprovalRequired,
    QueueApprover,
    Session,
    UnknownOutcome,
    Verdict,
    open_store,
    tool,
)
from rollcage_server import Authority, Role, create_app
from rollcage_server.tokens import TokenFile
from rollcage_views import Requests

SECRET = "the-value-of-an-argument"
RESULT = "the-value-of-a-result"
REASON = "the-reason-of-a-rule"
ROLES = tuple(Role)


@tool(name="served_read", effect="read")
def served_read(key: str) -> str:
    return f"{RESULT} {key}"


@tool(name="served_write", effect="write")
def served_write(key: str) -> str:
    if key == "lost":
        raise TimeoutError(f"no answer about {SECRET}")
    return f"{RESULT} {key}"


class World:
    """A store with runs of all kinds, a token of each role, and the server of both.

    Args:
        root: a folder.
        store: where the runs are.
    """

    def __init__(self, root: Path, store: str) -> None:
        self.url = store
        self.store = open_store(store)
        self.tokens = TokenFile(root / "tokens.json")
        self.token = {role: self.tokens.create(f"{role} person", [role], 3600)[1] for role in ROLES}
        self.app = create_app(store, Authority(tokens=self.tokens))
        self.runs: dict[str, str] = {}

    def session(self, name: str, **given: Any) -> Session:
        """A session that records here."""
        return Session(name, store=self.url, **given)

    def asking(self, name: str, **given: Any) -> Session:
        """A session that has each call be approved."""
        gate = {"gate": [asks], "approver": QueueApprover(self.url)}
        return self.session(name, actor="the requester", **gate, **given)

    def client(self, role: Role | None = None, **options: Any) -> httpx.AsyncClient:
        headers = {} if role is None else {"Authorization": f"Bearer {self.token[role]}"}
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app, raise_app_exceptions=False),
            base_url="https://localhost",
            headers=headers | options.pop("headers", {}),
            **options,
        )

    def fill(self) -> None:
        """A run that ended well, one that is in doubt, and one that waits for an approval."""
        with self.session("fine") as session:
            served_read(f"{SECRET} 1")
            served_write(f"{SECRET} 2")
            self.runs["fine"] = session.run_id
        with pytest.raises(UnknownOutcome), self.session("lost") as session:
            self.runs["lost"] = session.run_id
            served_write("lost")
        self.approval = self.ask("asked")

    def ask(self, name: str, **given: Any) -> str:
        """A run that waits for approval of its call; the id of the request."""
        queue = Requests(self.store)
        before = set(queue.ids())
        with pytest.raises(ApprovalRequired), self.asking(name, **given) as session:
            self.runs[name] = session.run_id
            served_write(f"{SECRET} {name}")
        (made,) = set(queue.ids()) - before
        return made


def asks(step: Any) -> Verdict:
    return Verdict.ask(REASON)
