"""`rollcage policy`: a policy is begun, checked, tested, explained, and tried on recorded runs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rollcage import ApprovalRequired, Blocked, QueueApprover, Session, tool
from rollcage_cli.errors import CORRUPT, DIFFERENT, USAGE
from rollcage_policy import Policy

Cli = Callable[..., Any]
Record = Callable[..., str]

TOOLS = """
from rollcage import compensate, tool

@tool(effect="read")
def look(path: str) -> str: ...

@tool(risk="high")
def put(path: str, text: str) -> dict[str, int]: ...
"""

POLICY = """\
version = 1
name = "shop"

[[rules]]
id = "reads"
effects = ["read"]
decision = "allow"

[[rules]]
id = "passwd"
when = 'has(args.path) && args.path == "/etc/passwd"'
decision = "deny"
code = "path_escape"
reason = "that is not yours"
remedy = "Use another file."

[[rules]]
id = "b"
tools = ["put"]
when = 'args.path == "b.txt"'
decision = "ask"
reason = "b is dear"

[[rules]]
id = "puts"
tools = ["put", "outer", "fails"]
decision = "allow"
"""

TESTS = """\
version = 1
policy = "policy.toml"

[tools.put]

[[cases]]
name = "b is asked about"
tool = "put"
args = { path = "b.txt" }
expect = { decision = "ask", rule = "b" }

[[cases]]
name = "c is not"
tool = "put"
args = { path = "c.txt" }
expect = "allow"
"""


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    (tmp_path / "policy.toml").write_text(POLICY, encoding="utf-8")
    (tmp_path / "tests.toml").write_text(TESTS, encoding="utf-8")
    (tmp_path / "shop_tools.py").write_text(TOOLS, encoding="utf-8")
    return Path("policy.toml")


# --- init ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "preset", ["workspace", "network", "read-only", "reversible-only", "budget", "secrets"]
)
def test_what_is_begun_with_is_valid_and_passes_its_tests(cli: Cli, preset: str) -> None:
    assert cli("policy", "init", "--preset", preset).code == 0
    checked = cli("policy", "check", "policy.toml", "--strict", "--json")
    assert checked.code == 0
    assert (checked.data["name"], checked.data["warnings"]) == (preset, [])
    tested = cli("policy", "test", "policy.tests.toml", "--covered", "--json")
    assert tested.code == 0, tested.out
    assert tested.data["failed"] == 0
    assert tested.data["passed"] >= 3


def test_its_folder_and_hosts_can_be_said(cli: Cli, tmp_path: Path) -> None:
    root = tmp_path / 'a "folder"'
    root.mkdir()
    assert cli("policy", "init", "w.toml", "--preset", "workspace", "--root", root).code == 0
    assert cli("policy", "test", "w.tests.toml").code == 0
    hosts = ("--host", "*.example.org", "--host", "b.example.org")
    assert cli("policy", "init", "n.toml", "--preset", "network", *hosts).code == 0
    assert cli("policy", "test", "n.tests.toml").code == 0
    assert '"b.example.org"' in Path("n.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("there", ["policy.toml", "policy.tests.toml"])
def test_nothing_is_written_over(cli: Cli, there: str) -> None:
    Path(there).write_text("mine", encoding="utf-8")
    result = cli("policy", "init")
    assert (result.code, f"{there} exists already" in result.err) == (USAGE, True)
    assert [each.name for each in Path().glob("*.toml")] == [there]
    assert Path(there).read_text(encoding="utf-8") == "mine"
    assert cli("policy", "init", "--force").code == 0
    assert Path(there).read_text(encoding="utf-8") != "mine"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["policy.yaml"], "init writes TOML"),
        (["--root", "."], "--root is for --preset workspace"),
        (["--host", "a"], "--host is for --preset network"),
        (["--preset", "other"], "'other' is not one of"),
        (["nowhere/policy.toml"], "can't be written"),
    ],
)
def test_what_can_not_be_begun(cli: Cli, arguments: list[str], said: str) -> None:
    result = cli("policy", "init", *arguments)
    assert result.code != 0
    assert said in result.err


# --- check ---------------------------------------------------------------------------------------


def test_check_shows_the_rules_and_the_digest(cli: Cli, policy: Path) -> None:
    result = cli("policy", "check", policy)
    assert result.code == 0
    assert "policy.toml:9" in result.out
    assert "valid: shop 4 rules, else deny" in result.out
    data = cli("policy", "check", policy, "--json").data
    assert f"digest {data['digest']}" in result.out
    assert [(each["id"], each["line"]) for each in data["rules"]] == [
        ("reads", 4), ("passwd", 9), ("b", 17), ("puts", 24),
    ]  # fmt: skip


def test_check_tells_all_problems_with_file_and_line(cli: Cli, policy: Path) -> None:
    text = POLICY.replace('decision = "ask"', 'decision = "aks"').replace("effects", "efects")
    policy.write_text(text, encoding="utf-8")
    result = cli("policy", "check", policy)
    assert result.code == DIFFERENT
    assert "policy.toml:6: rules[0].efects: unknown key; did you mean 'effects'?" in result.out
    assert "policy.toml:21: rules[2].decision: should be 'allow', 'ask' or 'deny'" in result.out
    assert "invalid: 2 problems" in result.out
    data = cli("policy", "check", policy, "--json").data
    assert [each["line"] for each in data["problems"]] == [6, 21]
    result = cli("policy", "check", "other.toml")
    assert (result.code, "other.toml: can't be read" in result.out) == (DIFFERENT, True)


def test_check_warns_of_what_can_do_nothing(cli: Cli, policy: Path) -> None:
    more = '[[rules]]\nid = "late"\ntools = ["put"]\ndecision = "allow"\n'
    policy.write_text(f"{POLICY}\n{more}", encoding="utf-8")
    result = cli("policy", "check", policy)
    assert (result.code, "warning: policy.toml:29: late: it never decides" in result.out) == (
        0,
        True,
    )
    assert cli("policy", "check", policy, "--strict").code == DIFFERENT
    data = cli("policy", "check", policy, "--tools", "shop_tools", "--json").data
    assert [(each["code"], each["id"]) for each in data["warnings"]] == [
        ("shadowed", "late"), ("no_such_tool", "puts"), ("no_such_tool", "puts"),
    ]  # fmt: skip
    assert cli("policy", "check", policy, "--tools", "nothing_here").code == USAGE


def test_a_policy_in_shadow_mode_says_so(cli: Cli, policy: Path) -> None:
    policy.write_text(
        POLICY.replace("[[rules]]", 'mode = "shadow"\n[[rules]]', 1), encoding="utf-8"
    )
    assert "shadow: decisions are recorded" in cli("policy", "check", policy).out


# --- test ----------------------------------------------------------------------------------------


def test_tests_pass(cli: Cli, policy: Path) -> None:
    result = cli("policy", "test", "tests.toml")
    assert result.code == 0
    assert "2 passed, 0 failed" in result.out
    assert "policy.toml: decided no case: reads, passwd" in result.out
    assert cli("policy", "test", "tests.toml", "--covered").code == DIFFERENT


def test_a_test_that_fails_says_where_and_how(cli: Cli, policy: Path, tmp_path: Path) -> None:
    tests = tmp_path / "tests.toml"
    tests.write_text(
        TESTS.replace('"allow"', '{ decision = "deny", rule = "b" }'), encoding="utf-8"
    )
    result = cli("policy", "test", "tests.toml")
    assert result.code == DIFFERENT
    assert "tests.toml:12: c is not: decision: 'deny' is expected, not 'allow'" in result.out
    assert "tests.toml:12: c is not: rule: 'b' is expected, not 'puts'" in result.out
    assert "1 passed, 1 failed" in result.out
    (tested,) = cli("policy", "test", "tests.toml", "--json").data["policies"]
    (file,) = tested["files"]
    assert [each["passed"] for each in file["cases"]] == [True, False]
    assert file["cases"][0]["got"]["message"] == "b is dear"
    assert tested["uncovered"] == ["reads", "passwd"]


def test_several_files_are_of_one_policy(cli: Cli, policy: Path, tmp_path: Path) -> None:
    (tmp_path / "more.toml").write_text(
        'version = 1\n[[cases]]\nname = "a"\ntool = { name = "see", effect = "read" }\n'
        'expect = "allow"\n',
        encoding="utf-8",
    )
    result = cli("policy", "test", "more.toml")
    assert (result.code, "names no policy: pass one with --policy" in result.err) == (
        USAGE,
        True,
    )
    result = cli("policy", "test", "tests.toml", "more.toml", "--policy", policy)
    assert (result.code, "decided no case: passwd" in result.out) == (0, True)


def test_tools_of_today_check_the_arguments(cli: Cli, policy: Path, tmp_path: Path) -> None:
    text = TESTS.replace("[tools.put]\n", "")
    (tmp_path / "tests.toml").write_text(text, encoding="utf-8")
    result = cli("policy", "test", "tests.toml")
    assert (result.code, "tests.toml, line 7: cases[0].tool: no tool 'put'" in result.err) == (
        USAGE,
        True,
    )
    result = cli("policy", "test", "tests.toml", "--tools", "shop_tools")
    assert (result.code, "put: text: Field required" in result.out) == (DIFFERENT, True)


# --- explain -------------------------------------------------------------------------------------


def test_a_recorded_step_is_explained(cli: Cli, policy: Path, record: Record) -> None:
    run = record()
    call = ("--tool", "put", "--args", '{"path": "/etc/passwd"}')  # one that is no step
    result = cli("policy", "explain", policy, *call)
    assert result.code == 0
    assert "does not match (effects)" in result.out
    assert 'met: has(args.path) && args.path == "/etc/passwd"' in result.out
    assert "deny by rule passwd, code path_escape" in result.out
    assert "the model reads: that is not yours. Use another file." in result.out
    data = cli("policy", "explain", policy, run, "2", "--json").data
    assert data["verdict"]["message"] == "b is dear"
    assert [(each["id"], each["holds"], each["decides"]) for each in data["rules"]] == [
        ("reads", None, False), ("passwd", False, False), ("b", True, True), ("puts", True, False),
    ]  # fmt: skip
    assert "allow by rule reads" in cli("policy", "explain", policy, run, "1").out
    assert "deny by default: no rule matches" in cli("policy", "explain", policy, run, "3").out


def test_what_is_not_known_is_reported(cli: Cli, policy: Path, record: Record) -> None:
    run = record()
    policy.write_text(POLICY.replace("when = 'args.path", 'when = \'tool.risk != "" && args.path'))
    result = cli("policy", "explain", policy, run, "2")
    assert "not known: tool.risk" in result.out
    assert "? undecided, because some values are not known: tool.risk" in result.out
    data = cli("policy", "explain", policy, run, "2", "--tools", "shop_tools", "--json").data
    assert data["verdict"]["rule"] == "b"


def test_a_call_that_was_never_made_is_explained(cli: Cli, policy: Path) -> None:
    call = ("policy", "explain", policy, "--tool")
    result = cli(*call, "put", "--args", '{"path": "b.txt"}', "--agent", "ann", "--label", "x")
    assert 'put(path="b.txt"), write by ann' in result.out
    assert "carries x" in result.out
    assert "who approves reads: b is dear" in result.out
    assert "allow by rule reads" in cli(*call, "see", "--effect", "read").out
    assert "deny by default" in cli(*call, "gpt", "--model", "--effect", "write").out
    assert "fails, so the call is denied: there is no 'path'" in cli(*call, "put").out
    tools = ("--tools", "shop_tools")
    result = cli(*call, "put", "--args", '{"path": 1}', *tools)
    assert "put: path" in result.err


def test_a_limit_is_named_as_one(cli: Cli, policy: Path, record: Record) -> None:
    policy.write_text(POLICY + '[[limits.rules]]\nid = "none"\ncalls = 0\n', encoding="utf-8")
    result = cli("policy", "explain", policy, record(), "1")
    assert "deny by limit none, code limit_calls" in result.out
    assert ">" not in result.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name a call"),
        (["latest"], "name a call"),
        (["latest", "1", "--args", "{}"], "name a call"),
        (["latest", "1", "--tool", "put"], "not both"),
        (["latest", "99"], "has no call at step 99"),
        (["@other", "1"], "no run is named 'other'"),
        (["--tool", "put", "--args", "{"], "--args is not JSON"),
        (["--tool", "put", "--args", "[]"], "--args is not an object"),
        (["--tool", "put", "--effect", "wirte"], "'wirte' is not an effect"),
    ],
)
def test_what_can_not_be_explained(
    cli: Cli, policy: Path, record: Record, arguments: list[str], said: str
) -> None:
    record()
    result = cli("policy", "explain", policy, *arguments)
    assert (result.code, said in result.err) == (USAGE, True), result.err


def test_what_is_shown_is_safe_for_a_terminal(cli: Cli, policy: Path, evil: str) -> None:
    text = POLICY.replace("b is dear", json.dumps(evil)[1:-1].replace("\\u009b", ""))
    policy.write_text(text, encoding="utf-8")
    call = json.dumps({"path": "b.txt", evil: evil})
    for command in (
        ("explain", policy, "--tool", evil, "--args", call),
        ("explain", policy, "--tool", "put", "--args", call),
        ("check", policy),
    ):
        result = cli("policy", *command)
        assert result.code == 0
        assert not {"\x1b", "\x07", "\x9b", "\u202e", "\u2028"} & {*result.out, *result.err}


# --- replay --------------------------------------------------------------------------------------


def lines(result: Any) -> list[Any]:
    return [json.loads(line) for line in result.out.splitlines()]


def test_what_would_change_is_listed(cli: Cli, policy: Path, record: Record) -> None:
    run = record()
    result = cli("policy", "replay", policy)
    assert result.code == DIFFERENT
    assert f'…{run[-8:]} step 2  put(path="b.txt", text="some text")  allow → ask  b' in result.out
    assert "allow → deny  default: no rule of the policy allows this call" in result.out
    assert "step 5" not in result.out  # denied as before
    assert "1 run, 8 calls, 1 allow → ask, 1 allow → deny" in result.out
    *calls, summary = lines(cli("policy", "replay", policy, "--json"))
    assert [(each["step"], each["was"]["decision"], each["now"]["rule"]) for each in calls] == [
        (2, "allow", "b"), (3, "allow", "default"),
    ]  # fmt: skip
    assert summary["rules"]["passwd"] == {"deny": 1}
    assert summary["changes"] == [
        {"was": "allow", "now": "ask", "calls": 1},
        {"was": "allow", "now": "deny", "calls": 1},
    ]
    every = lines(cli("policy", "replay", policy, run, "--all", "--json"))
    assert [each["changes"] for each in every[:-1]].count(False) == 6


def test_nothing_changes_under_the_same_policy(
    cli: Cli, policy: Path, tools: Any, store: Path
) -> None:
    with Session("job", store=store, gate=[Policy.load(policy)]) as session:
        tools.look("a")
        tools.put("a.txt", "x")
        with pytest.raises(Blocked):
            tools.put("/etc/passwd", "x")
    result = cli("policy", "replay", policy, session.run_id)
    assert (result.code, "1 run, 3 calls, nothing changes" in result.out) == (0, True)


def test_no_secret_is_shown_and_what_is_not_known_is_counted(
    cli: Cli, policy: Path, record: Record
) -> None:
    record()
    risky = (
        '[[rules]]\nid = "risky"\nwhen = \'tool.risk == "high"\'\ndecision = "deny"\nreason = "r"\n'
    )
    policy.write_text(POLICY + risky, encoding="utf-8")
    result = cli("policy", "replay", policy, "--all")
    assert "7 calls can't be decided (--all lists them)" in result.out
    assert "    tool.risk in 7: not in the trace; --tools provides it" in result.out
    assert "hunter2" not in result.out
    assert "password=<secret>" in result.out
    result = cli("policy", "replay", policy, "--tools", "shop_tools", "--json")
    *calls, summary = lines(result)
    assert summary["unknown"]["calls"] == 3
    assert {each["name"] for each in calls if each["now"] is None} == {"login", "fails", "outer"}


def test_a_damaged_run_is_reported_and_the_others_go_on(
    cli: Cli, policy: Path, record: Record, edit: Callable[..., None]
) -> None:
    good, bad = record("good"), record("bad")
    edit(bad, lambda whole: [each.replace(b"b.txt", b"c.txt") for each in whole])
    result = cli("policy", "replay", policy)
    assert result.code == CORRUPT
    assert f"run {bad} can't be replayed" in result.err
    assert f"…{good[-8:]} step 2" in result.out
    assert "2 runs, 8 calls" in result.out
    assert "1 run can't be read" in result.out
    summary = lines(cli("policy", "replay", policy, "--json"))[-1]
    assert [each["run"] for each in summary["damaged"]] == [bad]
    assert cli("policy", "replay", policy, "--name", "go*").code == DIFFERENT


def test_what_is_looked_at_besides_is_reported(cli: Cli, policy: Path, record: Record) -> None:
    record()
    said = "within() looked at the present files of this machine"
    assert said not in cli("policy", "replay", policy).out
    within = '[[rules]]\nid = "w"\ntools = ["put"]\nwhen = \'!within(args.path, "/", "/")\'\n'
    policy.write_text(f'{POLICY}{within}decision = "deny"\nreason = "r"\n', encoding="utf-8")
    assert said in cli("policy", "replay", policy).out


def test_an_invalid_policy_is_refused(cli: Cli, policy: Path, record: Record) -> None:
    record()
    policy.write_text("version = 2\n", encoding="utf-8")
    for command in (["replay", policy], ["explain", policy, "latest", "1"], ["test", "tests.toml"]):
        result = cli("policy", *command)
        assert (result.code, "policy.toml, line 1: version" in result.err) == (USAGE, True)


# --- calls that waited for an approval -----------------------------------------------------------


def test_a_call_that_waited_for_an_approval_is_one_call(cli: Cli, tmp_path: Path) -> None:
    path, store = tmp_path / "asking.toml", tmp_path / ".rollcage"
    path.write_text(ASKING)
    approver = QueueApprover(store)
    with (
        pytest.raises(ApprovalRequired),
        Session("shop", store=store, gate=[Policy.load(path)], approver=approver) as session,
    ):
        session.call(asked, item="gold")
    assert "1 run, 1 call, nothing changes" in cli("policy", "replay", path, "@shop").out
    (request,) = cli("approvals", "--json").data["approvals"]
    assert cli("approve", request["id"], "--by", "ann").code == 0
    with Session("shop", store=store, gate=[Policy.load(path)], approver=approver) as session:
        session.call(asked, item="gold")
    assert "1 run, 1 call, nothing changes" in cli("policy", "replay", path, "@shop").out
    audited = cli("audit", "@shop", "--format", "jsonl").out.splitlines()
    assert json.loads(audited[-1])["entries"]["call"] == 1


ASKING = """\
version = 1
[[rules]]
id = "all"
tools = ["*"]
decision = "ask"
reason = "all"
"""


@tool
def asked(item: str) -> str:
    return f"sold {item}"
