"""Paths that lead out of a workspace, and URLs that lead to where an agent has no business."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address
from urllib.parse import quote

from tests.hostile.case import PUBLIC, PUBLIC6, Case, Category, Place, quoted, rule

# --- paths ---------------------------------------------------------------------------------------

UP = [
    "..", "../", "../outside/secret.txt", "./../outside", "docs/../../outside/secret.txt",
    "docs/deep/../../../outside/secret.txt", "../desk/../outside", "..//outside", "../desktop/x",
    "new/../../outside", "docs/./../../outside/x", "../../../../../../../../etc/passwd",
    "link_in/../../outside/x", "notes.txt/../../outside",
]  # fmt: skip
LINKS = [
    "link_out", "link_out/secret.txt", "link_out/new.txt", "link_file", "link_root",
    "link_root/etc/passwd", "link_up", "link_up/outside/secret.txt", "link_chain",
    "link_chain/secret.txt", "docs/link_two/x", "dangling", "dangling/x", "loop", "loop/x",
    "loop_a", "loop_b/x", "link_proc/etc/passwd", "link_out/../secret.txt", "docs/../link_out/x",
]  # fmt: skip
ELSEWHERE = [
    "/", "//", "/etc/passwd", "//etc/passwd", "///etc/passwd", "/proc/self/environ",
    "/proc/self/root/etc/passwd", "/proc/self/cwd/x", "/proc/self/fd/0", "/dev/null", "/.", "/..",
    "~", "~/x", "~root", "~root/.ssh/id_ed25519", "~+/x", "$HOME/x", "${HOME}/x", "$(pwd)/x",
    "%USERPROFILE%/x", "file:///etc/passwd", "file:/etc/passwd", "file:etc", "http://a.example/x",
    "C:", "C:\\Windows\\win.ini", "C:/Windows", "c:x", "\\\\server\\share", "//server/share/x",
    "\\etc\\passwd", "..\\outside", "docs\\..\\..\\outside", "a\\",
]  # fmt: skip
ENCODED = [
    "%2e%2e/outside", "%2E%2E/outside", ".%2e/outside", "..%2foutside", "..%5coutside",
    "%252e%252e%252foutside", "%c0%ae%c0%ae/outside", "%u002e%u002e/outside", "docs%2f..%2f..%2fx",
    "notes.txt%00.png", "%2fetc%2fpasswd",
]  # fmt: skip
SPELLED = [
    "", " ", "\0", "notes.txt\0", "notes.txt\0.png", "..\0/outside", "a\nb", "a\rb", "a\tb",
    "a\x7f",
    "notes.txt ", "notes.txt.", "...", "....//outside", " notes.txt", "docs /guide.md",
    "\uff0e\uff0e/outside", "\u2024\u2024/outside", "\u2025/outside", "..\u2215outside",
    "..\u2044outside", "..\uff0foutside", "..\uff3coutside", "\ufe52\ufe52/outside",
    "\uff5e/x", "notes\u202etxt.exe", "notes\u200b.txt", "no\u00adtes.txt", "\ufeffnotes.txt",
    "cafe\u0301.txt", "\ud800.txt", "a\udc80", "\U000e0041notes.txt", "x" * 256, "d/" * 3000 + "x",
    "\u2028", "notes\x85.txt",
]  # fmt: skip
INSIDE = [
    "notes.txt", "docs/guide.md", "docs/deep", "docs/", "./notes.txt", "new.txt",
    "new/folder/x.txt",
    "docs/../notes.txt", "link_in/guide.md", "link_in/deep/x", "docs/link_back", ".hidden",
    "..notes",
    "a..b", "...a", "50%.txt", "100%off", "a~", "a~b.txt", "12:30 log.txt", "to do: list.md", "-rf",
    "a b c.txt", "résumé.md", "日本語/ファイル.txt", "Ω.txt", "😀.txt", "ñandú/ü.md", "x" * 255,
    "a'b\"c.txt", "(1) [2] {3}.txt", "a;b&c|d.txt", "price $5.txt", "#tag.md", "a,b=c+d@e.txt",
]  # fmt: skip


def paths(place: Place) -> Iterator[Category]:
    policy = (
        "version = 1\n[[presets]]\n"
        f'use = "workspace"\nroot = {quoted(place.root)}\nbase = {quoted(place.root)}\n'
        'tools = ["read_*", "write_*", "copy_*", "save"]\n'
    )
    root = place.root
    inside = f"within(args.value, {quoted(root)})"
    none_or_inside = rule("put", f"args.value == [] || {inside}")
    denying = (
        f'version = 1\ndefault = "allow"\n[[rules]]\nid = "outside"\ntools = ["put"]\n'
        f'when = {quoted(f"!{inside}")}\ndecision = "deny"\nreason = "outside"\n'
    )
    benign = [Case("write_file", {"path": each, "content": "x"}) for each in INSIDE]
    benign += [Case("read_file", {"path": f"{root}/{each}"}) for each in INSIDE[:12]]
    yield Category("paths: up", [*_files(UP), *_files(UP, root)], benign[:12], policy)
    yield Category("paths: links", [*_files(LINKS), *_files(LINKS, root)], benign[8:14], policy)
    beside = [place.outside, f"{root}shop/x", f"{root}/../outside"]
    yield Category("paths: elsewhere", _files([*ELSEWHERE, *beside]), benign[12:22], policy)
    yield Category("paths: encoded", _files(ENCODED), benign[15:18], policy)
    yield Category("paths: spelling", _files(SPELLED), benign[18:], policy)
    yield Category(
        "paths: which argument",
        [
            Case("copy_file", {"source": "notes.txt", "target": "../outside/x"}),
            Case("copy_file", {"source": "/etc/passwd", "target": "notes.txt"}),
            Case("copy_file", {"source": "link_out/secret.txt", "target": "x"}),
            Case("read_files", {"paths": ["notes.txt", "/etc/passwd"]}),
            Case("read_files", {"paths": ["../outside", "/etc/passwd"]}),
            Case("read_files", {"paths": ["notes.txt"] * 2000}),
            Case("read_files", {"paths": ["notes.txt", ""]}),
            Case("read_files", {"paths": []}),
            Case("put", {"value": []}, rule("put", inside)),
            Case("put", {"value": []}, denying),
            Case("put", {"value": ["/etc"]}, none_or_inside),
            Case("save", {"file": "../outside/x"}),
            Case("save", {"file": f"{place.outside}/secret.txt"}),
            Case("save", {"file": "link_file"}),
            Case("put", {"value": "notes.txt"}),
        ],
        [
            Case("copy_file", {"source": "notes.txt", "target": "docs/copy.txt"}),
            Case("copy_file", {"source": f"{root}/notes.txt", "target": "link_in/x"}),
            Case("read_files", {"paths": ["notes.txt", "docs/guide.md"]}),
            Case("read_files", {"paths": ["notes.txt"]}),
            Case("put", {"value": [root]}, rule("put", inside)),
            Case("put", {"value": [root]}, denying),
            Case("put", {"value": []}, none_or_inside),
            Case("put", {"value": [root]}, none_or_inside),
            Case("save", {"file": "docs/new.txt"}),
            Case("save", {"file": f"{root}/docs/new.txt"}),
        ],
        policy,
    )


def _files(paths: list[str], root: str = "") -> list[Case]:
    tools = ("read_file", "write_file")
    where = f"{root}/" if root else ""
    return [Case(tools[n % 2], {"path": where + path}) for n, path in enumerate(paths)]


# --- URLs ----------------------------------------------------------------------------------------

INNER = [
    "127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.0.1", "169.254.169.254", "100.100.100.200",
    "0.0.0.0", "255.255.255.255", "198.18.0.1", "168.63.129.16",  # noqa: S104 - to be refused
]  # fmt: skip
INNER6 = ["::1", "::", "fe80::1", "fc00::1", "fd00:ec2::254", "ff02::1", "2001:db8::1"]


def written(address: str) -> Iterator[str]:
    """The same IPv4 address as different parsers take it."""
    number = int(IPv4Address(address))
    a, b, c, d = map(int, address.split("."))
    yield str(number)
    yield f"0x{number:x}"
    yield f"0{number:o}"
    yield f"0{a:o}.0{b:o}.0{c:o}.0{d:o}"
    yield f"0x{a:x}.0x{b:x}.0x{c:x}.0x{d:x}"
    yield f"{a}.{b * 65536 + c * 256 + d}"
    yield f"{a}.{b}.{c * 256 + d}"
    yield f"{a:03d}.{b:03d}.{c:03d}.{d:03d}"
    yield f"{address}."
    yield address.replace(".", "\u3002")
    yield "".join(chr(ord(each) + 0xFEE0) if each.isdigit() else each for each in address)
    yield quote(address, safe="").replace(".", "%2e")
    yield f"[::ffff:{address}]"
    yield f"[::ffff:{number >> 16:x}:{number & 0xFFFF:x}]"
    yield f"[::{address}]"
    yield f"[64:ff9b::{address}]"
    yield f"[64:ff9b:1::{address}]"
    yield f"[2002:{number >> 16:x}:{number & 0xFFFF:x}::1]"
    yield f"[2606:2800::5efe:{address}]"


NAMES = ["localhost", "LOCALHOST", "localhost.", "a.localhost", "intranet", "printer.local",
         "metadata.google.internal", "router.lan", "nas.home.arpa", "x.corp",
         "hidden.onion"]  # fmt: skip
LETTERS = ["ex\u0430mple.com", "g\u043e\u043egle.com", "\uff4cocalhost", "loca\u00adlhost",
           "example\u3002com", "xn--exmple-4nf.com", "xn--a", "exa\u0301mple.com", "f\ufb01le.com",
           "\u24d0.com", "\u2100.com", "local\u200bhost"]  # fmt: skip
AUTHORITIES = [
    "http://good.example@127.0.0.1/", "http://127.0.0.1@good.example/", "http://a:b@good.example/",
    "http://@good.example/", "http://good.example:80@127.0.0.1/", "http://a@b@good.example/",
    "http://good.example\\@127.0.0.1/", "http://127.0.0.1\\.good.example/", "http:\\\\127.0.0.1",
    "http:/good.example", "http:good.example", "http:///good.example", "//good.example/",
    "good.example", "http://good.example:80:80/", "http://good.example:/", "http://good.example:0/",
    "http://good.example:22/", "http://good.example:6379/", "http://good.example:080/",
    "http://good.example:65616/", "http://good.example:+80/", "http://good.example:\u0668\u0660/",
    "http://good.example?@127.0.0.1/", "http://good.example#@127.0.0.1/", "http://good..example/",
    "http://.good.example/", "http://-good.example/", "http://good_one.example/", "http://",
    "http://good.example,evil.example/", "http://good.example;evil.example/", "",
    " http://good.example/", "http://good.example/ ", "http://good.example\t/",
    "http://good.example\r\nHost: evil.example/", "ht\ntp://good.example/",
    "http://good.example\0.evil.example/", "http://good.example/\0", "http://good\u3000.example/",
    "http://\u202egood.example/", "http://good.example%00/", "http://%67ood.example/",
    "http://good.example%2f@127.0.0.1/", "http://good.example/" + "a" * 9000,
    "file:///etc/passwd", "ftp://good.example/", "gopher://good.example/", "data:text/html,x",
    "javascript:alert(1)", "jar:http://good.example/", "view-source:http://good.example/",
]  # fmt: skip
FINE = [
    "http://good.example/", "https://good.example", "HTTPS://GOOD.EXAMPLE/",
    "http://good.example./",
    "https://good.example:443/", "http://good.example:80/a", "https://api.good.example/v1?x=1#top",
    "https://good.example/a@b", "https://good.example/?mail=a@b.example", "http://good.example//a",
    "https://good.example/%2e%2e/x", "https://good.example/?u=http://127.0.0.1/",
    "https://good.example/a;b=c,d", "https://good.example/ä", "https://bücher.example/",
    "https://xn--bcher-kva.example/", "https://ελλάδα.example/", "https://日本.example/",
    "https://six.example/", "https://both.example/", f"https://{PUBLIC}/", f"https://[{PUBLIC6}]/",
    "https://8.8.8.8/", "https://172.32.0.1/", "https://a-b.c-d.example/", "https://1a.example/",
    "https://[::ffff:8.8.8.8]/", "https://[64:ff9b::808:808]/",
]  # fmt: skip

ANSWERS = {
    **{name: [PUBLIC] for name in (
        "good.example", "api.good.example", "xn--bcher-kva.example", "xn--hxakic4aa.example",
        "xn--wgv71a.example", "a-b.c-d.example", "1a.example",
    )},
    "six.example": [PUBLIC6],
    "both.example": [PUBLIC, PUBLIC6],
    "many.example": [f"93.184.216.{number}" for number in range(1, 60)],
    "none.example": [],
    **{f"in{number}.example": [address] for number, address in enumerate([*INNER, *INNER6])},
    **{f"mixed{number}.example": [PUBLIC, address, PUBLIC6] for number, address in
       enumerate([*INNER, *INNER6])},
    "odd.example": ["127.1"], "mapped.example": ["::ffff:169.254.169.254"],
    "scope.example": ["fe80::1%eth0"],
}  # fmt: skip


def urls(place: Place) -> Iterator[Category]:
    policy = 'version = 1\n[[presets]]\nuse = "network"\nhosts = ["*"]\ntools = ["fetch*"]\n'
    fine = _urls(FINE)
    plain = [*INNER, *(f"[{each}]" for each in INNER6)]
    spelled = [each for address in ("127.0.0.1", "169.254.169.254") for each in written(address)]
    names = [name for name in ANSWERS if ANSWERS[name] and not name.startswith(("in", "mi"))]
    yield Category("urls: addresses", _hosts([*plain, *spelled]), fine[20:], policy, ANSWERS)
    yield Category("urls: names", _hosts([*NAMES, *LETTERS]), fine[14:20], policy, ANSWERS)
    yield Category("urls: spelling", _urls(AUTHORITIES), fine[:14], policy, ANSWERS)
    yield Category(
        "urls: what names resolve to",
        _hosts([name for name in ANSWERS if name not in names or "." not in name]
               + ["odd.example", "mapped.example", "scope.example", "many.example", "none.example",
                  "unknown.example"]),
        _hosts(["good.example", "six.example", "both.example"]),
        policy,
        ANSWERS,
    )  # fmt: skip
    listed = policy.replace('["*"]', '["good.example", "*.good.example", "intranet.corp"]')
    yield Category(
        "urls: a list of hosts",
        [
            *_hosts(["six.example", "evil-good.example", "good.example.evil.example", "example",
                     "xgood.example", "good.example.", "intranet.corp"][0:5]),
            *_hosts(["intranet.corp", PUBLIC, "good.exampl\u0435", "good\u2024example"]),
            Case("fetch_all", {"urls": ["http://good.example/", "http://six.example/"]}),
            Case("fetch_all", {"urls": ["http://good.example/", ""]}),
            Case("fetch_all", {"urls": []}),
            Case("fetch_all", {"urls": ["http://good.example/", "http://127.0.0.1/"]}),
            Case("put", {"value": "http://good.example/"}),
        ],
        [
            *_hosts(["good.example", "api.good.example", "GOOD.example", "good.example."]),
            Case("fetch_all", {"urls": ["http://good.example/", "https://api.good.example/x"]}),
            Case("fetch_all", {"urls": ["http://good.example/"]}),
        ],
        listed,
        ANSWERS,
    )  # fmt: skip


def _hosts(hosts: list[str]) -> list[Case]:
    return _urls([f"http://{host}/" for host in hosts])


def _urls(urls: list[str]) -> list[Case]:
    return [Case("fetch", {"url": url}) for url in urls]
