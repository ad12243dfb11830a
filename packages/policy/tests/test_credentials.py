"""`detect`: which credentials are found in a text, where, and what is none."""

import itertools
import re
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from rollcage.errors import DetectorMissing
from rollcage_policy import credentials
from rollcage_policy.credentials import detect, hide_secrets, names_secret

# Made up, and put together here: no scanner of this file is to take them for real ones.
AWS = "AKIA" + "IOSFODNN7EXAMPLE"
GITHUB = "ghp" + "_" + "a1B2" * 9
JWT = ".".join(
    ("eyJ" + "hbGciOiJIUzI1NiJ9", "eyJ" + "zdWIiOiIxMjM0In0", "dozjgNryP4J3jVmNHl0w5N_XgL0")
)
PEM = "-----BEGIN RSA PRIVATE " + "KEY-----\nMIIEow\nIBAAK\n-----END RSA PRIVATE " + "KEY-----"

FOUND = {
    "AWS Access Key": AWS,
    "GitHub Token": GITHUB,
    "a newer token of GitHub": "github_pat" + "_11ABCDEFG0abcdefghijkl_mnopqrs",
    "GitLab Token": "glpat" + "-abcdefghij0123456789",
    "JSON Web Token": JWT,
    "Private Key": PEM,
    "a private key that is cut off": PEM[:60],
    "a private key in JSON": PEM.replace("\n", "\\n"),
    "a PuTTY key": "PuTTY-User-" + "Key-File-3: ssh-ed25519\nabc\nPrivate-MAC: 0f0f0f",
    "Slack Token": "xoxb" + "-123456789012-1234567890123-abcdefABCDEF",
    "Stripe Access Key": "sk" + "_live_" + "4eC39HqLyjWDarjtT1zdp7dcTYooMQauvdEDq54NiTphI7jx",
    "Anthropic Token": "sk-" + "ant-api03-" + "aB3" * 20,
    "OpenAI Token": "sk-" + "proj-" + "aB3" * 20,
    "Google API Key": "AIza" + "SyA1234567890abcdefghijklmnopqrstuv",
    "Hugging Face Token": "hf" + "_" + "aB" * 17,
    "SendGrid API Key": "SG." + "a" * 22 + "." + "b" * 43,
    "Azure Storage Account access key": "AccountKey=" + "a" * 86 + "==",
    "Telegram Bot Token": "123456789:" + "AAbb" * 8 + "AAb",
}

BENIGN = (
    "",
    "a.txt",
    "The quick brown fox jumps over the lazy dog.",
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",  # a hash
    "0198c5b2-1111-7abc-8def-0123456789ab",  # an id
    "https://example.com/a:b/c?page=2&next_token=3",
    "the secret of good password hygiene: choose a long one",
    "password: please",
    "PWD=/home/ann OLDPWD=/srv",
    'password = os.environ["PASSWORD"]',
    "password=${DB_PASSWORD} api_key=<your key> secret={{ vault }}",
    "secretary: Ann-Marie2",
    '{"password": null, "secret": ""}',
    "2026-11-21T14:20:38.123456Z",
    "<secret 00112233445566778899aabbccddeeff>",
)


def stood_in(text: str) -> str:
    return hide_secrets(text, lambda kind, _: "<>")


@pytest.mark.parametrize("credential", FOUND.values(), ids=FOUND)
@pytest.mark.parametrize("around", ["{}", "see {} there", "x = '{}'", "a\n{}\nb", '["{}"]'])
def test_a_credential_is_found_as_a_whole(credential: str, around: str) -> None:
    text = around.format(credential)
    shown = stood_in(text)
    assert "<>" in shown
    for length in (12, 24):  # nothing is left of it, neither its beginning nor its end
        assert credential[:length] not in shown
        assert credential[-length:] not in shown


@pytest.mark.parametrize("text", BENIGN)
def test_what_is_none_is_let_alone(text: str) -> None:
    assert detect(text) == []
    assert stood_in(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("password=hunter2 next", "password=<> next"),
        ("password: hunter2", "password: <>"),
        ('{"password": "two words", "x": 1}', '{"password": "<>", "x": 1}'),
        ("DB_PASSWORD='hunter2!'; go", "DB_PASSWORD='<>'; go"),
        ("https://api/?api_key=abcd1234&y=1", "https://api/?api_key=<>&y=1"),
        ("postgres://bob:s3cr3t!@db:5432/x", "postgres://bob:<>@db:5432/x"),
        ("Authorization: Basic dXNlcjpwYXNzd29yZA==", "Authorization: Basic <>"),
        ("curl -H 'Authorization: Bearer abcdef0123456789'", "curl -H 'Authorization: Bearer <>'"),
        (
            "//registry.npmjs.org/:_authToken=npm" + "_abcdefgh1",
            "//registry.npmjs.org/:_authToken=<>",
        ),
        (f"{AWS} and {GITHUB}", "<> and <>"),
        ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG", "aws_secret_access_key = <>"),
        ('the password is "x", its password: "', 'the password is "x", its password: "'),
        ('secret: "never closed', 'secret: "<>'),
    ],
)
def test_only_the_credential_is_taken_out(text: str, shown: str) -> None:
    assert stood_in(text) == shown


def test_each_is_told_with_its_kind_and_place() -> None:
    (found,) = detect(f"key {AWS} end")
    assert found.kind == "AWS Access Key"
    assert (found.start, found.end) == (4, 24)


def test_findings_are_in_order_and_do_not_overlap() -> None:
    found = detect(f'token: "{JWT}" then password="{AWS}" then {GITHUB}')
    assert len(found) == 3
    assert all(one.end <= other.start for one, other in itertools.pairwise(found))


@pytest.mark.parametrize("place", [8_185, 14_000, 16_384, 100_000])
def test_a_long_text_hides_nothing(place: int) -> None:
    text = "x" * place + f" {AWS} " + "y " * 9_000
    assert [f.start for f in detect(text)] == [place + 1]


def test_blanks_hide_nothing() -> None:
    assert stood_in("key" + " " * 4_000 + AWS) == "key" + " " * 4_000 + "<>"


@pytest.mark.parametrize(
    "text",
    [
        "key " + " " * 100_000,
        ("key" + " " * 15) * 6_000,
        "eyJ" * 40_000,
        "/" * 100_000 + ":_authToken",
        'password:"' * 10_000,
        "password" * 10_000,
        "-----BEGIN PRIVATE KEY-----" * 4_000,
        "://a:" * 20_000,
        "AKIA" * 250_000,
        "sk-" * 300_000,
        "sk-" * 150_000 + "T3BlbkFJ" * 60_000,
        "secret:" * 140_000 + "(",
        "secret:" * 140_000 + "...",
        "api_key:$" * 110_000,
        "pwd:/" * 200_000,
        "secret:" * 70_000 + "." * 500_000,
    ],
    ids=lambda text: text[:12],
)
def test_a_hostile_text_comes_to_an_end(text: str) -> None:
    detect(text)  # what is quadratic in it takes minutes


class Counting:
    """An expression that counts the characters which it has looked at."""

    def __init__(self, expression: re.Pattern[str]) -> None:
        self.expression = expression
        self.characters = 0

    def match(self, text: str, at: int) -> re.Match[str] | None:
        found = self.expression.match(text, at)
        self.characters += 1 if found is None else 1 + found.end() - at
        return found


@pytest.mark.parametrize("length", [10_000, 100_000])
@pytest.mark.parametrize(
    ("run", "piece"),
    [("_RIGHT", "AKIA"), ("_RIGHT", "sk-ant-"), ("_RIGHT", "ghp_"), ("_VALUE", "secret:"),
     ("_VALUE", "api_key=$"), ("_VALUE", "pwd:/")],
)  # fmt: skip
def test_no_run_of_characters_is_looked_at_again_and_again(
    monkeypatch: pytest.MonkeyPatch, run: str, piece: str, length: int
) -> None:
    """However many findings are in it: what that costs grows with the text, not with its square."""
    counting = Counting(getattr(credentials, run))
    monkeypatch.setattr(credentials, run, counting)
    detect(piece * (length // len(piece)) + "(")
    assert 0 < counting.characters <= 4 * length


@pytest.mark.parametrize("blanks", ["", " " * 20])
def test_expressions_of_others_get_pieces_of_bounded_length(
    monkeypatch: pytest.MonkeyPatch, blanks: str
) -> None:
    pieces: list[int] = []
    look = credentials._matches

    def looking(patterns: Any, piece: str, at: int) -> Any:
        if patterns and patterns[0] in credentials._load().theirs:
            pieces.append(len(piece))
        return look(patterns, piece, at)

    monkeypatch.setattr(credentials, "_matches", looking)
    text = ("a key and a token " + blanks) * 10_000
    detect(text)
    assert max(pieces) <= credentials._WINDOW
    assert sum(pieces) <= 2 * len(text)


def test_an_older_key_of_openai_is_found_as_a_whole() -> None:
    key = "sk-" + "a1" * 10 + "T3Blbk" + "FJ" + "b2" * 10
    assert stood_in(f"my {key}, yours") == "my <>, yours"
    assert stood_in(f"OPENAI={'x' * 20}-{key}-{'y' * 30_000}.") == "OPENAI=<>."
    assert detect("a1" * 10 + "T3Blbk" + "FJ" + "b2" * 10) == []


def test_a_long_value_is_taken_out_as_a_whole() -> None:
    assert stood_in("password=" + "a:" * 50_000 + " end") == "password=<> end"
    assert stood_in("password=" + "a:" * 50_000 + "(x)").startswith("password=a:")
    assert stood_in("password=" + "$" * 500) == "password=" + "$" * 500
    assert stood_in("password: " + "a" * 500) == "password: " + "a" * 500
    assert stood_in("password: " + "a" * 500 + "1") == "password: <>"


@pytest.mark.parametrize(
    "name",
    ["password", "PASSWORD", "db_password", "apiKey", "api-key", "client_secret", "accessToken"],
)
def test_names_of_credentials(name: str) -> None:
    assert names_secret(name)


@pytest.mark.parametrize("name", ["", "path", "token", "next_token", "key", "secretary", "user"])
def test_other_names(name: str) -> None:
    assert not names_secret(name)


def test_no_word_of_the_library_goes_unheard() -> None:
    from detect_secrets.plugins.keyword import DENYLIST

    assert all(any(hint in word for hint in credentials._HINTS) for word in DENYLIST)


def test_threads_may_begin_at_once() -> None:
    credentials._loaded.cache_clear()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(detect, [f"a {AWS}"] * 64))
    assert all(each == found[0] for each in found)


def test_nothing_is_asked_of_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the network")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    for credential in FOUND.values():
        assert detect(credential)


def test_the_warnings_of_the_program_are_still_shown() -> None:
    program = (
        "import warnings; from rollcage_policy.credentials import detect\n"
        "detect('a'); warnings.warn('hear')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert b"UserWarning: hear" in done.stderr


def test_a_program_that_logs_its_warnings_goes_on_to() -> None:
    program = (
        "import logging, warnings; logging.basicConfig(); logging.captureWarnings(True); "
        "from rollcage_policy.credentials import detect; detect('a'); warnings.warn('hear')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stderr.startswith(b"WARNING:py.warnings:")


def test_without_the_library_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "detect_secrets.plugins.keyword", None)
    credentials._loaded.cache_clear()
    try:
        with pytest.raises(DetectorMissing, match=r"rollcage\[secrets\]") as raised:
            detect("some text")
        assert raised.value.code == "detector_missing"
    finally:
        credentials._loaded.cache_clear()
