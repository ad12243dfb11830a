"""Functions for conditions besides CEL's own: paths, URLs, commands, SQL, values the user named.

Each returns an answer or raises. An unknown form of a value raises, and a condition that
raises denies: no function guesses, and none mistakes a hostile value for a harmless one. Texts are
bounded (`MOST_TEXT`), and each function takes at most linear time. Error messages quote no value of
an argument except the host of a URL.

CEL itself has `matches` (`args.id.matches("^[a-z]+$")`): a linear-time regular expression that
matches anywhere in the text, unless it begins with `^` and ends with `$`.
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import re
import shlex
import unicodedata
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

from rollcage.trace import STAND_IN

from rollcage_policy import paths
from rollcage_policy.addresses import (
    DEFAULT_PORTS,
    Resolver,
    SplitUrl,
    bounded,
    host_name,
    is_address,
    split_url,
    system_resolver,
    why_not_public_host,
)
from rollcage_policy.named import Named, user_input_here
from rollcage_policy.sql import sql_reads_only

__all__ = ["FUNCTIONS", "MOST_TEXT", "FunctionContext", "surroundings"]

MOST_TEXT: Final = 1_000_000
"""How many characters a function reads, in all the texts of its arguments together."""

_MOST_DEEP: Final = 64
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})


class FunctionContext(NamedTuple):
    """The context of functions, besides their arguments.

    Attributes:
        user_input: the user input of this session; None if the session has none.
        resolver: gives the addresses of a name.
    """

    user_input: Named | None = None
    resolver: Resolver = bounded(system_resolver)


_around: ContextVar[FunctionContext] = ContextVar(
    "rollcage.surroundings",
    default=FunctionContext(),  # noqa: B039 - immutable
)


@contextlib.contextmanager
def surroundings(
    *, user_input: Named | Iterable[str] | None = None, resolver: Resolver | None = None
) -> Generator[None]:
    """Set the context for decisions inside the block; omitted values are inherited.

    Args:
        user_input: one text or several, for `named`.
        resolver: gives the addresses of a name, for `public_host`; it should give up in time.
    """
    before = _around.get()
    if user_input is None:
        named = before.user_input
    else:
        named = user_input if isinstance(user_input, Named) else Named(user_input)
    token = _around.set(FunctionContext(named, before.resolver if resolver is None else resolver))
    try:
        yield
    finally:
        _around.reset(token)


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{what} takes a text, not {_kind(value)}")
    if len(value) > MOST_TEXT:
        raise ValueError(f"{what} takes at most {MOST_TEXT} characters")
    return value


def _kind(value: object) -> str:
    kinds = {list: "a list", dict: "a map", bool: "a bool", type(None): "null"}
    return kinds.get(type(value), "a number" if isinstance(value, int | float) else "this")


# --- paths ---------------------------------------------------------------------------------------


def _within(path: object, root: object, base: object = None) -> bool:
    """Return whether a path, or each path in a list, is a folder or lies below it.

    See `paths.within`. An empty list is refused: it does not say where the tool goes.

    `within(args.path, const.root)`; if the tool resolves relative paths from a folder of its own,
    `within(args.path, const.root, const.root)` names that folder.
    """
    folder = _text(root, "within")
    start = None if base is None else _text(base, "within")
    if isinstance(path, str | list):
        return paths.within(path, folder, start)
    raise ValueError(f"within takes a path, not {_kind(path)}")


# --- URLs ----------------------------------------------------------------------------------------


def _split(url: object, what: str) -> SplitUrl:
    return split_url(_text(url, what))


def _host(url: object) -> str:
    """Return the host of a URL (http, https, ws, wss) in lower case and ASCII.

    An IPv6 address comes without brackets. A URL that clients read in different ways is refused:
    names and passwords, backslashes, blanks, several `@`, numbers that some read as addresses,
    look-alike letters.
    """
    return _split(url, "host").host


def _port(url: object) -> int:
    """Return the port of a URL; the scheme's default if none is given."""
    return _split(url, "port").port


def _scheme(url: object) -> str:
    """Return the scheme of a URL, in lower case."""
    return _split(url, "scheme").scheme


def _one_spelling(host: str) -> str:
    """Return a host in the spelling of `host`; an IPv6 address may come without its brackets."""
    bare = host.count(":") > 1 and not host.startswith("[")
    return host_name(f"[{host}]" if bare else host)


def _public_host(host: object) -> bool:
    """Return whether a host and all its addresses are on the public internet.

    The host comes from `host`, or as written. A name is resolved. Check the name first
    (`host_in(h, const.hosts) && public_host(h)`): a query for a made-up name could leak data by
    itself.
    """
    name = _one_spelling(_text(host, "public_host"))
    port = DEFAULT_PORTS["https"]
    return why_not_public_host(name, port, _around.get().resolver) is None


def _host_in(host: object, hosts: object) -> bool:
    """Return whether a list contains a host: `a.example`, `*.a.example` (all below), or `*`."""
    name = _one_spelling(_text(host, "host_in"))
    if not isinstance(hosts, list) or not all(isinstance(each, str) for each in hosts):
        raise ValueError("host_in takes a list of texts")
    return any(
        each in {"*", name}
        or (each.startswith("*.") and name.endswith(each[1:]) and not is_address(name))
        for each in hosts
    )


# --- texts ---------------------------------------------------------------------------------------


def _glob(text: object, pattern: object) -> bool:
    """Return whether a whole text matches a pattern: `*` anything, `?` one character, `[a-z]`.

    Case counts. `/` and line ends are characters like others.
    """
    return fnmatch.fnmatchcase(_text(text, "glob"), _text(pattern, "glob"))


def _lower(text: object) -> str:
    """Return a text in lower case; letters that only represent others are kept (kelvin sign)."""
    written = _text(text, "lower")
    if written.isascii():
        return written.lower()
    # Letter by letter, so that no letter turns into a look-alike.
    return "".join(c.lower() if unicodedata.is_normalized("NFC", c) else c for c in written)


def _trim(text: object) -> str:
    """Return a text without blanks at its ends."""
    return _text(text, "trim").strip()


# --- commands ------------------------------------------------------------------------------------

_WORD: Final = r"""(?:[\w@%+=:,./-]|'[^']*'|"[^"$`\\!]*")+"""
_SIMPLE: Final = re.compile(rf"[ \t]*{_WORD}(?:[ \t]+{_WORD})*[ \t]*")
_MOST_COMMAND: Final = 8_000


def _command(text: object) -> list[str]:
    """Return the words of one simple command: `command(args.cmd)[0] in ["ls", "cat"]`.

    The program comes first. Everything that a shell would interpret is refused: operators,
    redirections, variables, substitutions, patterns, `~`, escapes, comments, assignments, line
    ends.
    A program that runs others (`env`, `sh`, `xargs`, `find`, `git`) is not recognised: allow only
    programs that don't.
    """
    written = _text(text, "command")
    if len(written) > _MOST_COMMAND:
        raise ValueError(f"command takes at most {_MOST_COMMAND} characters")
    if any(unicodedata.category(each) in _UNSEEN for each in written.replace("\t", " ")):
        raise ValueError("a command with invisible characters")
    if not _SIMPLE.fullmatch(written):
        raise ValueError("not one simple command: a shell would interpret some of it")
    words = shlex.split(written)
    if "=" in words[0] or not words[0] or any(re.match(r"\s*=", each) for each in words):
        raise ValueError("a command that begins with an assignment, or with nothing")
    return words


# --- user input ---------------------------------------------------------------------------------


def _named(value: object) -> bool:
    """Return whether the user input holds a value as a whole word, or each of a list.

    See `Named`.
    """
    texts = user_input_here.get()
    found = _around.get().user_input if texts is None else _named_in(texts)
    if found is None:
        raise ValueError("named: the session has no user input; pass user_input=")
    for each in value if isinstance(value, list) else [value]:
        # A letter that is normalised for the search must not mean something else to the tool.
        if isinstance(each, str) and not unicodedata.is_normalized("NFC", each):
            raise ValueError("named: letters that look like others")
    return found(value)


@functools.lru_cache(maxsize=8)
def _named_in(words: tuple[str, ...]) -> Named:
    return Named(words)


# --- secrets -------------------------------------------------------------------------------------


def _secret(value: object) -> bool:
    """Return whether the detector finds a credential in a value, at any depth.

    Placeholders of credentials count as well: in a session with `DetectedSecrets` in its stages,
    conditions see only these. It needs `rollcage[secrets]`.
    """
    from rollcage_policy.credentials import detect

    left = MOST_TEXT
    for text in _texts(value, 0):
        left -= len(text)
        if left < 0:
            raise ValueError(f"secret takes at most {MOST_TEXT} characters")
        if STAND_IN.search(text) or detect(text):
            return True
    return False


def _texts(value: object, deep: int) -> Iterator[str]:
    """Yield all texts inside a value, names of members included."""
    if deep > _MOST_DEEP:
        raise ValueError(f"secret takes values of at most {_MOST_DEEP} levels")
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, member in value.items():
            yield from _texts(name, deep)
            yield from _texts(member, deep + 1)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each, deep + 1)


FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "within": _within,
    "host": _host,
    "port": _port,
    "scheme": _scheme,
    "host_in": _host_in,
    "public_host": _public_host,
    "glob": _glob,
    "lower": _lower,
    "trim": _trim,
    "command": _command,
    "sql_reads_only": sql_reads_only,
    "named": _named,
    "secret": _secret,
}
"""The functions, by the names that conditions use."""
