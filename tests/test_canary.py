"""An agent meets credentials of many kinds everywhere, and none is ever written.

The tests search every byte: the store (traces, blobs, index, requests for approval), the warnings,
the reports in each format, and what each command prints.
"""

import asyncio
import base64
import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import pytest
from command_line import Cli, cli, plain_environment  # noqa: F401 - pytest finds them here
from pydantic import BaseModel, SecretBytes, SecretStr
from rollcage import (
    Approval,
    Blocked,
    CaptureFailed,
    Compensation,
    NotReplayable,
    NotReplayableWarning,
    Session,
    Verdict,
    compensate,
    tool,
    undo_run,
)
from rollcage_policy import DetectedSecrets

# Made up, and put together here: no scanner of this file is to take them for real ones.
CANARIES = {
    "a password": "Tr0ub4dor&3-canary",
    "a typed password": 'C0rrect"horse\\battery',
    "a key of AWS": "AKIA" + "CANARYCANARY2345",
    "a token of GitHub": "ghp" + "_" + "cAn4" * 9,
    "a token of Slack": "xoxb" + "-210987654321-1098765432109-caNaRycaNaRy",
    "a key of Stripe": "sk" + "_live_" + "c4n4ry" * 8,
    "a web token": "eyJ" + "jYW5hcnkiOiJIUzI1NiJ9.eyJ" + "zdWIiOiJjYW5hcnkifQ.c2lnbmF0dXJl-cAnArY",
    "a private key": "-----BEGIN EC PRIVATE " + "KEY-----\nMHcCAQEEcanaryCANARYcanary\n-----END EC "
    "PRIVATE KEY-----",
    "a password in a URL": "c4nary-in-a-url!",
    "a secret by its name": "sotto-voce-canary-1",
    "bytes": "c4nary-in-bytes-77",
}  # fmt: skip
(PASSWORD, TYPED, AWS, GITHUB, SLACK, STRIPE, JWT, PEM, IN_URL, NAMED, BYTES) = CANARIES.values()
DSN = f"postgres://app:{IN_URL}@db.example/main"

files: dict[str, str] = {}


class Account(BaseModel):
    user: str
    password: SecretStr
    note: str = ""


@tool(secret="password")
def login(user: str, password: str) -> str:
    if user == "mallory":
        raise PermissionError(f"{user} may not use {password!r}; try {AWS}")
    return f"session {JWT}"


@tool
def register(account: Account, token: SecretBytes) -> dict[str, Any]:
    return {"account": account, "echo": f"{account.password.get_secret_value()} {DSN}"}


@tool(effect="read")
def environment(prefix: str = "") -> dict[str, str]:
    return {"STRIPE": STRIPE, "client_secret": NAMED, "DSN": DSN, "log": "ok " * 30_000 + SLACK}


@tool(effect="pure")
def decode(data: bytes) -> Any:
    return data.decode()


@tool
def boom(text: str) -> None:
    try:
        raise ValueError(f"cause: {text}")
    except ValueError as cause:
        error = RuntimeError(f"could not post {text}", {"token": GITHUB})
        error.add_note(f"with {SLACK}")
        raise error from cause


@tool
def drop_canary(name: str) -> str:
    return f"removed what {files.pop(name, '')} stood in"


@tool(undo=lambda args: [compensate(drop_canary, name=args["name"])],
      observe=lambda args: {args["name"]: files.get(args["name"])})  # fmt: skip
def make_canary(name: str, text: str) -> str:
    files[name] = text
    return f"wrote {text}"


def restored(args: Any, before: Any) -> list[Compensation]:
    return [compensate(refill_canary, name=args["name"], text=before["text"])]


@tool(undo=restored, observe=lambda args: {"text": files.get(args["name"], "")})
def refill_canary(name: str, text: str) -> None:
    files[name] = text


@tool
async def post(url: str, headers: dict[str, str], body: Any) -> str:
    return f"201 from {url}"


def rule(view: Any) -> Verdict | None:
    if view.name == "post":
        return Verdict.ask(f"may it send {view.args['body']!r} to {view.args['url']}?")
    if view.args.get("text") == STRIPE:
        return Verdict.deny(f"never send {STRIPE}")
    return None


async def approver(request: Any) -> Approval:
    if request.args["url"].endswith("/no"):
        return Approval.reject(f"it holds {GITHUB}", by="bob")
    return Approval(True, by="bob", reason=f"{SLACK} is fine")


async def agent(session: Session) -> None:
    """Play a careless agent's day."""
    login("ann", PASSWORD)
    with contextlib.suppress(PermissionError):
        login("mallory", PASSWORD)
    register(
        Account(user="ann", password=SecretStr(TYPED), note=f"key {AWS}"),
        SecretBytes(BYTES.encode()),
    )
    environment()
    decode(f"{GITHUB} and {BYTES}".encode())
    with contextlib.suppress(RuntimeError):
        boom(f"{JWT} of {PASSWORD}")
    with session.turn():
        make_canary("a.env", f"AWS_KEY={AWS}\n{PEM}")
        make_canary("b.txt", f"the password is {TYPED}")
    with contextlib.suppress(Blocked):
        boom(STRIPE)
    with contextlib.suppress(CaptureFailed):
        refill_canary("a.env", "empty")
    for url in ("https://hooks.example/yes", "https://hooks.example/no"):
        with contextlib.suppress(Blocked):
            await session.acall(
                post,
                url=url,
                headers={"Authorization": f"Bearer {JWT}", "X-Api-Key": NAMED},
                body={"text": f"curl -u app:{IN_URL} {DSN}", GITHUB: [SLACK, {"password": NAMED}]},
            )


def forms(secret: str) -> Iterator[bytes]:
    """Yield the forms that a secret may have in a file."""
    yield secret.encode()
    yield json.dumps(secret)[1:-1].encode()
    yield quote(secret, safe="").encode()
    yield secret.encode().hex().encode()
    for shift in range(3):  # in base64, wherever it begins
        yield base64.b64encode(b"x" * shift + secret.encode())[4:-4]
    if len(secret) > 30:  # nor its beginning, its middle or its end
        middle = len(secret) // 2
        for part in (secret[6:26], secret[middle : middle + 16], secret[-16:]):
            yield json.dumps(part)[1:-1].encode()


def leaks(data: bytes) -> list[str]:
    return [name for name, secret in CANARIES.items() if any(f in data for f in forms(secret))]


Command = Callable[..., bytes]


@pytest.fixture
def rollcage(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:  # noqa: F811
    """Run the command line on the test's store; returns all that it prints."""
    monkeypatch.setenv("ROLLCAGE_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("COLUMNS", "4000")

    def run(*arguments: object, codes: tuple[int, ...] = (0,)) -> bytes:
        done = cli(*arguments)
        assert done.code in codes, done.err
        return (done.out + done.err).encode()

    return run


async def careless_run(store: Path, replay: Literal["off", "resume"], runs: list[str]) -> None:
    async with Session(
        "careless", store=store, replay=replay, stages=[DetectedSecrets()], gate=[rule],
        approver=approver, on_divergence="warn",
    ) as session:  # fmt: skip
        runs.append(session.run_id)
        await agent(session)
        raise RuntimeError(f"the agent died with {GITHUB}")


def test_no_credential_is_ever_written(tmp_path: Path, rollcage: Command) -> None:
    store = tmp_path / "store"
    runs: list[str] = []
    with (
        pytest.warns(NotReplayableWarning) as warned,
        pytest.raises(RuntimeError, match="the agent died"),
    ):
        asyncio.run(careless_run(store, "off", runs))
    for warning in warned:
        assert leaks(str(warning.message).encode()) == []
    with pytest.raises(NotReplayable):  # it halts at a result that was not kept
        asyncio.run(careless_run(store, "resume", runs))
    assert runs[0] == runs[1]
    undo_run(store, runs[0], stages=[DetectedSecrets()])

    written = [path for path in store.rglob("*") if path.is_file()]
    assert any("blobs" in path.parts for path in written)
    trace = b"".join(path.read_bytes() for path in written if path.suffix == ".jsonl")
    for event in ("refused", "requested", "decided"):
        assert b'"event":"%b"' % event.encode() in trace
    for path in written:
        assert leaks(path.read_bytes()) == [], path

    first, second = runs
    printed: dict[str, bytes] = {}
    for arguments in (
        ["runs"], ["runs", "--json"], ["show", first], ["show", first, "--json"],
        ["show", second, "--step", 1], ["verify", first], ["verify", first, "--json"],
        ["diff", first, second], ["diff", first, second, "--json"], ["export", first],
        ["export", second, "--no-values"], ["undo", second, "--plan", "--tools", __name__],
        ["approvals"], ["audit"],
    ):  # fmt: skip
        printed[" ".join(map(str, arguments))] = rollcage(*arguments, codes=(0, 1, 2))
    for name, page in {
        "run": ["show", first], "second": ["show", second], "diff": ["diff", first, second],
        "audit": ["audit"],
    }.items():  # fmt: skip
        printed[f"page of {name}"] = rollcage(*page, "--html", "-", codes=(0, 1))
    for form in ("table", "jsonl", "csv", "md"):
        report = tmp_path / f"report.{form}"
        printed[f"audit {form}"] = rollcage("audit", "-f", form)
        rollcage("audit", "-f", form, "-o", report)
        printed[f"audit -o {form}"] = report.read_bytes()
    for command, text in printed.items():
        assert text, command
        assert leaks(text) == [], command


def test_reports_of_runs_without_the_detector_show_none(tmp_path: Path, rollcage: Command) -> None:
    """The reports of any run lack the credentials that the detector knows."""

    async def undetected() -> str:
        async with Session(
            "careless", store=tmp_path / "store", gate=[rule], approver=approver
        ) as session:
            await agent(session)
        return session.run_id

    with pytest.warns(NotReplayableWarning):
        run = asyncio.run(undetected())
    known = {name: CANARIES[name] for name in CANARIES if name.startswith(("a key", "a token"))}
    known |= {name: CANARIES[name] for name in ("a web token", "a private key")}
    (trace,) = (tmp_path / "store" / "logs").glob("*.jsonl")
    assert known["a key of AWS"].encode() in trace.read_bytes()
    for form in (["-f", "table"], ["-f", "jsonl"], ["-f", "csv"], ["-f", "md"], ["--html", "-"]):
        assert not known.keys() & {*leaks(rollcage("audit", *form))}, form
    for command in (["show", run], ["diff", run, run]):
        assert not known.keys() & {*leaks(rollcage(*command, "--html", "-"))}, command


def test_the_canaries_would_be_seen() -> None:
    for name, secret in CANARIES.items():
        for data in (
            f"x{secret}y", json.dumps({"a": secret}), f"?q={quote(secret, safe='')}",
            base64.b64encode(f"some text {secret} and more".encode()).decode(),
        ):  # fmt: skip
            assert name in leaks(data.encode())
