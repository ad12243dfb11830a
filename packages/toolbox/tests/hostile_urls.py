"""URLs that must not be followed, each kind beside URLs that must be. Not collected by pytest.

`python packages/toolbox/tests/hostile_urls.py` asks for all of them through the real tool and real
loopback servers, and prints how many got through. An inner server stands for everything that is
not public: whatever address a request is about to connect to off the public internet, it ends
there and is counted.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import IPv4Address, IPv6Address
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote, urlsplit

import httpcore
from rollcage_toolbox.addresses import AddressRefused
from rollcage_toolbox.http import Http

PUBLIC = "93.184.216.34"
PUBLIC6 = "2606:2800:220:1:248:1893:25c8:1946"
INNER = [
    "127.0.0.1", "127.8.8.8", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.0.1",
    "169.254.169.254", "100.100.100.200", "192.0.0.192", "168.63.129.16", "0.0.0.0",  # noqa: S104 - an address to be refused
    "224.0.0.1", "255.255.255.255", "198.18.0.1",
]  # fmt: skip
OUTER = [  # the neighbours of those that are not
    PUBLIC, "1.1.1.1", "8.8.8.8", "11.0.0.1", "172.32.0.1", "172.15.0.1", "192.167.0.1",
    "169.253.0.1", "100.128.0.1", "192.0.1.1", "223.255.255.254", "198.20.0.1", "128.0.0.1",
    "126.0.0.1",
]  # fmt: skip
INNER6 = [
    "::1", "::", "fe80::1", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1", "100::1",
    "2001:db8::1", "2001::1", "5f00::1", "3fff::1",
]  # fmt: skip


class Case(NamedTuple):
    """A URL and what the names in it resolve to, answer after answer; the last one stays."""

    kind: str
    url: str
    answers: dict[str, list[list[str]]] = {}  # noqa: RUF012 - never changed
    hosts: tuple[str, ...] = ("*",)


# --- how an IPv4 address can be written ----------------------------------------------------------


def written(address: str) -> Iterator[str]:
    """The same IPv4 address as different parsers take it."""
    number = int(IPv4Address(address))
    a, b, c, d = address.split(".")
    octal = [f"0{int(part):o}" for part in (a, b, c, d)]
    hexed = [f"0x{int(part):x}" for part in (a, b, c, d)]
    yield str(number)
    yield f"0x{number:x}"
    yield f"0X{number:08X}"
    yield f"0{number:o}"
    yield ".".join(octal)
    yield ".".join(hexed)
    yield ".".join(f"000{part}" for part in octal)
    yield f"{hexed[0]}.{octal[1]}.{c}.{d}"
    yield f"{a}.{int(b) * 65536 + int(c) * 256 + int(d)}"
    yield f"{a}.{b}.{int(c) * 256 + int(d)}"
    yield f"{hexed[0]}.{number & 0xFFFFFF}"
    yield f"{a}.{b}.{c}.{d}."
    yield ".".join(f"{int(part):03d}" for part in (a, b, c, d))
    yield "".join(chr(ord(c) + 0xFEE0) if c.isdigit() else c for c in address)  # full width
    yield address.replace(".", "\N{IDEOGRAPHIC FULL STOP}")
    yield quote(address, safe="").replace(".", "%2e")
    yield f"[::ffff:{address}]"
    yield f"[::ffff:{number >> 16:x}:{number & 0xFFFF:x}]"
    yield f"[0:0:0:0:0:ffff:{number >> 16:04x}:{number & 0xFFFF:04x}]"
    yield f"[::{address}]"
    yield f"[64:ff9b::{address}]"
    yield f"[64:ff9b:1::{address}]"
    yield f"[2002:{number >> 16:x}:{number & 0xFFFF:x}::1]"
    yield f"[2606:2800::5efe:{address}]"


def hostile() -> Iterator[Case]:
    """URLs that must not be followed."""
    for address in INNER:
        yield Case("address, plain", f"http://{address}/")
        if address in ("127.0.0.1", "169.254.169.254", "10.0.0.1", "192.168.0.1"):
            yield from (
                Case("address, written otherwise", f"http://{w}/") for w in written(address)
            )
    yield from (
        Case("address, written otherwise", f"http://{w}/") for w in ("0", "127.1", "0x7f.1")
    )
    yield from (Case("IPv6", f"http://[{address}]/") for address in INNER6)
    for odd in ("fe80::1%25eth0", "fe80::1%eth0", "::1%251", "0:0:0:0:0:0:0:1", "v1.fe80::1", ""):
        yield Case("IPv6", f"http://[{odd}]/")
    yield from _hostile_names()
    yield from _hostile_spellings()
    yield from _hostile_answers()
    yield from _hostile_redirects()
    yield from _outside_of_the_list()


def _hostile_names() -> Iterator[Case]:
    for name in (
        "localhost", "LOCALHOST", "localhost.", "a.localhost", "localhost.localdomain", "intranet",
        "printer.local", "metadata.google.internal", "instance-data.internal", "router.lan",
        "nas.home.arpa", "hidden.onion", "x.corp", "y.home",
    ):  # fmt: skip
        yield Case("local name", f"http://{name}/", {name.lower().rstrip("."): [["127.0.0.1"]]})
    for name in (
        "\u24db\u24de\u24d2\u24d0\u24db\u24d7\u24de\u24e2\u24e3", "\uff4cocalhost",
        "loca\u00adlhost", "local\u200bhost", "\u217cocalhost", "loc\u00aalhost",
        "ex\u0430mple.com", "g\u043e\u043egle.com",
        "paypa\u217c.com", "\u0391pple.com", "xn--exmple-4nf.com", "xn--a", "xn--zzzzzzzz99",
        "exa\u0301mple.com", "example\u3002com", "example\uff0ecom", "example\uff61com",
        "\u2100.example", "f\ufb01le.example",
    ):  # fmt: skip
        yield Case("look-alike letters", f"http://{name}/")


def _hostile_spellings() -> Iterator[Case]:
    inner = "127.0.0.1"
    for url in (
        f"http://good.example@{inner}/", f"http://good.example:80@{inner}/", f"http://@{inner}/",
        f"http://{inner}@good.example/", "http://a:b@good.example/", "http://:@good.example/",
        f"http://good.example%40{inner}/",
        f"http://good.example\\@{inner}/", f"http://{inner}\\.good.example/",
        f"http:\\\\{inner}\\", f"http:/\\{inner}/", f"http:{inner}/", f"http:///{inner}/",
        f"//{inner}/", inner, f"http://{inner}:80:80/", f"http://[{inner}]/", "http://[::1/",
        "http://::1/", "http://[::1]x/", "http://[::1]]/", "http://good.example:/",
        "http:///", "http://", "", "http://.", "http://../", "http://.good.example/",
        "http://good..example/", "http://good.example../", "http://-good.example/",
        "http://good_one.example/", "http://good.example,evil.example/", "http://good.example;x/",
        f"http://{'a' * 64}.example/", f"http://{'a.' * 130}example/",
        "http://good.example/" + "a" * 9000,
    ):  # fmt: skip
        yield Case("userinfo and broken authority", url)
    for url in (
        f" http://{inner}/", f"http://{inner}/ ", f"http://{inner}\t/", f"http://{inner}\n/",
        "http://good.example\r\nHost: evil/", "http://good.example/\r\nX: y", "ht\ntp://good.example/",
        "http://good.example\x00.evil.example/", "http://good.example/\x00", "http://good\u3000.example/",
        "http://good.example\u2028/", "http://\u202egood.example/", "http://good.example/\x7f",
        "http://good.example%00/", "http://good.example%0d%0a/", "http://%31%32%37.0.0.1/",
        "http://good.example%2f@127.0.0.1/", "http://good%2eexample/",
    ):  # fmt: skip
        yield Case("characters", url)
    for scheme in (
        "file",
        "ftp",
        "gopher",
        "dict",
        "ws",
        "wss",
        "data",
        "javascript",
        "unix",
        "http+unix",
    ):
        yield Case("scheme", f"{scheme}://good.example/")
    for port in (
        "22",
        "25",
        "6379",
        "8081",
        "0",
        "65536",
        "99999",
        "080",
        "+80",
        "-80",
        "8_0",
        "\u0668\u0660",
        "0x50",
    ):
        yield Case("port", f"http://good.example:{port}/")


def _hostile_answers() -> Iterator[Case]:
    for address in [*INNER, *INNER6, "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::a9fe:a9fe",
                    "2002:7f00:1::1", "fe80::1%eth0", "2606:2800::5efe:7f00:1"]:  # fmt: skip
        yield Case("name that is an inner address", "http://n.example/", {"n.example": [[address]]})
    for address in (*INNER[:7], "::1", "fd00:ec2::254"):
        yield Case("one inner answer among public ones", "http://n.example/",
                   {"n.example": [[PUBLIC, address]]})  # fmt: skip
        yield Case("one inner answer among public ones", "http://n.example/",
                   {"n.example": [[PUBLIC6, PUBLIC, address, PUBLIC]]})  # fmt: skip
    for address in (*INNER[:10], "::1", "fe80::1", "fd00:ec2::254", "::ffff:169.254.169.254"):
        # The first answer passes the check, the second is what an unpinned client would connect to.
        back = "http://r.example/to?url=" + quote("http://r.example/inner", safe="")
        yield Case("rebinding, on the redirect back", back, {"r.example": [[PUBLIC], [address]]})
        yield Case("rebinding, on the connection", "http://r.example/rebinds",
                   {"r.example": [[address], [PUBLIC]]})  # fmt: skip


def _hostile_redirects() -> Iterator[Case]:
    def through(place: str, code: int = 302, hops: int = 1) -> str:
        for _ in range(hops):
            place = f"http://good.example/to?code={code}&url={quote(place, safe='')}"
        return place

    for code in (301, 302, 303, 307, 308):
        for address in ("127.0.0.1", "169.254.169.254", "[::1]", "[::ffff:10.0.0.1]", "2130706433"):
            yield Case("redirect to an inner address", through(f"http://{address}/", code))
    for hops in (2, 3, 4):
        yield Case("redirect to an inner address", through("http://127.0.0.1/", 302, hops))
    for place in ("//127.0.0.1/", "\\\\127.0.0.1\\", "/\\127.0.0.1/", "file:///etc/passwd",
                  "http://a:b@good.example/", "http://good.example:22/", "http://[::1",
                  "gopher://127.0.0.1:6379/_x", "http://127.1/", "http://localhost/",
                  "http:////127.0.0.1/"):  # fmt: skip
        yield Case("redirect, spelled to deceive", through(place))
    for address in INNER[:7]:
        yield Case("redirect to a name that is an inner address", through("http://n.example/"),
                   {"n.example": [[address]]})  # fmt: skip


def _outside_of_the_list() -> Iterator[Case]:
    hosts = ("api.example", "*.svc.example", PUBLIC)
    for host in ("api.example.evil.example", "apixexample", "evilapi.example", "evil-api.example",
                 "www.api.example", "svc.example", "xsvc.example", "svc.example.evil.example",
                 "good.example", "93.184.216.35", f"[::ffff:{PUBLIC}]",
                 f"[{PUBLIC6}]"):  # fmt: skip
        yield Case("host that is not allowed", f"http://{host}/", {}, hosts)
    place = quote("http://good.example/", safe="")
    yield Case("host that is not allowed", f"http://api.example/to?url={place}", {}, hosts)


# --- their benign twins --------------------------------------------------------------------------


def benign() -> Iterator[Case]:
    """URLs that must be followed: next to each kind above, what only looks like it."""
    for address in OUTER:
        yield Case("address, plain", f"http://{address}/")
        yield Case("address, written otherwise", f"http://{address}./")
        yield Case("address, written otherwise", f"http://[::ffff:{address}]/")
        yield Case("address, written otherwise", f"http://[64:ff9b::{address}]/")
    for address in (PUBLIC6, PUBLIC6.upper(), "2001:4860:4860::8888", "2a00:1450:4001::1",
                    "2606:4700:4700:0:0:0:0:1111", f"::ffff:{PUBLIC}", f"64:ff9b::{PUBLIC}",
                    "2003::1", "2400::7f00:1"):  # fmt: skip
        yield Case("IPv6", f"http://[{address}]/")
    for name in ("localhost.example", "a.localhost.example", "intranet.example", "local.example",
                 "127.0.0.1.example", "0x7f.example", "10-0-0-1.example", "2130706433.example",
                 "internal.example", "metadata.google.example", "1e100.example",
                 "0.example"):  # fmt: skip
        yield Case("local name", f"http://{name}/")
    for name in ("m\u00fcnchen.example", "xn--mnchen-3ya.example", "\u65e5\u672c\u8a9e.example",
                 "\u043f\u0440\u0438\u043c\u0435\u0440.example", "b\u00fccher.example",
                 "\u00e9t\u00e9.example", "\u03b1\u03b2\u03b3.example", "fa\u00df.example",
                 "M\u00dcNCHEN.example", "\u1e9e.example"):  # fmt: skip
        yield Case("look-alike letters", f"http://{name}/")
    yield from _benign_rests()
    yield from _benign_answers()


def _benign_rests() -> Iterator[Case]:
    for rest in ("/a@b", "/?u=a:b@c", "/?next=http://127.0.0.1/", "/#@127.0.0.1", "/%40", "/a//b",
                 "/../a", "/a;b=c", "/a,b", "/?q=%5C%5C127.0.0.1", "?q=1", "", "#part", "/[a]",
                 "#@127.0.0.1:22/", "/~u/_x-y.z"):  # fmt: skip
        yield Case("userinfo and broken authority", f"http://good.example{rest}")
    for rest in (
        "/%20",
        "/%0d%0a",
        "/%00",
        "/%7f",
        "/\u00fc",
        "/\u65e5?\u672c=\u8a9e",
        "/+",
        "/%E2%80%8B",
        "/a%2Fb",
    ):
        yield Case("characters", f"http://good.example{rest}")
    for url in ("HTTP://good.example/", "Http://GOOD.example/", "http://Good.Example./"):
        yield Case("scheme", url)
    for port in ("80", "443", "8080"):
        yield Case("port", f"http://good.example:{port}/")


def _benign_answers() -> Iterator[Case]:
    for address in (*OUTER, PUBLIC6, f"::ffff:{PUBLIC}", f"64:ff9b::{PUBLIC}"):
        answers = {"n.example": [[address]]}
        yield Case("name that is a public address", "http://n.example/", answers)
        place = quote("http://n.example/", safe="")
        yield Case("redirect", f"http://good.example/to?url={place}", answers)
    yield Case(
        "several public answers", "http://n.example/", {"n.example": [[PUBLIC6, PUBLIC, "1.1.1.1"]]}
    )
    for after in ("1.1.1.1", PUBLIC6, "8.8.8.8"):
        back = "http://r.example/to?url=" + quote("http://r.example/inner", safe="")
        yield Case("answers that change", back, {"r.example": [[PUBLIC], [after]]})
    for code in (301, 302, 303, 307, 308):
        for place in ("http://other.example/", "/there", "//other.example/", "?again",
                      f"http://{PUBLIC}/", "http://other.example:8080/x", "there",
                      "../up#part"):  # fmt: skip
            yield Case(
                "redirect", f"http://good.example/to?code={code}&url={quote(place, safe='')}"
            )
    listed = ("api.example", "*.svc.example", PUBLIC)
    for host in (
        "api.example",
        "API.example",
        "api.example.",
        "a.svc.example",
        "a.b.svc.example",
        PUBLIC,
    ):
        yield Case("host that is allowed", f"http://{host}/", {}, listed)


# --- real servers --------------------------------------------------------------------------------


class _Public(BaseHTTPRequestHandler):
    """The public internet: answers anything, and redirects where the query says."""

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        place = query.get("url", [""])[0]
        self.send_response(int(query.get("code", ["302"])[0]) if place else 200)
        if place:
            self.send_header("Location", place)
        self.send_header("Content-Length", "6")
        self.end_headers()
        self.wfile.write(b"public")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name it has there
        pass


class Server(ThreadingHTTPServer):
    """One that counts what reaches the inside."""

    daemon_threads = True
    asked = 0


class _Inner(_Public):
    """What must not be reached."""

    def do_GET(self) -> None:
        assert isinstance(self.server, Server)
        self.server.asked += 1
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"secret")


@contextlib.contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Generator[Server]:
    """A real server on a free port of loopback."""
    server = Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Network(httpcore.NetworkBackend):
    """A small internet on loopback: public addresses are one server, all others the inner one."""

    def __init__(self, public: int, inner: int) -> None:
        self._ports = {True: public, False: inner}
        self._real = httpcore.SyncBackend()
        self.dialled: list[tuple[str, int]] = []

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        self.dialled.append((host, port))
        inner = host not in _SEEN_PUBLIC
        return self._real.connect_tcp("127.0.0.1", self._ports[not inner], timeout)


class Resolver:
    """Answers as a case says, one answer after the other: the loopback resolver that rebinds."""

    def __init__(self, answers: dict[str, list[list[str]]]) -> None:
        self._answers = {name: list(each) for name, each in answers.items()}

    def __call__(self, host: str, port: int) -> list[str]:
        answers = self._answers.get(host, [[PUBLIC]])
        return answers.pop(0) if len(answers) > 1 else answers[0]


# Public by this file's own word, not by the code that is tested.
_SEEN_PUBLIC = {
    *OUTER, *(str(IPv6Address(f"{p}{a}")) for p in ("::ffff:", "64:ff9b::") for a in OUTER),
    *(f"{p}{PUBLIC}" for p in ("::ffff:", "64:ff9b::")),
    PUBLIC6, "2001:4860:4860::8888", "2a00:1450:4001::1", "2606:4700:4700::1111", "2003::1",
    "2400::7f00:1",
}  # fmt: skip


class Outcome(NamedTuple):
    """What became of a case: `refused`, `answered`, or `through` to the inside; and why."""

    case: Case
    outcome: str
    why: str


def ask(case: Case, public: Server, inner: Server) -> Outcome:
    """Ask for one URL through the real tool."""
    network = Network(public.server_port, inner.server_port)
    http = Http(
        allowed_hosts=case.hosts,
        ports=(80, 443, 8080),
        timeout=10,
        resolver=Resolver(case.answers),
        backend=network,
    )
    asked = inner.asked
    try:
        answer = http.get(url=case.url)
        outcome, why = "answered", answer["text"]
    except AddressRefused as error:
        outcome, why = "refused", str(error)
    outside = [address for address, _ in network.dialled if address not in _SEEN_PUBLIC]
    if outside or "secret" in why or inner.asked != asked:
        outcome, why = "through", f"connected to {outside}"
    return Outcome(case, outcome, why)


def run(cases: Iterable[Case]) -> list[Outcome]:
    """Ask for all of them."""
    with serving(_Public) as public, serving(_Inner) as inner:
        return [ask(case, public, inner) for case in cases]


def table(outcomes: Iterable[Outcome]) -> str:
    """How many of each kind were refused, answered, or got through."""
    counts = Counter((each.case.kind, each.outcome) for each in outcomes)
    kinds = list(dict.fromkeys(kind for kind, _ in counts))
    columns = ("refused", "answered", "through")
    lines = [f"{'':46}{columns[0]:>10}{columns[1]:>10}{columns[2]:>10}"]
    lines += [f"{kind:46}" + "".join(f"{counts[kind, c]:>10}" for c in columns) for kind in kinds]
    sums = [sum(n for (_, outcome), n in counts.items() if outcome == c) for c in columns]
    return "\n".join([*lines, f"{'together':46}" + "".join(f"{n:>10}" for n in sums)])


def main() -> int:
    """Print both tables; 1 where one URL got the wrong answer."""
    bad, good = run(hostile()), run(benign())
    print(f"hostile URLs\n{table(bad)}\n\nbenign twins\n{table(good)}")
    wrong = [each for each in bad if each.outcome != "refused"]
    wrong += [each for each in good if each.outcome != "answered"]
    for each in wrong:
        print(f"WRONG: {each.case} was {each.outcome}: {each.why}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
