"""A model behind a real API: a scripted server of OpenAI's chat completions, on loopback.

An adapter for a framework's own client is tested with that client, over HTTP, without a paid model:
each request is answered with the next `Reply` or `Failure` of a script, plainly or streamed, as
requested.

::

    with OpenAIServer([Reply(tool_calls=[("send", {"text": "a"})]), Reply("all done")]) as server:
        model = ChatOpenAI(model="scripted", base_url=server.url, api_key="none", max_retries=0)
        ...
    assert server.requests[1]["messages"][-1]["role"] == "tool"

Make clients without retries of their own (``max_retries=0``): a retry is one more
request, and takes the next answer of the script. Every failure says ``x-should-retry: false``,
which OpenAI's own library heeds, but others don't.
"""

import contextlib
import json
import socket
import socketserver
import sys
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self, cast

from rollcage_conformance.completions import (
    CREATED,
    Failure,
    Malformed,
    Reply,
    chunks,
    completion,
    error_body,
    parse_request,
)

__all__ = ["Answer", "Failure", "OpenAIServer", "Reply"]

Answer = Callable[[dict[str, Any]], Reply | Failure]
"""Returns the answer to a request, from its body. Requests may come at the same time."""


class OpenAIServer:
    """Serves `answers` at a free port of 127.0.0.1 while its context is open.

    Leaving the context raises AssertionError if there were more requests than answers, or if an
    `Answer` failed, unless another exception is raised. Unused answers are no error.

    Args:
        answers: given one by one, in the order in which requests arrive; or a function, for
            agents that send parallel requests.
    """

    def __init__(self, answers: Sequence[Reply | Failure] | Answer) -> None:
        self._answers = answers if callable(answers) else tuple(answers)
        self._lock = threading.Lock()
        self._requests: list[dict[str, Any]] = []
        self._troubles: list[str] = []
        self._http: _Listener | None = None
        self._port = 0

    @property
    def url(self) -> str:
        """The base URL for a client, up to ``/v1``. It stays when the server has stopped.

        Raises:
            RuntimeError: the server was not started yet.
        """
        if not self._port:
            raise RuntimeError("OpenAIServer has no url before its context is entered")
        return f"http://127.0.0.1:{self._port}/v1"

    @property
    def requests(self) -> tuple[dict[str, Any], ...]:
        """The bodies of all requests for a completion that were well formed, as they arrived."""
        with self._lock:
            return tuple(self._requests)

    def __enter__(self) -> Self:
        if self._port:
            raise RuntimeError("OpenAIServer serves once: make a new one")
        self._http = _Listener(self)
        self._port = self._http.server_port
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        if error is None and self._troubles:
            raise AssertionError("\n".join(self._troubles))

    def stop(self) -> None:
        """Finish the running answers, then refuse connections. It may be called again."""
        http, self._http = self._http, None
        if http is not None:
            http.stop()

    def ask(self, request: dict[str, Any]) -> tuple[int, Reply | Failure]:
        """Return a request's number, from 1, and the answer to it. For the server's threads."""
        with self._lock:
            self._requests.append(request)
            number = len(self._requests)
        if callable(self._answers):
            return number, self._called(self._answers, request, number)
        if number <= len(self._answers):
            return number, self._answers[number - 1]
        problem = (
            f"the script of {len(self._answers)} answers has none for {_shown(request, number)}"
        )
        return number, self.trouble(problem)

    def _called(self, answer: Answer, request: dict[str, Any], number: int) -> Reply | Failure:
        try:
            given = cast("object", answer(request))
        except Exception as error:  # noqa: BLE001 - raised where the context is left
            return self.trouble(f"{error!r} came of the answer to {_shown(request, number)}")
        if isinstance(given, Reply | Failure):
            return given
        return self.trouble(
            f"the answer is {given!r}, not a Reply or Failure, to {_shown(request, number)}"
        )

    def trouble(self, problem: str) -> Failure:
        """Note an error that leaving the context will raise. For the server's threads."""
        with self._lock:
            self._troubles.append(problem)
        return Failure(500, problem)


def _shown(request: dict[str, Any], number: int) -> str:
    last = json.dumps(request["messages"][-1], ensure_ascii=False)
    shown = last if len(last) <= 300 else f"{last[:300]}…"
    return f"request {number}, whose last message is {shown}"


# --- HTTP ----------------------------------------------------------------------------------------


class _Listener(ThreadingHTTPServer):
    """Accepts connections, each handled in a thread of its own, for one request."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, script: OpenAIServer) -> None:
        self.script = script
        self._handling: dict[threading.Thread, socket.socket] = {}
        super().__init__(("127.0.0.1", 0), _Handler)
        # Seconds between two checks for the end, and so the maximal time of stopping.
        serve = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)
        serve.start()
        self._serving = serve

    def server_bind(self) -> None:
        """Bind, without a DNS lookup of this host's name."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", int(self.server_address[1])

    def stop(self) -> None:
        """Accept no more connections; wait for the running answers."""
        self.shutdown()
        self._serving.join()
        self.server_close()
        for thread, connection in list(self._handling.items()):
            if thread is threading.current_thread():
                continue  # an Answer may stop its own server
            with contextlib.suppress(OSError):  # closed meanwhile
                # a connection without a request gets none any more
                connection.shutdown(socket.SHUT_RD)
            thread.join()

    # socketserver waits for its threads only if they are no daemons, so this class does it.

    def process_request(self, request: Any, client_address: Any) -> None:
        """Handle a connection in a thread."""
        arguments = (request, client_address)
        thread = threading.Thread(target=self.process_request_thread, args=arguments, daemon=True)
        self._handling[thread] = request
        thread.start()

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Handle a connection in this thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._handling.pop(threading.current_thread(), None)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - inherited
        """Ignore a client that leaves; report any other error."""
        error = sys.exception()
        if not isinstance(error, ConnectionError):
            self.script.trouble(f"the server failed: {error!r}")


class _Handler(BaseHTTPRequestHandler):
    """One request and its answer. The connection ends with it."""

    protocol_version = "HTTP/1.1"  # a stream in chunks: a client sees whether it was cut
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        """Answer a request for a completion."""
        try:
            data = self.rfile.read(int(self.headers["Content-Length"]))
        except (TypeError, ValueError):
            return self.send_error(411, "the request has no Content-Length")
        if self._path() != "/v1/chat/completions":
            return self._unknown()
        try:
            request = parse_request(data)
        except Malformed as error:
            return self.send_error(400, str(error))
        number, answer = cast("_Listener", self.server).script.ask(request)
        if isinstance(answer, Failure):
            self.send_error(answer.status, answer.message)
        elif request.get("stream"):
            self._stream(answer, list(chunks(answer, request, number)))
        else:
            self._json(200, completion(answer, request, number), cut=answer.cut)
        return None

    def do_GET(self) -> None:
        """List the one model there is."""
        if self._path() != "/v1/models":
            return self._unknown()
        model = {"id": "scripted", "object": "model", "created": CREATED, "owned_by": "rollcage"}
        return self._json(200, {"object": "list", "data": [model]})

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send an error in OpenAI's form, also for errors that http.server finds."""
        failure = Failure(code, message or explain or "the request is malformed")
        self._json(failure.status, error_body(failure))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Log nothing: a test's output is its own."""

    def _path(self) -> str:
        return self.path.partition("?")[0]

    def _unknown(self) -> None:
        known = "POST /v1/chat/completions and GET /v1/models"
        self.send_error(404, f"{self.command} {self._path()} is unknown: there is {known}")

    def _json(self, status: int, body: dict[str, Any], *, cut: bool = False) -> None:
        data = json.dumps(body).encode()
        self._head(status, "application/json", ("Content-Length", str(len(data))))
        self.wfile.write(data[: len(data) // 2] if cut else data)

    def _stream(self, reply: Reply, events: list[dict[str, Any]]) -> None:
        """Send server-sent events, each in an HTTP chunk of its own."""
        self._head(200, "text/event-stream", ("Transfer-Encoding", "chunked"))
        texts = [*map(json.dumps, events), "[DONE]"]
        for text in texts[: len(texts) // 2] if reply.cut else texts:
            data = f"data: {text}\n\n".encode()
            self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        if not reply.cut:
            self.wfile.write(b"0\r\n\r\n")

    def _head(self, status: int, kind: str, length: tuple[str, str]) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header(*length)
        if status >= 400:
            self.send_header("x-should-retry", "false")
        self.send_header("Connection", "close")
        self.end_headers()
