"""A small service on loopback, and an OpenAPI document of it."""

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

PETS: Any = {
    "openapi": "3.0.3",
    "info": {"title": "Pets", "version": "1"},
    "servers": [{"url": "https://pets.example.org/v1"}],
    "paths": {
        "/pets": {
            "get": {
                "operationId": "listPets",
                "summary": "List pets",
                "parameters": [
                    {"name": "limit", "in": "query", "schema": {"type": "integer", "maximum": 50}},
                    {
                        "name": "tags",
                        "in": "query",
                        "schema": {"type": "array", "items": {"type": "string"}},
                    },
                    {
                        "name": "ids",
                        "in": "query",
                        "explode": False,
                        "schema": {"type": "array", "items": {"type": "integer"}},
                    },
                    {
                        "name": "where",
                        "in": "query",
                        "style": "deepObject",
                        "schema": {"type": "object"},
                    },
                ],
            },
            "post": {
                "operationId": "addPet",
                "requestBody": {"$ref": "#/components/requestBodies/Pet"},
                "security": [{"key": []}],
            },
        },
        "/pets/{id}": {
            "parameters": [{"$ref": "#/components/parameters/Id"}],
            "get": {"operationId": "getPet"},
            "put": {
                "operationId": "putPet",
                "requestBody": {"$ref": "#/components/requestBodies/Pet"},
            },
            "delete": {
                "operationId": "dropPet",
                "parameters": [
                    {"name": "X-Why", "in": "header", "schema": {"type": "string"}},
                    {"name": "id", "in": "query", "schema": {"type": "string"}},
                ],
            },
        },
        "/photos": {
            "post": {
                "operationId": "addPhoto",
                "requestBody": {"content": {"image/png": {"schema": {"type": "string"}}}},
            }
        },
        "/login": {
            "post": {
                "operationId": "logIn",
                "requestBody": {
                    "content": {
                        "application/x-www-form-urlencoded": {
                            "schema": {"type": "object", "properties": {"user": {"type": "string"}}}
                        }
                    }
                },
                "security": [{"basic": []}, {"token": []}],
            }
        },
    },
    "components": {
        "parameters": {
            "Id": {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
        },
        "requestBodies": {
            "Pet": {
                "required": True,
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Pet"}}},
            }
        },
        "schemas": {
            "Pet": {
                "type": "object",
                "required": ["name"],
                "properties": {
                    "name": {"type": "string", "pattern": "^(a+)+$"},
                    "age": {"type": "integer", "minimum": 0, "exclusiveMinimum": True},
                    "nick": {"type": "string", "nullable": True},
                    "children": {"type": "array", "items": {"$ref": "#/components/schemas/Pet"}},
                },
            }
        },
        "securitySchemes": {
            "key": {"type": "apiKey", "in": "query", "name": "api_key"},
            "basic": {"type": "http", "scheme": "basic"},
            "token": {"type": "http", "scheme": "bearer"},
        },
    },
}


class Pets:
    """Answers requests, and keeps what it was asked.

    Attributes:
        asked: the method, the path with the query, the headers and the body of each request.
        answers: by the beginning of a path, what is answered in place of a pet: a status, headers
            and a body.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, dict[str, str], str]] = []
        self.answers: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.url = ""
        self.pet = json.dumps({"id": 7, "name": "Rex"})


@contextlib.contextmanager
def served_pets() -> Iterator[Pets]:
    """The server, while it runs."""
    own = Pets()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            own.asked.append((self.command, self.path, dict(self.headers), body))
            path = urlsplit(self.path).path
            begins = next((each for each in own.answers if path.startswith(each)), None)
            if self.command == "PUT":
                own.pet = body
            kept = own.pet.encode()
            status, headers, raw = (
                (200, {"Content-Type": "application/json"}, kept)
                if begins is None
                else own.answers[begins]
            )
            if status == 0:  # it ends without an answer
                self.close_connection = True
                return
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(raw))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(raw)

        do_GET = do_POST = do_PUT = do_DELETE = answer  # noqa: N815 - the library's names

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    own.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield own
    server.shutdown()
    thread.join()
    server.server_close()
