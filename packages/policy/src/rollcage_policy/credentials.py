"""Find credentials in texts: API keys, tokens, private keys, passwords next to their name.

The patterns are the compiled expressions of `detect-secrets` (extra `rollcage[secrets]`): nothing
is verified over the network, nothing is configured, no file is read.
This module adds the needs of a recorder, which a scanner of source code does not have: the whole
credential is found, not only its beginning; its position is reported; a hostile text can't make an
expression run away; kinds that are newer than the last release of detect-secrets are added.

Text that merely looks random (hashes, ids, compressed data) is not reported: traces are full of it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from rollcage.errors import DetectorMissing

__all__ = ["Credential", "detect", "hide_secrets", "names_secret"]


class Credential(NamedTuple):
    """A credential in a text.

    Attributes:
        kind: a readable name: "AWS Access Key".
        start: the index of its first character.
        end: the index after its last character.
    """

    kind: str
    start: int
    end: int


class _Pattern(NamedTuple):
    kind: str
    expression: re.Pattern[str]
    grouped: bool  # whether its groups hold the credential, rather than the whole match
    needs: tuple[str, ...] = ()  # each matching text has one of these, in lower case


_SHORTEST: Final = 7  # characters: "pwd=abc"
_WINDOW: Final = 8192  # characters given at once to an expression that may run away,
_OVERLAP: Final = 2048  # and how many characters are repeated, so that nothing hides at an edge
_LONG: Final = 256  # characters of a value that an expression looks at
_GAP: Final = re.compile(r"\s{16,}")  # several of the expressions are cubic in blanks
_RIGHT: Final = re.compile(r"[A-Za-z0-9_\-+/=]*")
_VALUE: Final = re.compile(r"[^\s\"'`,;&(){}\[\]<>]*")
_TOKEN: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")

# Plugins of detect-secrets that are of no use here, or replaced below.
_LEFT_OUT: Final = frozenset({
    "Base64HighEntropyString", "HexHighEntropyString", "IPPublicDetector", "JwtTokenDetector",
    "KeywordDetector", "NpmDetector", "OpenAIDetector", "PrivateKeyDetector",
})  # fmt: skip
# Patterns whose groups hold the credential; the groups of the others are prefixes.
_GROUPED: Final = frozenset({
    "AWSKeyDetector", "BasicAuthDetector", "CloudantDetector", "IbmCloudIamDetector",
    "IbmCosHmacDetector", "SoftlayerDetector",
})  # fmt: skip

# Required words, which spare most texts the slow expressions.
_NEEDS: Final = {
    "ArtifactoryDetector": ("akc", "ap"),
    "CloudantDetector": ("key", "pw", "pass", "token", "cloudant"),
    "IbmCloudIamDetector": ("key", "pwd", "pass", "token"),
    "IbmCosHmacDetector": ("secret",),
    "MailchimpDetector": ("-us",),
    "SlackDetector": ("xox", "hooks.slack"),
    "SoftlayerDetector": ("key", "pwd", "pass", "token", "softlayer"),
    "StripeDetector": ("k_live_",),
    "TelegramBotTokenDetector": (":",),
}

_QUOTE: Final = r"[\"']?"
_LINE: Final = r"-{{4,5}} ?{} [A-Z0-9 ]{{0,40}}PRIVATE KEY[A-Z ]{{0,7}}-{{4,5}}"
_OWN: Final = (
    ("Private Key", rf"{_LINE.format('BEGIN')}[\s\S]*?(?:{_LINE.format('END')}|\Z)"),
    ("Private Key", r"PuTTY-User-Key-File-\d[\s\S]*?(?:Private-MAC: ?[0-9a-f]+|\Z)"),
    ("GitHub Token", r"github_pat_[A-Za-z0-9_]{22,}"),
    ("Anthropic Token", r"sk-ant-[A-Za-z0-9_-]{20,}"),
    ("OpenAI Token", r"sk-(?:proj|svcacct|admin|None)-[A-Za-z0-9_-]{20,}"),
    ("Google API Key", r"AIza[0-9A-Za-z_-]{35}"),
    ("Google OAuth Token", r"ya29\.[0-9A-Za-z_-]{20,}"),
    ("Hugging Face Token", r"hf_[A-Za-z0-9]{30,}"),
    ("NPM tokens", r"npm_[A-Za-z0-9]{36}"),
    ("Slack Token", r"xapp-\d-[A-Za-z0-9-]{10,}"),
    ("Stripe Access Key", r"(?:[rs]k_(?:live|test)|whsec)_[0-9A-Za-z]{16,}"),
    ("HashiCorp Vault Token", r"hv[sb]\.[A-Za-z0-9_-]{20,}"),
    ("DigitalOcean Token", r"do[opr]_v1_[0-9a-f]{64}"),
)
_SCHEME: Final = (
    rf"(?i:authorization{_QUOTE}\s{{0,4}}[:=]\s{{0,4}}{_QUOTE}(?:basic|bearer|token)|\bbearer)"
)
_OWN_GROUPED: Final = (  # kind, expression, and the texts that each match contains
    (
        "Authorization Header",
        _SCHEME + r"\s{1,4}([A-Za-z0-9._~+/=-]{12,})",
        ("authorization", "bearer"),
    ),
    ("NPM tokens", r":_auth(?:Token)?\s{0,4}=\s{0,4}([^\s\"']{8,})", (":_auth",)),
    ("Basic Auth Credentials", r"://[^\s/:@\"'<>]{0,256}:([^\s/@\"'<>]{1,256})@", ("://",)),
)
_SECOND_PART: Final = ".eyJ"  # of a JSON Web Token: each part is JSON in base64
_PARTS: Final = r"\.eyJ[A-Za-z0-9_-]{4,}+(?:\.[A-Za-z0-9_-]*+)?"

_OPENAI: Final = re.compile(r"[A-Za-z0-9]{20}T3BlbkFJ[A-Za-z0-9]{20}")  # in each older OpenAI key
_TOKENS: Final = re.compile(r"[A-Za-z0-9_-]{51,}+")

# Names of credentials: the words of detect-secrets, and words for tokens.
_MORE_WORDS: Final = (
    "access_?token", "auth_?token", "refresh_?token", "bearer_?token", "id_?token", "passphrase",
)  # fmt: skip
_HINTS: Final = (
    "key",
    "pass",
    "pwd",
    "secret",
    "contrase",
    "token",
)  # each name has one
_ASSIGNED: Final = (
    r"(?i:({words})(?!ar))\w{{0,40}}[\"'\]]{{0,2}}(\s{{0,8}}(?:=>|:=|={{1,3}}|:)\s{{0,8}})"
    r"(?:\"([^\"\r\n]{{3,}}+)(?:\"|\Z)|'([^'\r\n]{{3,}}+)(?:'|\Z)"
    r"|([^\s\"'`,;&(){{}}\[\]<>]{{4,64}}+))"  # the beginning of the value: `_VALUE` finds its end
)
_PLACEHOLDER: Final = re.compile(
    r"(?i:true|false|null|none|undefined|required|optional|string|str|\*+|x{3,}"
    r"|[<$%{].*|\[.*\]|.*\.\.\.|…)"
)

_lock: Final = threading.Lock()


_ALL_ALIKE: Final = re.compile(r"\*+|[xX]{3,}")  # masked values
_CLOSING: Final = re.compile(r"[.:!?]*")  # punctuation after a word of prose


class _Detector(NamedTuple):
    theirs: tuple[_Pattern, ...]
    own: tuple[_Pattern, ...]
    own_grouped: tuple[_Pattern, ...]
    parts: re.Pattern[str]
    name: re.Pattern[str]
    assigned: re.Pattern[str]


def _load() -> _Detector:
    with _lock:  # two threads must not import it at the same time
        return _loaded()


@contextlib.contextmanager
def _warnings_stay() -> Iterator[None]:
    """Undo the logging of warnings that detect-secrets turns on for the whole program."""
    shown = warnings.showwarning
    try:
        yield
    finally:
        if warnings.showwarning is not shown:
            logging.captureWarnings(False)


@functools.cache
@_warnings_stay()
def _loaded() -> _Detector:
    try:
        from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
        from detect_secrets.plugins.keyword import DENYLIST
    except ImportError as error:
        raise DetectorMissing(
            "finding credentials needs detect-secrets, which is not installed: "
            "pip install 'rollcage[secrets]'"
        ) from error
    classes: dict[str, Any] = get_mapping_from_secret_type_to_class()
    theirs = tuple(
        _Pattern(kind, expression, each.__name__ in _GROUPED, _NEEDS.get(each.__name__, ()))
        for kind, each in sorted(classes.items())
        if each.__name__ not in _LEFT_OUT
        for expression in getattr(each, "denylist", ())
    )
    words = "|".join((*DENYLIST, *_MORE_WORDS))
    return _Detector(
        theirs,
        tuple(_Pattern(kind, re.compile(each), grouped=False) for kind, each in _OWN),
        tuple(_Pattern(kind, re.compile(each), True, needs) for kind, each, needs in _OWN_GROUPED),
        re.compile(_PARTS),
        re.compile(rf"(?i:(?:{words})(?!ar))"),  # no secretaries
        re.compile(_ASSIGNED.format(words=words)),
    )


def detect(text: str) -> list[Credential]:
    """Return the credentials in a text, in order and without overlaps. Thread-safe.

    Raises:
        DetectorMissing: detect-secrets is not installed.
    """
    detector = _load()
    if len(text) < _SHORTEST:
        return []
    small = text.lower()
    theirs = _needed(detector.theirs, small)
    ends = _Runs(_RIGHT, text)
    found = [_whole(each, text, ends) for each in _theirs(theirs, text)]
    found += (_whole(each, text, ends) for each in _openai(text))
    found += (_whole(each, text, ends) for each in _matches(detector.own, text, 0))
    found += _matches(_needed(detector.own_grouped, small), text, 0)
    found += _web_tokens(detector.parts, text)
    if any(hint in small for hint in _HINTS):
        found += _assigned(detector.assigned, text)
    return _merged(found)


def names_secret(name: str) -> bool:
    """Return whether a field with this name holds a credential: "password", "apiKey".

    Raises:
        DetectorMissing: detect-secrets is not installed.
    """
    return _load().name.search(name.replace("-", "_")) is not None


def hide_secrets(text: str, stand_in: Callable[[str, str], str]) -> str:
    """Return the text with each credential replaced by `stand_in(kind, credential)`.

    Raises:
        DetectorMissing: detect-secrets is not installed.
    """
    kept: list[str] = []
    at = 0
    for kind, start, end in detect(text):
        kept += text[at:start], stand_in(kind, text[start:end])
        at = end
    return "".join([*kept, text[at:]]) if kept else text


def _needed(patterns: tuple[_Pattern, ...], small: str) -> tuple[_Pattern, ...]:
    """Return the patterns that may match a text, given in lower case."""
    return tuple(p for p in patterns if not p.needs or any(need in small for need in p.needs))


def _theirs(patterns: tuple[_Pattern, ...], text: str) -> Iterator[Credential]:
    """Yield the findings of third-party expressions, run on a bounded piece at a time."""
    start = 0
    for end in (*(gap.start() for gap in _GAP.finditer(text)), len(text)):
        for at in range(start, end, _WINDOW - _OVERLAP):
            yield from _matches(patterns, text[at : min(at + _WINDOW, end)], at)
            if at + _WINDOW >= end:
                break
        start = end


def _matches(patterns: tuple[_Pattern, ...], piece: str, at: int) -> Iterator[Credential]:
    for kind, expression, grouped, _ in patterns:
        for match in expression.finditer(piece):
            start, end = match.span()
            if grouped:
                spans = [match.span(n) for n in range(1, expression.groups + 1) if match[n]]
                start, end = max(spans, key=_length, default=(start, end))
            yield Credential(kind, at + start, at + end)


def _web_tokens(parts: re.Pattern[str], text: str) -> Iterator[Credential]:
    """Yield JSON Web Tokens, searched backwards from their second part.

    Each character is read once.
    """
    at = text.find(_SECOND_PART)
    while at >= 0:
        start = at
        while start and text[start - 1] in _TOKEN:
            start -= 1
        match = parts.match(text, at)
        if match is not None and "eyJ" in text[start:at]:
            yield Credential("JSON Web Token", start, match.end())
        at = text.find(_SECOND_PART, at + 1)


def _openai(text: str) -> Iterator[Credential]:
    """Yield OpenAI keys, by the marker in them; each run of their characters is read once."""
    if "T3BlbkFJ" not in text:
        return
    for run in _TOKENS.finditer(text):
        start = text.find("sk-", *run.span())
        marked = None if start < 0 else _OPENAI.search(text, start + 3, run.end())
        if marked is not None:
            yield Credential("OpenAI Token", start, marked.end())


class _Runs:
    """Find the ends of runs of one kind of characters; each run is read only once."""

    __slots__ = ("_end", "_run", "_start", "_text")

    def __init__(self, run: re.Pattern[str], text: str) -> None:
        self._run = run
        self._text = text
        self._start = self._end = -1

    def end(self, at: int) -> int:
        """Return the end of the run that contains a character; `at` itself without a run."""
        if not self._start <= at <= self._end:
            match = self._run.match(self._text, at)
            assert match is not None  # the match may be empty
            self._start, self._end = at, match.end()
        return self._end


def _length(span: tuple[int, int]) -> int:
    return span[1] - span[0]


def _whole(found: Credential, text: str, ends: _Runs) -> Credential:
    """Return the whole token of a finding: many patterns match its first characters only."""
    start, end = found.start, found.end
    while (
        start and text[start - 1] in _TOKEN and text[start] in _TOKEN and found.start - start < 64
    ):
        start -= 1
    if text[end - 1] in _TOKEN:
        end = ends.end(end)
    return Credential(found.kind, start, end)


def _assigned(expression: re.Pattern[str], text: str) -> Iterator[Credential]:
    """Yield values that follow the name of a credential."""
    at = 0
    values = _Runs(_VALUE, text)
    while (match := expression.search(text, at)) is not None:
        group = match.lastindex or 0
        start, end = match.span(group)
        at = match.start() + 1
        if group == 5:
            end = values.end(end)
            if text[end : end + 1] in ("(", "["):  # a call, or an index
                continue
        if _is_placeholder(text, start, end, quoted=group != 5):
            continue
        if match[1].lower() == "pwd" and text[start] in "/.~":
            continue
        if group == 5 and not _like_a_value(text, start, end, match[2]):
            continue
        yield Credential("Secret Keyword", start, end)
        at = end


def _is_placeholder(text: str, start: int, end: int, *, quoted: bool) -> bool:
    """Return whether a value is only a placeholder.

    Quoted values do not overlap. Unquoted ones do, so a long value is not read through each time.
    """
    if quoted or end - start <= _LONG:
        return _PLACEHOLDER.fullmatch(text, start, end) is not None
    if text[start] in "<$%{" or text.endswith("...", start, end):
        return True
    return _ALL_ALIKE.fullmatch(text, start, end) is not None


def _like_a_value(text: str, start: int, end: int, sign: str) -> bool:
    """Return whether an unquoted word is a value: `password=open`, but not `password: none`."""
    if sign == "=":
        return True
    odd = next((at for at in range(start, end) if not text[at].isalpha()), end)
    closing = _CLOSING.match(text, odd, end)
    return closing is not None and closing.end() < end


def _merged(found: list[Credential]) -> list[Credential]:
    """Merge overlapping findings, each under the kind of the finding that begins first."""
    merged: list[Credential] = []
    for each in sorted(found, key=lambda f: (f.start, -f.end)):
        if merged and each.start < merged[-1].end:
            last = merged[-1]
            merged[-1] = last._replace(end=max(last.end, each.end))
        else:
            merged.append(each)
    return merged
