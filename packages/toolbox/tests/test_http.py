"""What the HTTP tools send, take, refuse and undo; all over real loopback servers."""

import contextlib
import gzip
import json
import ssl
import threading
import zlib
from collections.abc import Callable, Generator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpcore
import httpx
import pytest
import trustme
from rollcage import Contract, Session, UnknownOutcome
from rollcage_toolbox.addresses import AddressRefused, Reachable
from rollcage_toolbox.http import Http, HttpFailed, NoAnswer, Request, delete_location
from rollcage_toolbox.http_wire import PinnedTransport


class Service(ThreadingHTTPServer):
    """Keeps what is posted to it, and what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.items: dict[str, str] = {}
        self.stopping = threading.Event()
        self.asked: list[tuple[str, str, dict[str, str]]] = []

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.server_port}"

    def url(self, path: str) -> str:
        return f"http://{self.place}{path}"


BIG = b"x" * 300_000
ANSWERS: dict[str, tuple[int, bytes, dict[str, str]]] = {
    "/text": (200, "é".encode(), {"Content_Type": "text/plain; charset=utf-8", "ETag": "1"}),
    "/binary": (200, b"\xff\xfe\x00", {}),
    "/latin": (200, b"\xe9", {"Content_Type": "text/plain; charset=iso-8859-1"}),
    "/unknown-charset": (200, b"\xe9", {"Content_Type": "text/plain; charset=nothing"}),
    "/gzip": (200, gzip.compress(b"packed"), {"Content_Encoding": "gzip"}),
    "/deflate": (200, zlib.compress(b"packed"), {"Content_Encoding": "deflate"}),
    "/bomb": (200, gzip.compress(b"\0" * 50_000_000), {"Content_Encoding": "gzip"}),
    "/no-gzip": (200, b"plain", {"Content_Encoding": "gzip"}),
    "/half-gzip": (200, gzip.compress(b"x")[:-5], {"Content_Encoding": "gzip"}),
    "/brotli": (200, b"?", {"Content_Encoding": "br"}),
    "/big": (200, BIG, {}),
    "/half": (200, b"12345", {"Content_Length": "10"}),
    "/loop": (302, b"", {"Location": "/loop"}),
    "/elsewhere": (302, b"", {"Location": "http://{place}/text"}),
    "/cookie": (302, b"", {"Location": "/text", "Set_Cookie": "a=b"}),
}


class _Handler(BaseHTTPRequestHandler):
    @property
    def service(self) -> Service:
        assert isinstance(self.server, Service)
        return self.server

    def _answer(self, status: int = 200, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def _asked(self) -> str:
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.service.asked.append((self.command, self.path, headers))
        return self.rfile.read(int(headers.get("content-length", 0))).decode()

    def do_GET(self) -> None:
        self._asked()
        if self.path == "/silent":
            self.close_connection = True
        elif self.path == "/drip":
            self._drip()
        else:
            status, body, headers = ANSWERS.get(self.path, (404, b"nothing", {}))
            place = f"localhost:{self.service.server_port}"
            told = {name: value.replace("{place}", place) for name, value in headers.items()}
            self._answer(status, body, **told)

    def _drip(self) -> None:
        """An answer that never ends, a byte at a time."""
        self.send_response(200)
        self.end_headers()
        with contextlib.suppress(OSError):
            while not self.service.stopping.wait(0.02):
                self.wfile.write(b".")

    def do_POST(self) -> None:
        body = self._asked()
        if self.path == "/silent":
            self.close_connection = True
        elif self.path == "/broken":
            self._answer(500)
        elif self.path == "/refuses":
            self._answer(409, b"no")
        elif self.path == "/redirects":
            self._answer(303, Location="/items/1")
        elif self.path == "/nowhere":
            self._answer(201)
        elif self.path == "/big":
            self._answer(201, BIG, Location="/items/1")
        else:
            name = f"/items/{len(self.service.items) + 1}"
            self.service.items[name] = body
            self._answer(201, Location=name)

    def do_PUT(self) -> None:
        self.service.items[self.path] = self._asked()
        self._answer(204)

    def do_DELETE(self) -> None:
        self._asked()
        if self.path == "/protected":
            self._answer(403)
        else:
            self._answer(204 if self.service.items.pop(self.path, None) is not None else 404)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name it has there
        pass


@contextlib.contextmanager
def serving(server: Service) -> Generator[Service]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.stopping.set()
        server.shutdown()
        thread.join()
        server.server_close()


def contract(tool: Any) -> Contract:
    """What a tool declares."""
    declared: Contract = tool.__rollcage_contract__
    return declared


@pytest.fixture
def service() -> Iterator[Service]:
    with serving(Service()) as server:
        yield server


@pytest.fixture
def client(service: Service) -> Callable[..., Http]:
    def make(**options: Any) -> Http:
        given = {
            "allowed_hosts": [],
            "methods": ["GET", "POST", "PUT", "DELETE"],
            "allow_private": [service.place],
            **options,
        }
        return Http(**given)

    return make


# --- reading -------------------------------------------------------------------------------------


def test_get_gives_status_headers_and_text(client: Callable[..., Http], service: Service) -> None:
    assert client().get(service.url("/text")) == {
        "status": 200,
        "url": service.url("/text"),
        "headers": {"content-type": "text/plain; charset=utf-8", "etag": "1"},
        "text": "é",
    }


@pytest.mark.parametrize(
    ("path", "part", "value"),
    [
        ("/latin", "text", "é"),
        ("/binary", "base64", "//4A"),
        ("/unknown-charset", "base64", "6Q=="),
        ("/gzip", "text", "packed"),
        ("/deflate", "text", "packed"),
        ("/missing", "status", 404),
        ("/cookie", "text", "é"),
    ],
)
def test_what_an_answer_may_be(
    client: Callable[..., Http], service: Service, path: str, part: str, value: object
) -> None:
    assert client().get(service.url(path))[part] == value


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/bomb", "larger than 200000 bytes"),
        ("/big", "larger than 200000 bytes"),
        ("/no-gzip", "packed wrongly"),
        ("/half-gzip", "breaks off"),
        ("/brotli", "not asked for"),
        ("/loop", "more than 5 times"),
    ],
)
def test_answers_that_are_refused(
    client: Callable[..., Http], service: Service, path: str, says: str
) -> None:
    with pytest.raises(HttpFailed, match=says):
        client(max_bytes=200_000).get(service.url(path))


@pytest.mark.parametrize("path", ["/half", "/silent"])
def test_answers_that_break_off(client: Callable[..., Http], service: Service, path: str) -> None:
    with pytest.raises(NoAnswer):
        client().get(service.url(path))


def test_the_whole_of_a_request_has_one_time(client: Callable[..., Http], service: Service) -> None:
    with pytest.raises(NoAnswer, match=r"time for the whole request|timed out"):
        client(timeout=0.3).get(service.url("/drip"))


def test_cookies_are_not_kept(client: Callable[..., Http], service: Service) -> None:
    http = client()
    http.get(service.url("/cookie"))
    assert all("cookie" not in headers for _, _, headers in service.asked)


def test_headers_go_to_the_first_host_only(client: Callable[..., Http], service: Service) -> None:
    http = client(
        allow_private=[service.place, f"localhost:{service.server_port}"],
        credentials={"127.0.0.1": {"Authorization": "Bearer secret"}},
    )
    http.get(service.url("/elsewhere"), headers={"X-Mine": "1"})
    (_, _, first), (_, _, second) = service.asked
    assert (first["authorization"], first["x-mine"]) == ("Bearer secret", "1")
    assert not {"authorization", "x-mine"} & set(second)


def test_credentials_go_over_https_only() -> None:
    http = Http(allowed_hosts=["api.example"], credentials={"api.example": {"Authorization": "x"}})
    with pytest.raises(AddressRefused, match="over https only"):
        http.get("http://api.example/")


@pytest.mark.parametrize(
    "headers",
    [{"Host": "evil"}, {"authorization": "x"}, {"Cookie": "a=b"}, {"Transfer-Encoding": "chunked"},
     {"Proxy-Authorization": "x"}, {"Idempotency-Key": "x"}, {"X Y": "x"}, {"X": "a\r\nB: c"},
     {"X": "é"}, {"": "x"}],
)  # fmt: skip
def test_headers_that_are_refused(
    client: Callable[..., Http], service: Service, headers: dict[str, str]
) -> None:
    with pytest.raises(HttpFailed, match="header"):
        client().get(service.url("/text"), headers=headers)
    assert service.asked == []


def test_proxies_of_the_environment_are_not_used(
    client: Callable[..., Http], service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert client().get(service.url("/text"))["status"] == 200


def test_a_server_that_is_not_there(client: Callable[..., Http]) -> None:
    with serving(Service()) as gone:
        place = gone.place
    with pytest.raises(HttpFailed, match="nothing was sent"):
        client(allow_private=[place]).get(f"http://{place}/")


def test_a_name_that_is_not_there(client: Callable[..., Http]) -> None:
    def nothing(host: str, port: int) -> list[str]:
        raise OSError("no such name")

    for resolver, says in ((nothing, "no such name"), (lambda host, port: [], "no address")):
        with pytest.raises(HttpFailed, match=says):
            client(allowed_hosts=["*"], resolver=resolver).get("http://api.example/")


# --- TLS and redirects between schemes -----------------------------------------------------------


class Loopback(httpcore.NetworkBackend):
    """Connects to one server, whatever the address."""

    def __init__(self, port: int) -> None:
        self.port = port

    def connect_tcp(self, host: str, port: int, *args: Any, **_: Any) -> httpcore.NetworkStream:
        return httpcore.SyncBackend().connect_tcp("127.0.0.1", self.port, 5)


@pytest.fixture
def tls(service: Service) -> ssl.SSLContext:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("api.example").configure_cert(context)
    service.socket = context.wrap_socket(service.socket, server_side=True)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    return trusting


def test_the_name_is_verified_where_the_address_is_pinned(
    service: Service, tls: ssl.SSLContext
) -> None:
    http = Http(
        allowed_hosts=["*"],
        resolver=lambda host, port: ["93.184.216.34"],
        backend=Loopback(service.server_port),
        ssl_context=tls,
        credentials={"API.example": {"X-Key": "k"}},
    )
    assert http.get("https://api.example/text")["text"] == "é"
    assert service.asked[-1][2]["host"] == "api.example"
    assert service.asked[-1][2]["x-key"] == "k"
    with pytest.raises(HttpFailed, match=r"(?i)hostname mismatch"):
        http.get("https://other.example/text")


def test_https_is_not_left_for_http() -> None:
    reachable = Reachable(hosts=["*"])
    secure = reachable.check("https://api.example/a")
    with pytest.raises(AddressRefused, match="from https to http"):
        reachable.follow(secure, "http://api.example/")
    assert reachable.follow(secure, "b").url == "https://api.example/b"
    plain = reachable.check("http://api.example/a")
    assert reachable.follow(plain, "https://api.example/b").scheme == "https"


# --- a transport for one's own client -------------------------------------------------------------


def test_the_transport_serves_a_client_of_ones_own(service: Service) -> None:
    reachable = Reachable(hosts=[], private=[service.place])
    transport = PinnedTransport(reachable, seconds=5)
    with httpx.Client(transport=transport, trust_env=False, follow_redirects=True) as client:
        assert client.get(service.url("/text")).text == "é"
        with pytest.raises(AddressRefused):
            client.get(service.url("/elsewhere"))
        with pytest.raises(httpx.RemoteProtocolError):
            client.get(service.url("/silent"))
        with pytest.raises(httpx.RemoteProtocolError):
            client.get(service.url("/half"))


# --- writing -------------------------------------------------------------------------------------


def test_writes_carry_the_steps_idempotency_key(
    client: Callable[..., Http], service: Service, tmp_path: Path
) -> None:
    http = client()
    with Session("post", store=tmp_path):
        http.post(url=service.url("/items"), json={"a": 1})
        http.put(url=service.url("/items/x"), text="b")
        http.delete(url=service.url("/items/x"))
    keys = [headers["idempotency-key"] for _, _, headers in service.asked]
    assert len(set(keys)) == 3
    assert {len(key) for key in keys} == {64}
    assert service.asked[0][2]["content-type"] == "application/json"
    assert json.loads(service.items["/items/1"]) == {"a": 1}


def test_redirects_of_a_write_are_returned_and_not_followed(
    client: Callable[..., Http], service: Service
) -> None:
    told = client().post(service.url("/redirects"), text="x")
    assert told["status"] == 303
    assert told["headers"]["location"] == service.url("/items/1")
    assert len(service.asked) == 1


def test_a_write_whose_answer_is_too_large_has_happened(
    client: Callable[..., Http], service: Service
) -> None:
    told = client(max_bytes=1000).post(service.url("/big"), text="x")
    assert told["status"] == 201
    assert told["cut"] is True
    assert len(told["text"]) == 1000


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"json": 1, "text": "x"}, "either json or text"),
        ({"text": "x" * 2000}, "at most 1000"),
    ],
)
def test_bodies_that_are_refused(
    client: Callable[..., Http], service: Service, arguments: dict[str, Any], says: str
) -> None:
    with pytest.raises(HttpFailed, match=says):
        client(max_bytes=1000).post(service.url("/items"), **arguments)
    assert service.asked == []


def test_a_write_that_nobody_answers_is_unknown(
    client: Callable[..., Http], service: Service, tmp_path: Path
) -> None:
    http = client()
    with pytest.raises(UnknownOutcome), Session("lost", store=tmp_path):
        http.post(url=service.url("/silent"), text="x")


def test_a_server_error_is_an_error(client: Callable[..., Http], service: Service) -> None:
    with pytest.raises(HttpFailed, match="answered with 500"):
        client().post(service.url("/broken"), text="x")


def test_what_is_idempotent(client: Callable[..., Http]) -> None:
    def idempotent(http: Http) -> list[bool]:
        each = (http.post, http.put, http.delete, http.compensating)
        return [contract(tool).idempotent for tool in each]

    assert idempotent(client()) == [False, True, True, True]
    assert idempotent(client(honours_keys=True)) == [True, True, True, True]


# --- undoing ---------------------------------------------------------------------------------


def test_a_post_is_undone(client: Callable[..., Http], service: Service, tmp_path: Path) -> None:
    http = client(methods=["POST"], compensation={"POST": delete_location})
    with Session("post", store=tmp_path) as session:
        http.post(url=service.url("/items"), text="a")
        http.post(url=service.url("/items"), text="b")
        http.post(url=service.url("/refuses"), text="c")
        http.post(url=service.url("/nowhere"), text="d")
        report = session.undo()
    assert service.items == {}
    assert [(s.name, s.status) for s in report.steps] == [
        ("http_post", "irreversible"),
        ("http_post", "compensated"),
        ("http_post", "compensated"),
        ("http_post", "compensated"),
    ]
    assert [path for method, path, _ in service.asked if method == "DELETE"] == [
        "/items/2",
        "/items/1",
    ]


def test_what_can_be_observed_is_verified(
    client: Callable[..., Http], service: Service, tmp_path: Path
) -> None:
    def before(args: Any) -> dict[str, Any]:
        return {args["url"]: service.items.get(args["url"].removeprefix(f"http://{service.place}"))}

    def put_back(args: Any, result: Any) -> list[Request]:
        return [Request("DELETE", args["url"])]

    http = client(compensation={"PUT": put_back}, observe={"PUT": before})
    with Session("put", store=tmp_path) as session:
        http.put(url=service.url("/items/7"), text="a")
        report = session.undo()
    assert [step.status for step in report.steps] == ["verified"]
    assert service.items == {}


def test_without_a_compensation_a_write_is_irreversible(client: Callable[..., Http]) -> None:
    plain, able = client(), client(compensation={"POST": delete_location})
    for tool, reversible in ((plain.post, False), (able.post, True)):
        assert contract(tool).reversible is reversible


def test_a_compensation_that_is_refused_fails(
    client: Callable[..., Http], service: Service
) -> None:
    http = client()
    assert http.compensating("DELETE", service.url("/items/9"))["status"] == 404
    with pytest.raises(HttpFailed, match="answered with 403"):
        http.compensating("DELETE", service.url("/protected"))
    with pytest.raises(HttpFailed, match="POST takes nothing back"):
        http.compensating("POST", service.url("/items"))


# --- options -------------------------------------------------------------------------------------


def test_an_agent_gets_the_tools_of_its_methods(client: Callable[..., Http]) -> None:
    http = client(methods=["POST", "GET"], name="shop")
    names = [contract(tool).name for tool in http]
    assert names == ["shop_get", "shop_post", "shop_compensate"]
    assert http.tools() == [http.get, http.post]
    assert http.tools(read_only=True) == [http.get]


@pytest.mark.parametrize(
    "options",
    [
        {"methods": ["TRACE"]},
        {"compensation": {"GET": delete_location}},
        {"observe": {"get": dict}},
        {"probe": {"HEAD": dict}},
        {"schemes": ["ftp"]},
        {"allow_private": ["localhost"]},
        {"allow_private": ["localhost:99999"]},
        {"allow_private": "localhost:80"},
        {"allowed_hosts": "api.example"},
        {"allowed_hosts": ["*.*.example"]},
        {"allowed_hosts": ["*example"]},
        {"allowed_hosts": ["127.1"]},
    ],
)
def test_options_that_are_refused(client: Callable[..., Http], options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        client(**options)
