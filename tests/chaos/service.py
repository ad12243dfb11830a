"""A service over real sockets, in a process of its own, with a namespace for each run.

`POST /NAMESPACE/items` makes an item, once for each `Idempotency-Key`; `DELETE` of its address
takes it away, `PUT` changes it. Requests are served one after the other: whoever got an answer
knows that all that came before it is dealt with, requests of killed clients included.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import multiprocessing
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, HTTPServer
from multiprocessing.connection import Connection
from typing import Any, Final

ITEMS: Final = "/items"


class Namespace:
    """What the service keeps for one run."""

    def __init__(self) -> None:
        self.items: dict[str, str] = {}  # by address
        self.made: dict[str, list[str]] = {}  # by idempotency key: all that it has ever made
        self.fault = ""  # of the next POST of an item


class _Service(HTTPServer):
    request_queue_size = 256

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.namespaces: dict[str, Namespace] = {}
        self.numbers = 0

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed while it was answered is no error here."""


class _Handler(BaseHTTPRequestHandler):
    @property
    def _service(self) -> _Service:
        assert isinstance(self.server, _Service)
        return self.server

    @property
    def _namespace(self) -> Namespace:
        return self._service.namespaces.setdefault(self.path.split("/")[1], Namespace())

    def _answer(self, status: int, body: bytes = b"", location: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if location:
            self.send_header("Location", location)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        kept = self._namespace
        self._answer(200, json.dumps({"items": kept.items, "made": kept.made}).encode())

    def do_POST(self) -> None:
        length = int(self.headers.get("content-length", 0))
        body = self.rfile.read(length).decode()
        kept = self._namespace
        if len(body) < length:
            return  # whoever sent it was killed in the middle
        if self.path.endswith("/fault"):
            kept.fault = body
            self._answer(204)
            return
        fault, kept.fault = kept.fault, ""
        key = self.headers.get("idempotency-key", "")
        made = kept.made.setdefault(key, []) if key else []
        if fault in ("refused", "lost"):
            if fault == "refused":
                self._answer(500)
            return
        if not made:
            self._service.numbers += 1
            made.append(f"/{self.path.split('/')[1]}{ITEMS}/{self._service.numbers}")
            kept.items[made[-1]] = body
        if fault == "broken":
            self._answer(500)
        elif fault != "silent":
            self._answer(201, location=made[-1])

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
        self._namespace.items[self.path] = body
        self._answer(204)

    def do_DELETE(self) -> None:
        gone = self._namespace.items.pop(self.path, None)
        self._answer(404 if gone is None else 204)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name it has there
        pass


def _serve(port: Connection) -> None:
    with _Service() as service:
        port.send(service.server_port)
        service.serve_forever(poll_interval=3600)


@contextlib.contextmanager
def serving() -> Generator[int]:
    """The port of a service that runs as long as the block."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=_serve, args=(there,), daemon=True)
    process.start()
    try:
        yield here.recv()
    finally:
        process.kill()
        process.join()


def asked(port: int, namespace: str) -> dict[str, Any]:
    """The items of a namespace, and what each idempotency key has made."""
    return json.loads(_request(port, "GET", f"/{namespace}"))  # type: ignore[no-any-return] # JSON


def post(port: int, namespace: str, body: str) -> None:
    """Make an item."""
    _request(port, "POST", f"/{namespace}{ITEMS}", body)


def change(port: int, address: str, body: str) -> None:
    """Change an item."""
    _request(port, "PUT", address, body)


def remove(port: int, address: str) -> None:
    """Take an item away."""
    _request(port, "DELETE", address)


def arm(port: int, namespace: str, fault: str) -> None:
    """Let the next item's POST fail: `refused` or `lost` before, `broken` or `silent` behind it."""
    _request(port, "POST", f"/{namespace}/fault", fault)


def _request(port: int, method: str, path: str, body: str | None = None) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body)
        return connection.getresponse().read()
    finally:
        connection.close()
