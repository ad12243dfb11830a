"""What conditions can call: each function gives an answer that holds, or raises."""

from __future__ import annotations

import builtins
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rollcage.errors import PolicyInvalid
from rollcage_policy import Policy
from rollcage_policy.addresses import AddressInvalid, bounded, split_url, why_not_public_host
from rollcage_policy.functions import FUNCTIONS, MOST_TEXT, surroundings
from rollcage_policy.named import Named
from rollcage_policy.paths import PathInvalid


def call(name: str, *args: Any) -> Any:
    return FUNCTIONS[name](*args)


def without(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    """An optional library that is not installed."""
    whole = builtins.__import__

    def refusing(name: str, *args: Any, **more: Any) -> Any:
        if name.partition(".")[0] == missing:
            raise ImportError(name)
        return whole(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", refusing)


# --- within --------------------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with links in it, beside one that is not to be reached."""
    root = tmp_path.resolve() / "desk"
    (root / "docs" / "deep").mkdir(parents=True)
    (root / "notes.txt").write_text("x")
    (root.parent / "outside").mkdir()
    (root / "out").symlink_to(root.parent / "outside")
    (root / "inner").symlink_to("docs")
    (root / "dangling").symlink_to(root.parent / "not-there")
    (root / "loop").symlink_to("loop")
    (root / "back").symlink_to("../desk/docs")
    (root.parent / "other-name").symlink_to(root)
    return root


@pytest.mark.parametrize(
    "path",
    ["", "notes.txt", "docs", "docs/", "docs/./deep", "new/not/there.txt", "docs/../notes.txt",
     "inner/x", "back/deep", ".hidden", "..notes", "a..b", "50%.txt", "12:30 log", "notes: a.txt",
     "résumé.md", "日本語/ファイル", "😀.txt", "a b.txt", "-rf"],
)  # fmt: skip
def test_a_path_below_the_root_is_within(root: Path, path: str) -> None:
    assert call("within", f"{root}/{path}", str(root)) is True
    if path:
        assert call("within", path, str(root), str(root)) is True


@pytest.mark.parametrize(
    "path",
    ["..", "../x", "../outside/x", "/etc/passwd", "/", "out", "out/x", "out/../x", "dangling",
     "dangling/x", "docs/../../outside", "../desk2", "../desktop/x", "inner/../../outside"],
)  # fmt: skip
def test_a_path_that_leads_out_is_not(root: Path, path: str) -> None:
    whole = path if path.startswith("/") else f"{root}/{path}"
    assert _no(whole, str(root))
    assert _no(path, str(root), str(root))


def _no(*args: str) -> bool:
    try:
        return call("within", *args) is False
    except PathInvalid:
        return True


def test_another_name_of_the_root_is_the_root(root: Path) -> None:
    other = root.parent / "other-name"
    assert call("within", f"{other}/x", str(root)) is True
    assert call("within", f"{root}/x", str(other)) is True


def test_a_relative_path_has_to_hold_from_the_working_directory_too(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root.parent)
    with pytest.raises(PathInvalid, match="absolute"):
        call("within", "notes.txt", str(root))
    monkeypatch.chdir(root)
    assert call("within", "notes.txt", str(root)) is True
    assert call("within", "../outside", str(root)) is False


def test_of_several_paths_all_are_or_none_is(root: Path) -> None:
    inside, outside = f"{root}/a", "/etc/passwd"
    assert call("within", [inside, f"{root}/b"], str(root)) is True
    assert call("within", [outside, "/"], str(root)) is False
    with pytest.raises(PathInvalid, match="an empty list"):
        call("within", [], str(root))
    with pytest.raises(PathInvalid, match="some of the paths"):
        call("within", [inside, outside], str(root))
    with pytest.raises(PathInvalid, match="list of texts"):
        call("within", [inside, 1], str(root))
    with pytest.raises(PathInvalid, match="at most 1000"):
        call("within", [inside] * 1001, str(root))


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("", "empty"), ("  ", "empty"), ("a\0b", "U\\+0000"), ("a\nb", "U\\+000A"),
        ("~", "home"), ("~/x", "home"), ("~root/x", "home"), ("a\\..\\b", "backslash"),
        ("//server/share", "another machine"), ("C:/x", "drive"), ("c:x", "drive"),
        ("file:///etc/passwd", "URL"), ("FILE:etc", "URL"), ("http://x/y", "URL"),
        ("%2e%2e/x", "percent"), ("..%2fx", "percent"), ("%252e%252e/x", "percent"),
        ("a%00", "percent"), ("$HOME/x", "variable"), ("${HOME}/x", "variable"),
        ("$(pwd)", "variable"), ("%APPDATA%/x", "variable"), ("x ", "space"), ("x.", "dot"),
        ("a/ b", "space"), ("...", "dot"), ("\uff0e\uff0e/x", "look like"),
        ("\u2025/x", "look like"),
        ("a\uff0fb", "U\\+FF0F"), ("..\u2215x", "U\\+2215"), ("\uff5e/x", "look like"),
        ("a\u202eb", "U\\+202E"), ("a\u200bb", "U\\+200B"), ("cafe\u0301", "NFC"),
        ("\udc80", "U\\+DC80"), ("x" * 5000, "4096"), ("\u00e9" * 2049, "4096"),
        ("y" * 300, "too long"), ("loop", "links"), ("loop/x", "links"),
        ("notes.txt/x", "followed"), ("gone/../x", "does not exist"),
        ("/proc/self/root/x", "/proc"), ("/proc/self/cwd", "/proc"),
    ],
)  # fmt: skip
def test_what_cannot_be_decided_raises(root: Path, path: str, says: str) -> None:
    with pytest.raises(PathInvalid, match=says):
        call("within", path, str(root), str(root))


def test_a_directory_that_cannot_be_looked_into_raises(root: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root looks into everything")
    (root / "docs").chmod(0)
    try:
        with pytest.raises(PathInvalid, match="followed"):
            call("within", f"{root}/docs/deep", str(root))
    finally:
        (root / "docs").chmod(0o700)


@pytest.mark.parametrize(
    ("folder", "says"),
    [("relative", "absolute"), ("/a\0b", "absolute"), ("/not/there", "can't be read"),
     ("notes.txt", "not a directory")],
)  # fmt: skip
def test_the_folder_of_a_rule_has_to_be_one(root: Path, folder: str, says: str) -> None:
    place = str(root / folder) if folder == "notes.txt" else folder
    with pytest.raises(PathInvalid, match=says):
        call("within", f"{root}/x", place)
    with pytest.raises(PathInvalid, match=says):
        call("within", "x", str(root), place)


@pytest.mark.parametrize("path", [None, 1, 1.5, True, {"path": "x"}, b"x"])
def test_only_a_text_or_a_list_is_a_path(root: Path, path: Any) -> None:
    with pytest.raises(ValueError, match="takes"):
        call("within", path, str(root))


NAMES = st.sampled_from(["..", ".", "docs", "deep", "inner", "out", "back", "new", "notes.txt", ""])


@given(st.lists(NAMES, max_size=7))
def test_what_the_kernel_opens_is_where_it_was_resolved_to(
    tmp_path_factory: pytest.TempPathFactory, names: list[str]
) -> None:
    """The law of `within`: what exists and is opened by an allowed path lies below the root."""
    root = tmp_path_factory.getbasetemp() / "law" / "desk"
    if not root.exists():
        (root / "docs" / "deep").mkdir(parents=True)
        (root / "notes.txt").write_text("x")
        (root / "out").symlink_to("../../..")
        (root / "inner").symlink_to("docs/deep")
        (root / "back").symlink_to("..")
    path = "/".join([str(root), *names])
    try:
        said = call("within", path, str(root))
    except PathInvalid:
        return
    for reading in (path, os.path.normpath(path)):
        real = Path(os.path.realpath(reading))
        assert real.is_relative_to(root.resolve()) is said


# --- hosts ---------------------------------------------------------------------------------------

PUBLIC = "93.184.216.34"


def test_the_parts_of_a_url() -> None:
    url = "HTTPS://API.Example.com:8443/a?b=c#d"
    assert call("host", url) == "api.example.com"
    assert call("port", url) == 8443
    assert call("scheme", url) == "https"
    assert call("port", "ws://a.example") == 80
    assert call("host", "http://[2001:4860:4860:0::8888]/") == "2001:4860:4860::8888"
    assert call("host", "http://bücher.example/") == "xn--bcher-kva.example"
    assert call("host", "http://a.example./x@y") == "a.example"


@pytest.mark.parametrize(
    "url",
    ["", "a.example", "//a.example", "http:a.example", "http:///a", "http://", "ftp://a.example",
     "file:///etc/passwd", "javascript:alert(1)", "http://u@a.example", "http://u:p@a.example",
     "http://a.example\\@b.example", "http://a.example@b.example@c.example", " http://a.example",
     "http://a.example\n", "http://a.ex\tample", "http://a.example:", "http://a.example:0",
     "http://a.example:080", "http://a.example:65536", "http://a.example:80:80",
     "http://a.example?@b.example", "http://a.example#@b.example/", "http://2130706433",
     "http://0x7f.1", "http://0177.0.0.1", "http://127.1", "http://a%2eexample", "http://a..b",
     "http://ex\u0430mple.com", "http://\uff41.example", "http://\u24d0.example", "http://[::1",
     "http://[fe80::1%25eth0]/", "http://a_b.example", "http://-a.example", "h" * 9000],
)  # fmt: skip
def test_a_url_that_is_read_in_two_ways_has_no_host(url: str) -> None:
    for name in ("host", "port", "scheme"):
        with pytest.raises(AddressInvalid):
            call(name, url)


def test_an_error_about_a_url_holds_no_more_than_its_host() -> None:
    for url in ("http://ann:hunter2@a.example/", "http://a.example:0/hunter2", "x:hunter2"):
        with pytest.raises(AddressInvalid) as raised:
            call("host", url)
        assert "hunter2" not in str(raised.value)


def test_a_url_that_is_spelled_anew_may_have_anything_after_its_authority() -> None:
    assert split_url("http://a.example?@b", respelled=True).host == "a.example"


def test_hosts_in_a_list() -> None:
    hosts = ["a.example", "*.b.example", "127.0.0.1"]
    for name in ("a.example", "A.Example.", "x.b.example", "x.y.b.example", "127.0.0.1"):
        assert call("host_in", name, hosts) is True
    for name in ("x.a.example", "b.example", "xb.example", "127.0.0.2"):
        assert call("host_in", name, hosts) is False
    assert call("host_in", "anything.example", ["*"]) is True
    with pytest.raises(ValueError, match="list of texts"):
        call("host_in", "a.example", "a.example")


@pytest.mark.parametrize(
    ("host", "public"),
    [(PUBLIC, True), ("8.8.8.8", True), ("2606:2800:220:1::1", True), ("[2606:2800::1]", True),
     ("127.0.0.1", False), ("10.1.2.3", False), ("169.254.169.254", False), ("0.0.0.0", False),  # noqa: S104 - to be refused
     ("100.100.100.200", False), ("::1", False), ("::ffff:127.0.0.1", False),
     ("64:ff9b::7f00:1", False), ("2002:7f00:1::1", False), ("fd00::1", False),
     ("localhost", False), ("a.localhost", False), ("printer", False), ("db.internal", False),
     ("metadata.google.internal", False), ("x.local.", False)],
)  # fmt: skip
def test_public_without_asking_anybody(host: str, public: bool) -> None:
    def nobody(host: str, port: int) -> Sequence[str]:
        raise AssertionError(host)

    with surroundings(resolver=nobody):
        assert call("public_host", host) is public


@pytest.mark.parametrize("host", ["127.1", "2130706433", "0x7f000001", "017700000001", "", "a b"])
def test_a_host_that_is_read_in_two_ways_is_none(host: str) -> None:
    with pytest.raises(AddressInvalid):
        call("public_host", host)


def test_a_name_is_public_where_all_its_addresses_are() -> None:
    answers = {
        "a.example": [PUBLIC],
        "both.example": [PUBLIC, "10.0.0.1"],
        "odd.example": ["010.0.0.1"],
        "empty.example": [],
        "many.example": [f"93.184.216.{n}" for n in range(33)],
    }
    with surroundings(resolver=lambda host, port: answers[host]):
        assert call("public_host", "a.example") is True
        assert call("public_host", "both.example") is False
        assert call("public_host", "odd.example") is False
        with pytest.raises(OSError, match="no address"):
            call("public_host", "empty.example")
        with pytest.raises(AddressInvalid, match="33 addresses"):
            call("public_host", "many.example")
        with pytest.raises(KeyError):
            call("public_host", "unknown.example")
    assert why_not_public_host("both.example", 80, lambda *_: answers["both.example"]) is not None


def test_a_resolver_is_waited_for_so_long_and_no_longer() -> None:
    let_go = threading.Event()

    def hangs(host: str, port: int) -> Sequence[str]:
        let_go.wait()
        return [PUBLIC]

    def gone(host: str, port: int) -> Sequence[str]:
        raise socket.gaierror("no such name")

    try:
        slow = bounded(hangs, seconds=0.01, at_once=2)
        for _ in range(2):
            with pytest.raises(TimeoutError, match="not resolved within"):
                slow("a.example", 443)
        with pytest.raises(OSError, match="2 names are being resolved"):
            slow("a.example", 443)
    finally:
        let_go.set()
    with pytest.raises(socket.gaierror):
        bounded(gone)("a.example", 443)
    assert bounded(lambda host, port: [PUBLIC])("a.example", 443) == [PUBLIC]


def test_names_in_other_letters_need_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "idna")
    assert call("host", "http://plain.example/") == "plain.example"
    for name in ("bücher.example", "xn--bcher-kva.example"):
        with pytest.raises(AddressInvalid, match=r"rollcage\[idna\]"):
            call("host", f"http://{name}/")


# --- texts and commands --------------------------------------------------------------------------


def test_texts() -> None:
    assert call("glob", "write_file", "write_*") is True
    assert call("glob", "Write_file", "write_*") is False
    assert call("glob", "a/b\nc", "a*[c-d]") is True
    assert call("lower", "ÀB") == "àb"
    assert call("lower", "\u212aim") == "\u212aim"
    assert call("trim", "\n a b\u00a0") == "a b"


@pytest.mark.parametrize("name", ["glob", "lower", "trim", "command", "host", "public_host"])
@pytest.mark.parametrize("value", [None, 1, True, ["x"], {"x": 1}, b"x", "x" * (MOST_TEXT + 1)])
def test_a_text_is_wanted_and_not_any_length_of_it(name: str, value: Any) -> None:
    more = ("*",) if name == "glob" else ()
    with pytest.raises(ValueError, match="takes"):
        call(name, value, *more)


def test_a_pattern_of_many_stars_takes_no_longer() -> None:
    assert call("glob", "a" * 50_000, "*a" * 30 + "*b") is False


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ls", ["ls"]),
        ("  ls -la  src/app.py ", ["ls", "-la", "src/app.py"]),
        ("grep 'a; rm -rf /' \"b c\"", ["grep", "a; rm -rf /", "b c"]),
        ("python -m pkg --key=value", ["python", "-m", "pkg", "--key=value"]),
        ("cat résumé.md a''b", ["cat", "résumé.md", "ab"]),
    ],
)
def test_the_words_of_a_simple_command(text: str, words: list[str]) -> None:
    assert call("command", text) == words


@pytest.mark.parametrize(
    "text",
    ["", " ", "ls; rm x", "ls & rm x", "ls && rm x", "ls | sh", "ls > x", "ls < x", "ls $(x)",
     "ls `x`", "ls $HOME", 'ls "$HOME"', 'ls "`x`"', 'ls "\\""', "ls \\; x", "ls *", "ls ?",
     "ls [a]", "ls {a,b}", "ls ~", "ls # x", "!ls", "ls !$", "(ls)", "A=1 ls", "=ls", "ls =cat",
     "''", "'ls", 'ls "', "ls\nrm x", "ls\rrm x", "ls\x00", "ls\u200b", "ls\u2028x",
     "ls\u00a0x", "x " * 5000],
)  # fmt: skip
def test_what_a_shell_makes_more_of_is_no_simple_command(text: str) -> None:
    with pytest.raises(ValueError, match=r"command"):
        call("command", text)


# --- SQL -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "dialect"),
    [
        ("select * from t where a = 'x; drop table t' limit ?", "sqlite"),
        ("SELECT count(*), date_trunc('day', d), x::text FROM a JOIN b USING (id)", "postgres"),
        ("SELECT a FROM t WHERE x ILIKE '%y%' GROUP BY 1 HAVING count(*) > 1;", "postgres"),
        ("with recursive a as (select 1 union all select 2) select * from a", "postgres"),
        ("(select 1)", "sqlite"),
        ("select `a b`, if(a, 1, 2), year(d), '/* x */' from t", "mysql"),
    ],
)  # fmt: skip
def test_a_statement_that_only_reads(text: str, dialect: str) -> None:
    assert call("sql_reads_only", text, dialect) is True


@pytest.mark.parametrize(
    ("text", "dialect"),
    [
        ("", "sqlite"), ("delete from t", "sqlite"), ("insert into t values (1)", "sqlite"),
        ("select * into x from t", "postgres"), ("select 1 for update", "postgres"),
        ("with a as (delete from t returning *) select * from a", "postgres"),
        ("select pg_sleep(1)", "postgres"), ("select * from pg_read_file('x')", "postgres"),
        ("select load_extension('x')", "sqlite"), ("select nextval('s')", "postgres"),
        ("select 'x'::some_type", "postgres"), ("pragma x", "sqlite"),
        ("copy t to 'x'", "postgres"),
        ("explain analyze delete from t", "postgres"), ("select sleep(5)", "mysql"),
        ("with a as (select 1) update t set x = 1", "sqlite"), ("call x()", "mysql"),
    ],
)  # fmt: skip
def test_a_statement_that_does_something_else(text: str, dialect: str) -> None:
    assert call("sql_reads_only", text, dialect) is False


@pytest.mark.parametrize("text", [
    "select * from pg_shadow", "select * from PG_SHADOW", 'select * from "pg_authid"',
    "select passwd from pg_catalog.pg_authid", "select * from db.pg_catalog.pg_user",
    "select * from t, pg_roles", "select * from t join pg_authid using (oid)",
    "select * from only pg_shadow", "select a.* from pg_shadow* a",
    "select * from (table pg_shadow) x", "select 1 where exists (select from pg_authid)",
    "with a as (select * from pg_shadow) select * from a", "select pg_shadow from t pg_shadow",
    "select * from pg_settings", "select query from pg_stat_activity",
    "select * from pg_file_settings", "select * from pg_hba_file_rules",
    "select * from pg_stats", "select * from pg_largeobject", "select * from pg_toast.pg_toast_1",
    "select * from pg_user_mappings", "select * from information_schema.user_mapping_options",
    "select * from information_schema.enabled_roles", "select * from information_schema",
    "select * from only information_schema.applicable_roles",
    "select * from (table information_schema.role_table_grants) x",
    "select information_schema.enabled_roles.role_name from t",
])  # fmt: skip
def test_the_users_and_settings_of_a_postgres_are_not_read(text: str) -> None:
    assert call("sql_reads_only", text, "postgres") is False


@pytest.mark.parametrize("text", [
    "select * from mysql.user", "select * from `mysql` . `user`", "select * from MySQL.user",
    "select * from performance_schema.accounts", "select * from sys.session",
    "select * from information_schema.user_privileges",
    "select * from INFORMATION_SCHEMA.PROCESSLIST",
])  # fmt: skip
def test_the_users_and_sessions_of_a_mysql_are_not_read(text: str) -> None:
    assert call("sql_reads_only", text, "mysql") is False


@pytest.mark.parametrize("text", [
    "select * from sqlite_dbpage", "select * from 'sqlite_dbpage'", "select * from [sqlite_stmt]",
    "select * from pragma_database_list", "select * from dbstat",
])  # fmt: skip
def test_the_pages_and_settings_of_a_sqlite_are_not_read(text: str) -> None:
    assert call("sql_reads_only", text, "sqlite") is False


@pytest.mark.parametrize(("text", "dialect"), [
    ("select table_name from information_schema.tables", "postgres"),
    ("select * from pg_catalog.pg_class join pg_namespace n on n.oid = relnamespace", "postgres"),
    ("select * from INFORMATION_SCHEMA.COLUMNS where table_name = 'user'", "mysql"),
    ("select user from users", "mysql"), ("select name from mysql_users", "mysql"),
    ("select sql from sqlite_master", "sqlite"), ("select * from temp.sqlite_schema", "sqlite"),
    ("select * from pg_shadow", "sqlite"), ("select * from mysql.user", "postgres"),
])  # fmt: skip
def test_a_databases_description_of_the_users_tables_is_read(text: str, dialect: str) -> None:
    assert call("sql_reads_only", text, dialect) is True


POLICY = "version = 1\n[[rules]]\nid = 'a'\ndecision = 'allow'\n"


def test_the_parser_is_loaded_with_the_policy() -> None:
    code = f"""
import sys
from rollcage_policy import Policy
for when, loaded in (("args.q == 1", False), ("sql_reads_only(args.q, 'sqlite')", True)):
    Policy.parse('''{POLICY}when = "''' + when + '"')
    assert ("sqlglot.dialects.sqlite" in sys.modules) is loaded, when
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_the_parser_there_is_no_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "sqlglot")
    with pytest.raises(PolicyInvalid, match=r"pip install 'rollcage\[sql\]'"):
        Policy.parse(f"{POLICY}when = 'sql_reads_only(args.q, \"sqlite\")'\n")


@pytest.mark.parametrize(
    ("text", "dialect", "says"),
    [
        ("select 1; drop table t", "sqlite", "one statement"),
        ("select 1 -- x", "sqlite", "comments"),
        ("select /*!50000 x */ 1", "mysql", "comments"),
        ("select 1 /* x", "mysql", "parsed"),
        ("select 'a\\' or 1", "mysql", "backslashes"),
        ("select $$a$$", "postgres", "backslashes"),
        ("select 1\x00", "sqlite", "control"),
        ("select from where", "sqlite", "parsed"),
        ("(" * 4000 + "select 1", "sqlite", "parsed"),
        ("select " + "1," * 10_000 + "1", "sqlite", "at most"),
        ("select " + "1," * 6_000 + "1", "sqlite", "parts"),
        ("select 1", "oracle", "mysql, postgres, sqlite"),
        (1, "sqlite", "two texts"),
        ("select 1", None, "two texts"),
    ],
)
def test_a_statement_that_can_not_be_decided(text: Any, dialect: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        call("sql_reads_only", text, dialect)


def test_statements_need_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "sqlglot")
    with pytest.raises(ValueError, match=r"rollcage\[sql\]"):
        call("sql_reads_only", "select 1", "sqlite")


# --- user input ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "named"),
    [("ann@example.com", True), ("ANN@example.com", True), (["ann@example.com", 5], True),
     ("nn@example.com", False), ("eve@example.com", False), (["ann@example.com", "eve"], False),
     ([], False), ("ann@example.com\n", False), ("a\u200bnn@example.com", False)],
)  # fmt: skip
def test_what_the_user_named(value: Any, named: bool) -> None:
    with surroundings(user_input=["Send it to Ann@Example.com, 5 times.", "And to kim."]):
        assert call("named", value) is named


@pytest.mark.parametrize("value", [True, None, {"x": 1}, "\u212aim", ["\u212aim"], [None]])
def test_what_nobody_could_name(value: Any) -> None:
    with surroundings(user_input=Named("to kim")), pytest.raises(ValueError, match="named"):
        call("named", value)


def test_nothing_is_named_without_user_input() -> None:
    with pytest.raises(ValueError, match="user_input="):
        call("named", "ann@example.com")
    with surroundings(user_input=[]):
        assert call("named", "ann@example.com") is False


def test_surroundings_are_those_of_the_innermost() -> None:
    with surroundings(user_input=["ann"], resolver=lambda host, port: [PUBLIC]):
        with surroundings(user_input=["bob"]):
            assert call("named", "bob") is True
            assert call("named", "ann") is False
            assert call("public_host", "a.example") is True
        assert call("named", "ann") is True


# --- secrets -------------------------------------------------------------------------------------

KEY = "AKIA" + "Q" * 16


@pytest.mark.parametrize(
    "value", [KEY, f"use {KEY} here", {"a": [{"b": KEY}]}, [[KEY]], {KEY: 1}, [1, None, KEY]]
)
def test_a_credential_is_found_wherever_it_is(value: Any) -> None:
    assert call("secret", value) is True


@pytest.mark.parametrize("value", ["", "no key", {"a": [1, True, None, 1.5, "b"]}, 1, None])
def test_what_holds_no_credential(value: Any) -> None:
    assert call("secret", value) is False


def test_more_than_can_be_looked_through_raises() -> None:
    deep: Any = KEY
    for _ in range(100):
        deep = [deep]
    with pytest.raises(ValueError, match="64 levels"):
        call("secret", deep)
    with pytest.raises(ValueError, match="characters"):
        call("secret", ["x" * (MOST_TEXT // 2)] * 3)
