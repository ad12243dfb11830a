"""Compare a body's actions with its tool's declaration, by Python's audit events (PEP 578).

Defence in depth, not a sandbox: it sees the events of Python's own functions, in the context of a
body. It does not see native code, threads that were started without the context, and other
processes.
"""

# Audit events carry texts, bytes and descriptors, and each call counts here.
# ruff: noqa: PTH109, PTH117, PTH118

from __future__ import annotations

import os
import socket
import sys
import threading
import types
from collections.abc import Callable
from typing import Any, Final, Literal, TypeVar, cast
from urllib.parse import parse_qs, unquote

from rollcage.errors import PermissionUndeclared

from rollcage_policy.grants import Access, Grants
from rollcage_policy.watched_paths import (
    CWD,
    address_of,
    installed,
    open_directories,
    place_of,
    text_of,
)

__all__ = ["Watch", "calls_body", "install"]

F = TypeVar("F", bound=Callable[..., Any])

_MOST: Final = 64  # different permissions that are reported of one step
_HARMLESS: Final = frozenset({os.devnull, "/dev/random", "/dev/urandom", "/dev/zero"})
_IMPORTER: Final = "<frozen importlib._bootstrap_external>"
_bodies: Final[set[types.CodeType]] = set()  # of the functions that call bodies
_HANDLE_ONLY: Final = getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_PATH", 0)
_CREATES: Final = os.O_CREAT | os.O_TRUNC | os.O_APPEND
_ACCESS: Final = os.O_RDONLY | os.O_WRONLY | os.O_RDWR


def calls_body(function: F) -> F:
    """Mark a function of Rollcage's that calls bodies: actions under it are the body's own.

    It is known by its code, whatever its name; so are the functions that are defined in it.
    """
    codes: list[types.CodeType] = [cast("Any", function).__code__]
    while codes:
        code = codes.pop()
        _bodies.add(code)
        codes.extend(each for each in code.co_consts if isinstance(each, types.CodeType))
    return function


class _Local(threading.local):
    looking = False  # a look-up by the watch itself is not the body's
    directory: tuple[Watch, int] | None = None  # see `_announced`


_local: Final = _Local()


class Watch:
    """One body of a tool that declares its permissions.

    Args:
        tool: its name.
        grants: its declared permissions.
        enforce: `"report"` or `"strict"`.

    Attributes:
        found: the undeclared permissions that the body needed, in order, each once.
        is_strict: whether undeclared uses are refused.
    """

    def __init__(self, tool: str, grants: Grants, enforce: Literal["report", "strict"]) -> None:
        self.found: list[str] = []
        self.grants = grants
        self._tool = tool
        self.is_strict = enforce == "strict"
        self._addresses: dict[str, frozenset[str]] = {}  # by name, as this watch looked them up
        self._asked: set[str] = set()  # names that the body has looked up

    def undeclared(self, needs: str) -> None:
        """Note an undeclared permission; strict: refuse its use."""
        if _is_none_of_its_own():
            return
        needs = needs.encode("utf-8", "backslashreplace").decode()
        if needs not in self.found and len(self.found) < _MOST:
            self.found.append(needs)
        if self.is_strict:
            raise PermissionUndeclared(
                f"{self._tool} does not declare the permission {needs}, so this was refused", needs
            )

    # --- files -----------------------------------------------------------------------------------

    def path(self, access: Access, name: Any, directory: int = CWD, *, follow: bool = True) -> None:
        """Check a path before it is read or changed; `follow` its last part if that is a link."""
        if self.grants.covers_any_path(access):
            return
        where = place_of(name, directory, follow=follow)
        if where is None:
            self.undeclared(f"fs:{access}:<relative to a descriptor>/{text_of(name)}")
        else:
            self._at(access, where)

    def _at(self, access: Access, where: str) -> None:
        if where in _HARMLESS or self.grants.covers_path(access, where):
            return
        if access == "read" and where.startswith(installed()):
            return
        self.undeclared(f"fs:{access}:{where}")

    def opened(self, name: Any, mode: Any, flags: int) -> None:
        """Check a file before it is opened."""
        announced, _local.directory = _local.directory, None
        if isinstance(name, int):
            return  # it is open already
        kind = flags & _ACCESS
        writes = kind in (os.O_WRONLY, os.O_RDWR) or bool(flags & _CREATES)
        if not writes and flags & _HANDLE_ONLY:
            return  # a directory, as a base for other paths; its listing is a separate event
        accesses: list[Access] = []
        if kind in (os.O_RDONLY, os.O_RDWR):
            accesses.append("read")
        if writes:
            accesses.append("write")
        if mode is None and not os.path.isabs(text := text_of(name)):
            directory = announced[1] if announced is not None and announced[0] is self else None
            self._relative(accesses, text, directory, creates=bool(flags & os.O_CREAT))
            return
        for access in accesses:
            self.path(access, name)

    def _relative(
        self, accesses: list[Access], name: str, directory: int | None, *, creates: bool
    ) -> None:
        """Check a relative path of `os.open`, which does not announce its `dir_fd`.

        Any open directory may be the base. If nothing of that name exists, and nothing is created,
        nothing can happen.
        """
        accesses = [each for each in accesses if not self.grants.covers_any_path(each)]
        if not accesses:
            return
        if directory is not None:
            for access in accesses:
                self.path(access, name, directory)
            return
        for base in (os.getcwd(), *open_directories()):
            where = os.path.join(base, name)
            if not creates and not os.path.lexists(where):
                continue
            for access in accesses:
                self._at(access, os.path.realpath(where))

    def database(self, name: Any) -> None:
        """Check a file before SQLite opens it in native code."""
        text = text_of(name)
        if not text.startswith("file:"):
            if text not in ("", ":memory:"):
                self.path("read", text)
                self.path("write", text)
            return
        path, _, query = text.removeprefix("file:").partition("#")[0].partition("?")
        options = parse_qs(query)
        path = unquote(path)
        if path.startswith("//"):
            path = "/" + path[2:].partition("/")[2]
        if "memory" in options.get("mode", ()) or path in ("", ":memory:"):
            return
        self.path("read", path)
        if options.get("mode") != ["ro"]:
            self.path("write", path)

    # --- the network -----------------------------------------------------------------------------

    def lookup(self, host: Any) -> None:
        """Check a host before its addresses are looked up."""
        name = text_of(host).lower().rstrip(".") if host else ""
        if not name or address_of(name) is not None:
            return  # no name: nothing is looked up
        if self.grants.covers_name(name):
            self._asked.add(name)
        else:
            self.undeclared(f"net:{name}")

    def reached(self, place: Any) -> None:
        """Check an address before a connection, a bind or a send."""
        if isinstance(place, str | bytes):
            path = text_of(place)
            if path.startswith("\0"):
                path = "@" + path[1:]  # Linux: an abstract name, without a file
            where = path if path.startswith("@") else os.path.realpath(path)
            if not self.grants.covers_socket(where):
                self.undeclared(f"net:unix:{where}")
        elif isinstance(place, tuple) and len(place) >= 2 and isinstance(place[0], str | bytes):
            self._host_port(text_of(place[0]), place[1])
        elif self.grants.hosts is not None:
            self.undeclared(f"net:{place!r}")

    def _host_port(self, host: str, port: Any) -> None:
        hosts = self.grants.hosts
        if hosts is None:
            return
        able = [each for each in hosts if each.port in (None, port)]
        address = address_of(host)
        if address is None:
            name = host.lower().rstrip(".")
            if any(each.is_called(name) for each in able):
                return
        elif any(each.holds(address) for each in able):
            return
        else:
            asked = [name for name in self._asked if any(each.is_called(name) for each in able)]
            named = [e.name for e in able if e.network is None and "*" not in e.name]
            if any(str(address) in self._addresses_of(name) for name in (*asked, *named)):
                return
        shown = f"[{host}]" if ":" in host else host or "0.0.0.0"  # noqa: S104 - bound to it
        self.undeclared(f"net:{shown}:{port}")

    def _addresses_of(self, name: str) -> frozenset[str]:
        """Return the addresses of a declared name: a connection announces only its address."""
        found = self._addresses.get(name)
        if found is None:
            try:
                places = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
            except (OSError, UnicodeError):
                places = []
            each = (address_of(str(place[4][0])) for place in places)
            found = self._addresses[name] = frozenset(map(str, each))
        return found

    # --- processes -------------------------------------------------------------------------------

    def program(self, name: Any) -> None:
        """Check a program before it runs, or native code before it is loaded."""
        program = text_of(name)
        if not self.grants.covers_program(program):
            self.undeclared(f"process:{program}")


def _announced(watch: Watch, fd: Any) -> None:
    """Note the directory that a body announces for the next relative path in this thread."""
    _local.directory = (watch, fd) if isinstance(fd, int) else None


# --- the events ----------------------------------------------------------------------------------


def _popen(watch: Watch, executable: Any, args: Any, *_: Any) -> None:
    first = args if isinstance(args, str | bytes) or not args else args[0]
    watch.program(executable or first)


def _library(watch: Watch, name: Any) -> None:
    if name is not None:  # None: this very program
        watch.program(name)


def _named(watch: Watch, host: Any) -> None:
    if text_of(host) != socket.gethostname():  # mail clients ask for it to introduce themselves
        watch.lookup(host)


def _sent(watch: Watch, _: Any, place: Any) -> None:
    if place is not None:  # None: the connected address
        watch.reached(place)


def _renamed(watch: Watch, source: Any, target: Any, at: int = CWD, to: int = CWD) -> None:
    watch.path("write", source, at, follow=False)
    watch.path("write", target, to, follow=False)


def _changed(watch: Watch, name: Any, *rest: Any) -> None:
    """Check a change of a file's length, mode, owner, times or attributes.

    A descriptor was checked when it was opened.
    """
    at = rest[-1] if rest and type(rest[-1]) is int else CWD
    watch.path("write", name, at)


def _shortened(watch: Watch, name: Any, _: Any) -> None:
    if not isinstance(name, int):  # otherwise checked when it was opened for writing
        watch.path("write", name)


def _attributed(watch: Watch, name: Any, *_: Any) -> None:
    watch.path("write", name)


def _removed(watch: Watch, name: Any, at: int = CWD) -> None:
    watch.path("write", name, at, follow=False)


def _run(name: str) -> Callable[..., None]:
    return lambda watch, *_: watch.program(name)


_EVENTS: Final[dict[str, Callable[..., None]]] = {
    "rollcage.dir_fd": _announced,
    "open": Watch.opened,
    "os.listdir": lambda w, name=None: w.path("read", "." if name is None else name),
    "os.scandir": lambda w, name=None: w.path("read", "." if name is None else name),
    "os.remove": _removed,
    "os.rmdir": _removed,
    "os.mkdir": lambda w, name, _mode, at=CWD: w.path("write", name, at, follow=False),
    "os.rename": _renamed,
    "os.link": _renamed,
    "os.symlink": lambda w, _to, name, at=CWD: w.path("write", name, at, follow=False),
    "os.truncate": _shortened,
    "os.chmod": _changed,
    "os.chown": _changed,
    "os.utime": _changed,
    "os.chflags": _attributed,
    "os.getxattr": lambda w, name, *_: w.path("read", name),
    "os.listxattr": lambda w, name: w.path("read", "." if name is None else name),
    "os.setxattr": _attributed,
    "os.removexattr": _attributed,
    "sqlite3.connect": Watch.database,
    "sqlite3.load_extension": lambda w, _, name: w.program(name),
    "socket.getaddrinfo": lambda w, host, *_: w.lookup(host),
    "socket.gethostbyname": lambda w, host: w.lookup(host),
    "socket.gethostbyaddr": _named,
    "socket.connect": _sent,
    "socket.bind": _sent,
    "socket.sendto": _sent,
    "socket.sendmsg": _sent,
    "subprocess.Popen": _popen,
    "os.system": _run("sh"),
    "os.exec": lambda w, path, *_: w.program(path),
    "os.posix_spawn": lambda w, path, *_: w.program(path),
    "os.spawn": lambda w, _mode, path, *_: w.program(path),
    "os.startfile": lambda w, path, *_: w.program(path),
    "os.fork": _run("fork"),
    "os.forkpty": _run("fork"),
    "os.kill": _run("kill"),
    "os.killpg": _run("kill"),
    "ctypes.dlopen": _library,
}


_installing: Final = threading.Lock()
_installed: Final = threading.Event()


def install(watched: Callable[[], Watch | None]) -> None:
    """Listen to the audit events of this process, from now on: a hook can't be removed.

    `watched` returns the watch of the body in the current context.
    """

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event in _EVENTS and not _local.looking:
            watch = watched()
            if watch is not None:
                _heard(watch, event, args)

    with _installing:
        if not _installed.is_set():
            sys.addaudithook(hook)
            _installed.set()


def _heard(watch: Watch, event: str, args: tuple[Any, ...]) -> None:
    """Compare an announced event with the declaration."""
    _local.looking = True
    try:
        _EVENTS[event](watch, *args)
    except PermissionUndeclared:
        raise
    except Exception as error:  # noqa: BLE001 - what can't be decided is not allowed
        watch.undeclared(f"{event}: {type(error).__name__}")
    finally:
        _local.looking = False


# --- the source of an event ----------------------------------------------------------------------


def _is_none_of_its_own() -> bool:
    """Return whether the import system, or Rollcage itself, acts while a body runs."""
    frame: types.FrameType | None = sys._getframe(1)  # noqa: SLF001 - there is no other way
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    near = 4  # calls between the traceback's reader of sources, and the event
    if frame is not None and frame.f_code.co_filename == _IMPORTER:
        return True
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if near and module == "linecache":
            return True
        near = max(near - 1, 0)
        if module == "rollcage" or str(module).startswith("rollcage."):
            return frame.f_code not in _bodies
        frame = frame.f_back
    return False
