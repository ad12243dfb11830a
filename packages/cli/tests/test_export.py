"""`rollcage export`: what is taken out is gone, and what is left verifies."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import SecretStr
from rollcage import Blocked, NotReplayable, Session, Verdict, tool
from rollcage.trace import event_adapter

Cli = Callable[..., Any]
Record = Callable[..., str]


@pytest.fixture
def exported(cli: Cli, tmp_path: Path) -> Callable[..., Path]:
    """Export a run into a file of its own, and see that it verifies."""

    def export(run: str, *options: str) -> Path:
        result = cli("export", run, *options)
        assert result.code == 0, result.err
        folder = tmp_path / f"export{len(list(tmp_path.glob('export*')))}"
        folder.mkdir()
        path = folder / f"{run}.jsonl"
        path.write_text(result.out, encoding="utf-8", newline="")
        for line in result.out.splitlines():
            event_adapter().validate_json(line)
        assert cli("verify", path, "--json").data["findings"] == []
        return path

    return export


def events(path: Path) -> list[Any]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def test_nothing_to_take_out(store: Path, tools: Any, exported: Any) -> None:
    with Session("job", store=store) as session:
        tools.put("a", "b")
    path = exported(session.run_id)
    assert path.read_bytes() == (store / "logs" / path.name).read_bytes()
    assert "redacted" not in events(path)[0]


def test_secrets_always_go(record: Record, exported: Any, store: Path) -> None:
    run = record()
    path = exported(run)
    (login,) = (e for e in events(path) if e.get("name") == "login")
    assert login["args"] == {"user": "ann", "password": {"$rollcage": "redacted"}}
    assert events(path)[0]["redacted"] is True
    tags = [e for e in (store / "logs" / path.name).read_text().split('"') if len(e) == 64]
    assert len(tags) > len([e for e in path.read_text().split('"') if len(e) == 64])


def test_a_named_argument_goes_wherever_it_is(store: Path, exported: Any) -> None:
    diary = "dear diary, what a day"

    def rule(view: Any) -> Verdict | None:
        return Verdict.deny(f"no: {view.args['body']}") if view.args.get("deny") else None

    @tool
    def send(to: str, body: str, deny: int = 0) -> dict[str, Any]:
        return {"sent": [{"to": to, "body": body}], "log": f"sent: {body}!", "pairs": {1: body}}

    @tool(effect="read")
    def refuse(body: str) -> None:
        raise ValueError(body)

    with Session("job", store=store, gate=[rule]) as session:
        send("ann", diary)
        with pytest.raises(ValueError, match="diary"):
            refuse(diary)
        with pytest.raises(Blocked):
            send("ann", diary, deny=1)
        big = {"text": "x" * 70_000, "body": diary}
        session.call(keep, value=big)
    path = exported(session.run_id, "--redact", "body")
    text = path.read_text()
    assert "diary" not in text
    assert '"to":"ann"' in text
    first = next(e for e in events(path) if e["event"] == "outcome")["outcome"]
    assert first["value"]["sent"] == [{"to": "ann", "body": {"$rollcage": "redacted"}}]
    assert first["value"]["log"] == "sent: <redacted>!"
    assert first["lossy"]
    kept = [e for e in events(path) if e.get("name") == "keep"]
    assert kept[0]["args"]["value"]["body"] == {"$rollcage": "redacted"}


def keep(value: dict[str, Any]) -> None:
    return None


def test_no_values_at_all(record: Record, exported: Any, store: Path) -> None:
    run = record(text="all of this goes")
    text = exported(run, "--no-values").read_text()
    for gone in ("all of this goes", "b.txt", "ann", "content of", "wrote", "outside of the"):
        assert gone not in text
    for stays in ("look", "path_escape", "ValueError", "refused"):
        assert stays in text


def test_hashes_give_no_hint_of_what_was_taken_out(record: Record, exported: Any) -> None:
    """A short value could be guessed from the hash of its call."""
    run = record(text="1234")
    plain, redacted = events(exported(run)), events(exported(run, "--redact", "text"))
    fields = ("key", "fingerprint")
    for field in fields:
        assert not {e.get(field) for e in plain} & {e[field] for e in redacted if field in e}
    keys = [(e["name"], e["key"]) for e in redacted if e["event"] == "step"]
    old_keys = [(e["name"], e["key"]) for e in plain if e["event"] == "step"]
    assert [keys.index(k) for k in keys] == [old_keys.index(k) for k in old_keys]
    nested = next(e for e in redacted if e.get("branch"))
    assert nested["branch"][1:] in {e.get("fingerprint") for e in redacted}


def test_exports_of_one_store_can_be_compared(cli: Cli, record: Record, exported: Any) -> None:
    paths = [exported(record(), "--redact", "text") for _ in range(2)]
    assert cli("diff", *paths).code == 0


def test_an_export_exports(cli: Cli, record: Record, exported: Any) -> None:
    path = exported(record(), "--redact", "text")
    again = cli("export", path)
    assert again.code == 0
    assert again.out == path.read_text()


@pytest.mark.filterwarnings("ignore::rollcage.NotReplayableWarning")
def test_secrets_inside_of_values(store: Path, exported: Any) -> None:
    with Session("job", store=store) as session:
        session.call(hide, value={"deep": [SecretStr("s3cret-value")]})
    path = exported(session.run_id)
    assert "secret" not in path.read_text().replace("a secret is never recorded", "")
    finished = next(e for e in events(path) if e["event"] == "outcome")
    assert finished["outcome"]["value"] == {"deep": [{"$rollcage": "redacted"}]}


def hide(value: Any) -> Any:
    return value


@pytest.mark.filterwarnings("ignore::rollcage.NotReplayableWarning")
def test_a_redacted_write_is_never_given_back(store: Path, exported: Any, tmp_path: Path) -> None:
    with Session("job", store=store) as session:
        session.call(hide, value={"name": "ann", "token": SecretStr("s3cret-value")})
    path = exported(session.run_id)
    with (
        pytest.raises(NotReplayable),
        Session("job", store=store, source=path, replay="offline") as again,
    ):
        again.call(hide, value={"name": "ann", "token": SecretStr("s3cret-value")})


def test_a_damaged_trace_is_not_sealed_anew(cli: Cli, record: Record, edit: Any) -> None:
    run = record()
    edit(run, lambda lines: [x.replace(b"b.txt", b"c.txt") for x in lines])
    result = cli("export", run)
    assert (result.code, result.out) == (3, "")


def test_a_torn_tail_is_left_out(cli: Cli, dead: str, store: Path) -> None:
    with (store / "logs" / f"{dead}.jsonl").open("ab") as trace:
        trace.write(b'{"event":"st')
    result = cli("export", dead)
    assert result.code == 0
    assert result.out.endswith("}\n")


def test_hostile_text_is_escaped_and_means_the_same(
    record: Record, exported: Any, evil: str
) -> None:
    path = exported(record(text=evil))
    text = path.read_text()
    assert not {"\x1b", "\x07", "\x9b", "\u202e", "\u2028"} & set(text)
    put = next(e for e in events(path) if e.get("name") == "put")
    assert put["args"]["text"] == evil
    assert json.loads(text.splitlines()[0])


def test_a_reader_that_goes_away(record: Record, tmp_path: Path) -> None:
    run = record(text="x" * 60_000)
    shell = f"{sys.executable} -m rollcage export {run} | head -c 10"
    seen = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False)
    assert len(seen.stdout) == 10
    assert "Traceback" not in seen.stderr
    assert "Exception" not in seen.stderr


def test_a_conversation_is_redacted_once_and_verifies(
    store: Path, exported: Any, cli: Cli, tmp_path: Path
) -> None:
    from rollcage_adapter import model_contract, model_request

    model, messages = model_contract("chat-1", "test"), list[dict[str, Any]]()
    with Session("job", store=store) as session:
        for turn in range(4):
            messages += [
                {"role": "user", "content": f"diary {turn}".ljust(70_000 if turn == 2 else 300)}
            ]
            request = model_request(messages, options={})
            session.run_call(model, request, lambda **_: "noted", kind="model")
    assert cli("verify", session.run_id, "--json").data["findings"] == []
    path = exported(session.run_id, "--redact", "content")
    assert "diary" not in path.read_text()
    last = [event["args"]["messages"] for event in events(path) if event.get("effect") == "model"][
        -1
    ]
    told = {"role": "user", "content": {"$rollcage": "redacted"}}
    assert last == [{"$rollcage": "messages", "step": 3, "first": 0, "count": 3}, told]
    shown = cli("show", path, "--step", "4").out
    assert shown.count("redacted") == 4
    assert cli("diff", path, path).code == 0
