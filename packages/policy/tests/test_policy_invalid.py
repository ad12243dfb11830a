"""A policy that can't be meant is refused as a whole, and each error names its file and line."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from rollcage import errors
from rollcage_policy import Policy

RULE = '[[rules]]\nid = "a"\ndecision = "allow"\n'


def problems(text: str, form: str = "toml") -> list[tuple[int, str, str]]:
    with pytest.raises(errors.PolicyInvalid) as caught:
        Policy.parse(text, form="yaml" if form == "yaml" else "toml")
    assert caught.value.code == "policy_invalid"
    assert all(each.where == "policy" for each in caught.value.problems)
    assert str(caught.value) == "\n".join(map(str, caught.value.problems))
    return [(each.line, each.path, each.reason) for each in caught.value.problems]


# Each with the line, the path and a part of the reason of its only error.
TOML = {
    "empty": ("", 1, "version", "is missing"),
    "another version": ("version = 2\n", 1, "version", "should be 1, not 2"),
    "a version in words": ('version = "1"\n', 1, "version", "should be 1"),
    "no TOML": ("version = 1\n\nrules = [\n", 4, "", "not TOML"),
    "a key twice": ("version = 1\nname = 'a'\nname = 'b'\n", 3, "", "not TOML: Cannot overwrite"),
    "a table twice": ("version = 1\n[labels]\n[labels]\n", 3, "", "not TOML"),
    "a number with 5,000 digits": (f"version = {'1' * 5000}\n", 0, "", "Exceeds the limit"),
    "an unknown key": ("version = 1\n\ndefalt = 'deny'\n", 3, "defalt", "did you mean 'default'?"),
    "an unknown key like none": ("version = 1\nzzz = 1\n", 2, "zzz", "unknown key"),
    "an unknown default": ("version = 1\ndefault = 'no'\n", 2, "default", "'deny', not 'no'"),
    "an unknown mode": ("version = 1\nmode = 'off'\n", 2, "mode", "'enforce' or 'shadow'"),
    "an unknown flow": ("version = 1\nflow = 'all'\n", 2, "flow", "should be 'value', 'run' or"),
    "an empty name": ("version = 1\nname = ''\n", 2, "name", "at least 1 character"),
    "rules that are no list": ("version = 1\n[rules]\nid = 'a'\n", 2, "rules", "valid list"),
    "a rule without an id": (
        "version = 1\n[[rules]]\ndecision = 'allow'\n", 2, "rules[0].id", "is missing",
    ),
    "a rule without a decision": (
        "version = 1\n[[rules]]\nid = 'a'\n", 2, "rules[0].decision", "is missing",
    ),
    "an id with a blank": (
        f"version = 1\n{RULE}[[rules]]\nid = 'a b'\ndecision = 'allow'\n",
        6, "rules[1].id", "should match pattern",
    ),
    "an id twice": (
        f"version = 1\n{RULE}\n{RULE}", 7, "rules[1].id", "a rule 'a' is there already (line 2)",
    ),
    "an unknown decision": (
        "version = 1\n[[rules]]\nid = 'a'\ndecision = 'Allow'\n", 4, "rules[0].decision",
        "should be 'allow', 'ask' or 'deny', not 'Allow'",
    ),
    "a denial without a reason": (
        "version = 1\n[[rules]]\nid = 'a'\ndecision = 'deny'\n", 2, "rules[0]", "give a reason",
    ),
    "a question with a blank reason": (
        "version = 1\n[[rules]]\nid = 'a'\ndecision = 'ask'\nreason = ' '\n", 2, "rules[0]",
        "give a reason",
    ),
    "a mistyped key of a rule": (
        f"version = 1\n{RULE}wen = 'true'\n", 5, "rules[0].wen", "did you mean 'when'?",
    ),
    "tools as a text": (f"version = 1\n{RULE}tools = 'a'\n", 5, "rules[0].tools", "valid list"),
    "no tools": (f"version = 1\n{RULE}tools = []\n", 5, "rules[0].tools", "at least 1 item"),
    "a tool that is no text": (
        f"version = 1\n{RULE}tools = [\n  'a',\n  1,\n]\n", 7, "rules[0].tools[1]", "valid string",
    ),
    "an empty glob": (
        f"version = 1\n{RULE}tools = ['']\n", 5, "rules[0].tools[0]", "at least 1 character",
    ),
    "a glob over two lines": (
        f'version = 1\n{RULE}tools = ["a\\n"]\n', 5, "rules[0].tools[0]", "should match pattern",
    ),
    "an unknown kind": (
        f"version = 1\n{RULE}kinds = ['tols']\n", 5, "rules[0].kinds[0]", "'tool' or 'model'",
    ),
    "an unknown effect": (
        f"version = 1\n{RULE}effects = ['none']\n", 5, "rules[0].effects[0]", "not 'none'",
    ),
    "a condition that is a bool": (
        f"version = 1\n{RULE}when = true\n", 5, "rules[0].when", "valid string",
    ),
    "an empty condition": (f"version = 1\n{RULE}when = ''\n", 5, "rules[0].when", "at least 1"),
    "a condition that is no CEL": (
        f"version = 1\n{RULE}when = 'args.a >'\n", 5, "rules[0].when", "column 9: Syntax error",
    ),
    "a condition that ends inside a text": (
        f"version = 1\n{RULE}when = 'args.a == \"x'\n", 5, "rules[0].when", "is not allowed here",
    ),
    "an unknown name in a condition": (
        f"version = 1\n{RULE}when = 'arg.a == 1'\n", 5, "rules[0].when", "did you mean 'args'?",
    ),
    "an unknown function": (
        f"version = 1\n{RULE}when = 'witin(args.a, \"/\")'\n", 5, "rules[0].when",
        "unknown function 'witin'; did you mean 'within'?",
    ),
    "an unknown method": (
        f"version = 1\n{RULE}when = 'args.a.startWith(\"b\")'\n", 5, "rules[0].when",
        "did you mean 'startsWith'?",
    ),
    "an unknown constant": (
        f"version = 1\n{RULE}when = 'args.a == const.b'\n", 5, "rules[0].when", "const has no 'b'",
    ),
    "an unknown field": (
        f"version = 1\n{RULE}when = 'tool.effects == 1'\n", 5, "rules[0].when",
        "tool has no 'effects'; did you mean 'effect'?",
    ),
    "a field of a list": (
        f"version = 1\n{RULE}when = '\"untrusted\" in labels.to'\n", 5, "rules[0].when",
        "column 16: labels is a list: it has no field 'to'",
    ),
    "a place in the second line of a condition": (
        f"version = 1\n{RULE}when = '''\nargs.a == 1 &&\n  arg == 2'''\n", 5, "rules[0].when",
        "its line 2, column 3: unknown name 'arg'",
    ),
    "a pattern that is none": (
        f"version = 1\n{RULE}when = 'args.a.matches(\"(\")'\n", 5, "rules[0].when",
        "the pattern '(' is not a regular expression",
    ),
    "a pattern that is too large": (
        f"version = 1\n{RULE}when = 'args.a.matches(r\"\\w{{1000}}\")'\n", 5, "rules[0].when",
        "exceeds size limit",
    ),
    "a pattern out of the arguments": (
        f"version = 1\n{RULE}when = 'args.a.matches(args.b)'\n", 5, "rules[0].when",
        "has to be written here",
    ),
    "a constant's name": ("version = 1\n[constants]\n'a b' = 1\n", 3, "constants.a b", "pattern"),
    "a date": ("version = 1\n[constants]\nday = 2026-01-01\n", 3, "constants.day", "a date is not"),
    "not a number": ("version = 1\n[constants]\nn = nan\n", 3, "constants.n", "a usable number"),
    "a large number": (f"version = 1\n[constants]\nn = {2**53}\n", 3, "constants.n", "beyond 2^53"),
    "an unknown preset": (
        "version = 1\n[[presets]]\nuse = 'workspce'\n", 3, "presets[0].use",
        "no preset 'workspce'; did you mean 'workspace'?",
    ),
    "a preset without a name": (
        "version = 1\n[[presets]]\nroot = '/'\n", 2, "presets[0].use", "is missing; there are",
    ),
    "a preset that lacks a parameter": (
        "version = 1\n[[presets]]\nuse = 'workspace'\ntools = ['a']\n", 2, "presets[0].root",
        "is missing",
    ),
    "a preset's mistyped parameter": (
        "version = 1\n[[presets]]\nuse = 'read-only'\nalow = true\n", 4, "presets[0].alow",
        "did you mean 'allow'?",
    ),
    "a preset twice without a name": (
        "version = 1\n" + "[[presets]]\nuse = 'reversible-only'\n" * 2, 4, "presets[1]",
        "give one of the presets a name",
    ),
    "an unknown limit": (
        "version = 1\n[limits]\n[[limits.rules]]\nid = 'a'\ncals = 3\ntokens = 1\n", 5,
        "limits.rules[0].cals", "did you mean 'calls'?",
    ),
    "a negative limit": (
        "version = 1\n[[limits.rules]]\nid = 'a'\ncalls = -1\n", 4, "limits.rules[0].calls",
        "greater than or equal to 0",
    ),
    "a limit of nothing": (
        "version = 1\n[[limits.rules]]\nid = 'a'\n", 2, "limits.rules[0]", "limits nothing",
    ),
    "two budgets of one preset": (
        "version = 1\n" + "[[presets]]\nuse = 'budget'\ncalls = 1\n" * 2, 1, "limits",
        "two limits are called 'budget/calls'",
    ),
    "labels that are a text": (
        "version = 1\n[labels]\n'fetch_*' = 'untrusted'\n", 3, "labels.fetch_*", "valid list",
    ),
    "a label with a blank": (
        "version = 1\n[labels]\nfetch = ['not trusted']\n", 3, "labels.fetch[0]", "pattern",
    ),
    "a span of time": ("version = 1\n[approval]\nexpires = '1 week'\n", 3, "approval.expires",
                       "write 90 s, 15 min, 24 h or 7 d"),
    "no approvers": ("version = 1\n[approval]\napprovers = []\n", 3, "approval.approvers",
                     "at least 1 item"),
    "a mistyped key of approvals": (
        "version = 1\n[approval]\nexpire = '1 h'\n", 3, "approval.expire", "'expires'",
    ),
    "a price below zero": ("version = 1\n[prices]\nsend = -1\n", 3, "prices.send", "or equal to 0"),
    "a model's mistyped price": (
        "version = 1\n[prices.models.m]\ninput = 1\noutput = 1\noutputs = 2\n", 5,
        "prices.models.m.outputs", "did you mean 'output'?",
    ),
    "an include of a text": ("version = 1\ninclude = ['a.toml']\n", 2, "include[0]", "pass base="),
    "tests in a policy": ("version = 1\n[[tests]]\n", 2, "tests", "unknown key"),
    "an array in an array, too deep": (
        f"version = 1\n[constants]\na = {'[' * 40}{']' * 40}\n", 2, "constants", "nested deeper",
    ),
    "an array without an end": (f"version = 1\na = {'[' * 5000}", 0, "", "nested too deep"),
    "a long line": (f"version = 1\nname = '{'x' * 9000}'\n", 2, "", "a line longer than"),
    "a long file": ("version = 1\n" + "#" * 80 + ("\n" + "#" * 99) * 10_000, 0, "", "longer than"),
}  # fmt: skip


@pytest.mark.parametrize("case", TOML)
def test_toml_that_can_not_be_meant(case: str) -> None:
    text, line, path, reason = TOML[case]
    ((found_line, found_path, found_reason),) = problems(text)
    assert (found_line, found_path) == (line, path)
    assert reason in found_reason


YAML = {
    "no YAML": ("version: 1\nname: [\n", 3, "", "not YAML"),
    "a tab": ("version: 1\n\tname: a\n", 2, "", "not YAML"),
    "a list": ("- 1\n", 1, "", "a policy is a table"),
    "nothing": ("# nothing\n", 1, "version", "is missing"),
    "a bomb": (
        "version: 1\na: &a [x, x]\nb: &b [*a, *a]\n", 2, "", "anchors (&) and aliases (*)",
    ),
    "an alias": ("version: 1\nname: *a\n", 2, "", "anchors (&) and aliases (*)"),
    "a merge": ("version: 1\nconstants:\n  <<: {a: 1}\n", 3, "", "constants: a name has to be"),
    "a tag": ("version: 1\nname: !!python/object/apply:os.getcwd []\n", 2, "", "tags are not"),
    "a tag of one's own": ("version: 1\nname: !env HOME\n", 2, "", "tags are not supported"),
    "two documents": ("version: 1\n---\nversion: 1\n", 2, "", "a second document"),
    "a key twice": ("version: 1\nname: a\nname: b\n", 3, "", "name: is defined twice"),
    "a key that is a number": ("version: 1\n1: a\n", 2, "", "a name has to be a text"),
    "a key that is a list": ("version: 1\n? [a]\n: b\n", 2, "", "a name has to be a text"),
    "no, which is false": ("version: 1\ndefault: no\n", 2, "default", "not False"),
    "a date": ("version: 1\nconstants:\n  day: 2026-01-01\n", 3, "constants.day", "a date is not"),
    "a day that is none": ("version: 1\nname: 2026-99-99\n", 2, "", "not YAML: month must"),
    "nothing where something is": ("version: 1\nname:\n", 2, "name", "an empty value"),
    "too deep": (f"version: 1\nname: {'[' * 2000}\n", 2, "", "nested deeper than 32 levels"),
    "a mistyped key": (
        "version: 1\nrules:\n  - id: a\n    decision: allow\n    wen: 'true'\n", 5, "rules[0].wen",
        "did you mean 'when'?",
    ),
    "a condition over lines": (
        "version: 1\nrules:\n  - id: a\n    decision: allow\n    when: >-\n      arg == 1\n", 5,
        "rules[0].when", "unknown name 'arg'",
    ),
    "a control character": ("version: 1\nname: a\x00b\n", 0, "", "not YAML"),
}  # fmt: skip


@pytest.mark.parametrize("case", YAML)
def test_yaml_that_can_not_be_meant(case: str) -> None:
    text, line, path, reason = YAML[case]
    ((found_line, found_path, found_reason),) = problems(text, "yaml")
    assert (found_line, found_path) == (line, path)
    assert reason in found_reason


def test_all_that_is_wrong_is_reported_at_once() -> None:
    text = "version = 1\ndefalt = 'deny'\n[[rules]]\nid = 'a'\ndecison = 'deny'\n"
    assert [(line, path) for line, path, _ in problems(text)] == [
        (2, "defalt"), (3, "rules[0].decision"), (5, "rules[0].decison"),
    ]  # fmt: skip
    text = f"version = 1\n{RULE}when = 'a'\n[[rules]]\nid = 'b'\ndecision = 'allow'\nwhen = 'b'\n"
    assert [(line, path) for line, path, _ in problems(text)] == [
        (5, "rules[0].when"), (9, "rules[1].when"),
    ]  # fmt: skip


def test_the_text_of_an_error_is_for_people() -> None:
    with pytest.raises(errors.PolicyInvalid) as caught:
        Policy.parse(f"version = 1\n{RULE}when = 'arg.a == 1'\n", where="policy.toml")
    assert str(caught.value) == (
        "policy.toml, line 5: rules[0].when: column 1: unknown name 'arg'; did you mean 'args'?"
    )


# --- lines ---------------------------------------------------------------------------------------


def test_the_line_of_every_value_is_found_however_it_is_written() -> None:
    text = textwrap.dedent('''\
        # a comment with [brackets] and "quotes"
        version = 1
        "default" = "deny" # another one
        name = """
        of [[rules]]
        \\"""" # ends here
        constants . "a" = { b = [1, { c = ']' }], "d.e" = 'x' }
        constants.f = [ # [
          "]",
          [ 1, 2,
            3 ],
        ]

        [[rules]]
        id = "a"
        decision = "allow"

        [ labels ]
        'x#' = [
          'y', 'bad label',
        ]
        [[rules]]
        id = 'b'
        when = \'\'\'
        true
        \'\'\'
        decision = "allow"
        tools = ["a", "", "b"]
        ''')
    found = {(path, line) for line, path, _ in problems(text)}
    assert found == {("name", 4), ("labels.x#[1]", 20), ("rules[1].tools[1]", 28)}
    for line_end in ("\r\n", "\n"):
        again = {(path, line) for line, path, _ in problems(text.replace("\n", line_end))}
        assert again == found


# --- files ---------------------------------------------------------------------------------------


def refused(path: Path) -> str:
    with pytest.raises(errors.PolicyInvalid) as caught:
        Policy.load(path)
    return str(caught.value).replace(f"{path.parent}/", "")


def test_files_that_can_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    assert refused(path) == "policy.toml: can't be read: No such file or directory"
    path.mkdir()
    assert refused(path) == "policy.toml: is no file"
    other = tmp_path / "policy.json"
    assert refused(other) == "policy.json: a policy is a .toml, a .yaml or a .yml"
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b"version = 1\nname = '\xe4'\n")
    assert refused(latin) == "latin.toml, line 2: is no UTF-8"
    huge = tmp_path / "huge.toml"
    with huge.open("wb") as file:
        file.truncate(5_000_000)
    assert refused(huge) == "huge.toml: longer than 4000000 bytes"
    assert "can't be read" in refused(tmp_path / "a\0.toml")


def test_a_pipe_is_no_policy_and_nobody_waits_for_it(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "policy.toml")
    assert refused(tmp_path / "policy.toml") == "policy.toml: is no file"


def test_yaml_needs_its_library(tmp_path: Path) -> None:
    code = """
        import sys
        sys.modules["yaml"] = None
        from rollcage.errors import PolicyInvalid
        from rollcage_policy import Policy
        try:
            Policy.parse("version: 1", form="yaml")
        except PolicyInvalid as error:
            print(error)
        print(Policy.parse("version = 1").default)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "policy: YAML needs PyYAML: install rollcage[yaml]", "deny",
    ]  # fmt: skip


def test_what_is_wrong_in_an_included_file_names_that_file(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text("version = 1\ninclude = [\n 'gone.toml',\n 'bad.yaml', 'no.toml']\n")
    (tmp_path / "bad.yaml").write_text("version: 1\ndefault: none\n")
    (tmp_path / "no.toml").write_text("version = 1\n=\n")
    assert refused(path).splitlines() == [
        "policy.toml, line 3: include[0]: gone.toml: can't be read: No such file or directory",
        "bad.yaml, line 2: default: should be 'allow', 'ask' or 'deny', not 'none'",
        "no.toml, line 2: not TOML: Invalid statement (column 1)",
    ]


def test_cycles_of_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("version = 1\ninclude = ['a.toml']\n")
    assert refused(path) == "a.toml, line 2: include[0]: a.toml includes this file: a cycle"
    path.write_text("version = 1\ninclude = ['b.toml']\n")
    (tmp_path / "b.toml").write_text("version = 1\ninclude = ['link.toml']\n")
    (tmp_path / "link.toml").symlink_to(path)
    assert refused(path) == "b.toml, line 2: include[0]: link.toml includes this file: a cycle"


def test_files_that_say_different_things_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(
        f"version = 1\ninclude = ['a.toml', 'b.toml']\n{RULE}[limits.loops]\nsame = 3\n"
    )
    (tmp_path / "a.toml").write_text(
        "version = 1\ndefault = 'ask'\n[constants]\nroot = 1\n[prices]\nsend = 1\n"
    )
    (tmp_path / "b.toml").write_text(
        f"version = 1\ndefault = 'deny'\n{RULE}[constants]\nroot = 1.0\n[prices]\nsend = 2\n"
        "[limits.loops]\nsame = 4\n"
    )
    assert refused(path).splitlines() == [
        "policy.toml, line 6: limits.loops: another file says otherwise",
        "policy.toml, line 4: rules[0].id: a rule 'a' is there already (b.toml, line 3)",
        "b.toml, line 2: default: included files disagree: set it in the file itself",
        "b.toml, line 7: constants.root: another file says otherwise",
        "b.toml, line 9: prices.send: another file says otherwise",
    ]


def test_a_crowd_of_files_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    names = [f"{number}.toml" for number in range(70)]
    for name in names:
        (tmp_path / name).write_text("version = 1\n")
    path.write_text(f"version = 1\ninclude = {names}\n")
    assert "more than 64 files" in refused(path)
