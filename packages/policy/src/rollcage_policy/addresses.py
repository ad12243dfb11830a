"""The host of a URL, and whether it is on the public internet.

Anything that two parsers may read differently (userinfo, backslashes, numbers that some take for
addresses, look-alike letters) is refused, never interpreted: whichever client gets the URL, it can
only reach the host that was decided on.

Sources: the IANA special-purpose address registries (RFC 6890), RFC 6761 (names), RFC 6052 and 8215
(NAT64), RFC 3056 (6to4), RFC 5214 (ISATAP), UTS #46 (IDNA), the metadata addresses that the cloud
providers document.
"""

from __future__ import annotations

import re
import socket
import threading
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any, Final, NamedTuple

__all__ = [
    "DEFAULT_PORTS",
    "AddressInvalid",
    "Resolver",
    "SplitUrl",
    "bounded",
    "check_characters",
    "host_name",
    "is_address",
    "is_local_name",
    "split_authority",
    "split_url",
    "system_resolver",
    "why_not_public",
    "why_not_public_host",
]

Resolver = Callable[[str, int], Sequence[str]]
"""Return all addresses of a name, for a port; raise OSError if there is none."""

DEFAULT_PORTS: Final[Mapping[str, int]] = {"http": 80, "https": 443, "ws": 80, "wss": 443}
"""The supported schemes."""

_MAX_URL: Final = 8_000
_MAX_ANSWERS: Final = 32


class AddressInvalid(ValueError):
    """A URL or host that clients may read differently; the message quotes at most the host."""


# --- addresses -----------------------------------------------------------------------------------

_IPV4: Final = {
    IPv4Network(network): why
    for network, why in {
        "0.0.0.0/8": "this network",
        "10.0.0.0/8": "private",
        "100.64.0.0/10": "shared by a carrier, and metadata of a cloud",
        "127.0.0.0/8": "loopback",
        "168.63.129.16/32": "metadata of a cloud",
        "169.254.0.0/16": "link-local, and metadata of clouds",
        "172.16.0.0/12": "private",
        "192.0.0.0/24": "reserved, and metadata of a cloud",
        "192.0.2.0/24": "documentation",
        "192.88.99.0/24": "6to4 relays, deprecated",
        "192.168.0.0/16": "private",
        "198.18.0.0/15": "benchmarks",
        "198.51.100.0/24": "documentation",
        "203.0.113.0/24": "documentation",
        "224.0.0.0/4": "multicast",
        "240.0.0.0/4": "reserved, and broadcast",
    }.items()
}
_GLOBAL_IPV6: Final = IPv6Network("2000::/3")  # no other range is allocated
_IPV6: Final = {
    IPv6Network(network): why
    for network, why in {
        "2001::/23": "special purposes, Teredo among them",
        "2001:db8::/32": "documentation",
        "2002::/16": "6to4, deprecated",
        "3fff::/20": "documentation",
    }.items()
}
_NAT64: Final = IPv6Network("64:ff9b::/96")
_MAPPED: Final = IPv6Network("::ffff:0:0/96")
_ISATAP: Final = (0x0000_5EFE, 0x0200_5EFE)


def why_not_public(address: str) -> str | None:
    """Return why an address (canonical) is not on the public internet; None if it is."""
    try:
        ip = ip_address(address)
    except ValueError:
        return "no address in its canonical form"
    if isinstance(ip, IPv4Address):
        return _first(_IPV4, ip)
    if ip.scope_id is not None:
        return "an address with a scope"
    if ip in _NAT64 or ip in _MAPPED:
        inner = IPv4Address(int(ip) & 0xFFFF_FFFF)
        why = _first(_IPV4, inner)
        return None if why is None else f"{inner} inside of it is {why}"
    if ip not in _GLOBAL_IPV6:
        return "not a global unicast address"
    if (int(ip) >> 32) & 0xFFFF_FFFF in _ISATAP:
        return "ISATAP"
    return _first(_IPV6, ip)


def _first(
    networks: Mapping[IPv4Network, str] | Mapping[IPv6Network, str],
    ip: IPv4Address | IPv6Address,
) -> str | None:
    return next((why for network, why in networks.items() if ip in network), None)


# --- names ---------------------------------------------------------------------------------------

_LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
_LOCAL_NAMES: Final = frozenset(
    {"corp", "home", "home.arpa", "internal", "invalid", "lan", "local", "localdomain"}
    | {"localhost", "onion", "private"}
)
_MIXED: Final = frozenset({"ARMENIAN", "CHEROKEE", "CYRILLIC", "GREEK"})


def host_name(written: str) -> str:
    """Return a host in its one spelling: a canonical address, or a lower-case ASCII name.

    An IPv6 address is written in brackets, and comes back without them.

    Raises:
        AddressInvalid: the text is not a host, or clients may read its spelling differently.
    """
    if written.startswith("[") and written.endswith("]"):
        return _ipv6(written[1:-1])
    name = written.lower() if written.isascii() else _to_ascii(written)
    name = name.removesuffix(".")
    labels = name.split(".")
    if _NUMBER.fullmatch(labels[-1]):  # some parsers take it for an address: refused unless all do
        return _ipv4(name)
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise AddressInvalid(f"{_shown(written)} is not a host name")
    for label in labels:
        if label.startswith("xn--"):
            _check_letters(written, _decoded(written, label))
    return name


def _shown(written: str) -> str:
    """Return a host for an error message: in ASCII, and cut to a host's maximal length."""
    return ascii(written if len(written) <= 80 else written[:80] + "…")


def _ipv4(written: str) -> str:
    try:
        return str(IPv4Address(written))  # accepts only four decimal parts without leading zeros
    except ValueError:
        raise AddressInvalid(
            f"{_shown(written)} is a number that only some read as an address; "
            f"write four decimal parts"
        ) from None


def _ipv6(written: str) -> str:
    try:
        if "%" in written:
            raise ValueError
        return str(IPv6Address(written))
    except ValueError:
        raise AddressInvalid(f"{_shown(f'[{written}]')} is not an IPv6 address") from None


def _idna(written: str) -> Any:
    """Return the library for international names, which only non-ASCII names need."""
    try:
        import idna
    except ImportError:
        raise AddressInvalid(
            f"{_shown(written)} needs the package idna to be read: pip install 'rollcage[idna]'"
        ) from None
    return idna


def _to_ascii(written: str) -> str:
    """Encode a label by IDNA 2008, without UTS #46 mappings.

    A mapped name looks unlike its result.
    """
    idna = _idna(written)
    try:
        as_meant = unicodedata.normalize("NFC", written) == written
        if as_meant and idna.uts46_remap(written, std3_rules=True) == written.lower():
            return str(idna.encode(written.lower(), std3_rules=True).decode("ascii"))
    except idna.IDNAError:
        raise AddressInvalid(f"{_shown(written)} is not a host name") from None
    raise AddressInvalid(f"{_shown(written)} contains letters that normalize to other ones")


def _decoded(written: str, label: str) -> str:
    idna = _idna(written)
    try:
        return str(idna.ulabel(label))
    except idna.IDNAError:
        raise AddressInvalid(f"{_shown(written)} is not a host name") from None


def _check_letters(written: str, label: str) -> None:
    """Refuse a label that mixes Latin letters with others that look like them."""
    scripts = {unicodedata.name(c, "?").split()[0] for c in label if c.isalpha()}
    if "LATIN" in scripts and scripts & _MIXED:
        raise AddressInvalid(f"{_shown(written)} mixes letters of several scripts")


def is_local_name(host: str) -> bool:
    """Return whether a name (in its one spelling) is of this machine or a local network."""
    labels = host.split(".")
    return len(labels) == 1 or labels[-1] in _LOCAL_NAMES or ".".join(labels[-2:]) in _LOCAL_NAMES


def is_address(host: str) -> bool:
    """Return whether a host (in its one spelling) is an address, not a name."""
    return ":" in host or host.rsplit(".", 1)[-1].isdigit()


# --- URLs ----------------------------------------------------------------------------------------

_URL: Final = re.compile(
    r"(?P<scheme>[A-Za-z]+)://(?P<authority>[^/?#]*)(?P<path>[^?#]*)(?P<query>\?[^#]*)?"
    r"(?P<fragment>#.*)?"
)
_AUTHORITY: Final = re.compile(r"(?P<host>\[[^\[\]@]*\]|[^\[\]:@]+)(?::(?P<port>[1-9][0-9]{0,4}))?")
_INVISIBLE: Final = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"})


class SplitUrl(NamedTuple):
    """The parts of a URL, each in its one spelling.

    Attributes:
        scheme: in lower case.
        host: in lower case and ASCII; an IPv6 address without its brackets.
        port: always a number.
        rest: path and query, as written; without a fragment.
    """

    scheme: str
    host: str
    port: int
    rest: str


def split_url(url: str, *, respelled: bool = False) -> SplitUrl:
    """Split a URL, if all clients would split it the same way.

    Args:
        url: the URL, as written.
        respelled: whether the request is built from the returned parts instead of the written URL:
            then no client can read the end of the authority differently.

    Raises:
        AddressInvalid: names the ambiguous part.
    """
    if len(url) > _MAX_URL:
        raise AddressInvalid(f"the URL has {len(url)} characters; at most {_MAX_URL} are accepted")
    check_characters(url)
    found = _URL.fullmatch(url)
    scheme = found["scheme"].lower() if found is not None else ""
    if found is None or scheme not in DEFAULT_PORTS:
        raise AddressInvalid(
            f"not a URL with a host and one of the schemes {', '.join(DEFAULT_PORTS)}"
        )
    written: str = found["authority"]
    authority = _AUTHORITY.fullmatch(written)
    if authority is None or "%" in written:
        raise AddressInvalid(
            "names, passwords and escapes are not accepted before a URL's path; only host and port"
        )
    after = (found["query"] or "") + (found["fragment"] or "")
    if not respelled and not found["path"] and "@" in after.partition("/")[0]:
        raise AddressInvalid("an @ before the first slash: some clients read a host after it")
    port = int(authority["port"] or DEFAULT_PORTS[scheme])
    if port > 65535:
        raise AddressInvalid(f"{port} is not a port: 65535 is the highest")
    rest = (found["path"] or "/") + (found["query"] or "")
    return SplitUrl(scheme, host_name(authority["host"]), port, rest)


def check_characters(url: str) -> None:
    """Refuse characters that some parsers drop or reinterpret: blanks, controls, backslashes.

    Raises:
        AddressInvalid: names the character.
    """
    if odd := next((c for c in url if c == "\\" or unicodedata.category(c) in _INVISIBLE), None):
        raise AddressInvalid(f"{odd!a} is not allowed in a URL")


def split_authority(written: str) -> tuple[str, int | None]:
    """Return a host (in its one spelling) and its port, if one is given: `[::1]:80`, `a.example`.

    Raises:
        AddressInvalid: it is not a host with an optional port.
    """
    found = _AUTHORITY.fullmatch(written)
    if found is None or int(found["port"] or 0) > 65535:
        raise AddressInvalid(f"{_shown(written)} is not host:port")
    return host_name(found["host"]), int(found["port"]) if found["port"] else None


# --- the addresses of a name -------------------------------------------------------------------

_THREAD: Final = "rollcage-resolver"


def system_resolver(host: str, port: int) -> Sequence[str]:
    """Return all addresses that the system's resolver gives; its own time limits apply."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def bounded(resolver: Resolver, *, seconds: float = 2.0, at_once: int = 16) -> Resolver:
    """Return a resolver with a time limit.

    It runs in a thread of its own, which ends when it answers: a slow name blocks neither a
    decision nor the exit of the process. It fails at once if `at_once` lookups are running already.

    Args:
        resolver: the resolver to call.
        seconds: the time limit (then TimeoutError, an OSError).
        at_once: how many lookups may run at the same time in the process.
    """

    def resolve(host: str, port: int) -> Sequence[str]:
        # Live threads are counted: a counter or lock could be wrong after a fork.
        if sum(each.name == _THREAD for each in threading.enumerate()) >= at_once:
            raise OSError(f"{at_once} names are being resolved already")
        answers: list[Sequence[str]] = []
        errors: list[Exception] = []

        def ask() -> None:
            try:
                answers.append(resolver(host, port))
            except Exception as error:  # noqa: BLE001 - raised again in the calling thread
                errors.append(error)

        thread = threading.Thread(target=ask, name=_THREAD, daemon=True)
        thread.start()
        thread.join(seconds)
        if errors:
            raise errors[0]
        if not answers:
            raise TimeoutError(f"{_shown(host)} was not resolved within {seconds} s")
        return answers[0]

    return resolve


def why_not_public_host(host: str, port: int, resolver: Resolver) -> str | None:
    """Return why a host (in its one spelling) is not on the public internet; None if it is.

    A name is public if all its addresses are.

    Raises:
        OSError: unknown: the host has no address, or no answer came in time.
        AddressInvalid: the host has more addresses than any service needs.
    """
    if is_address(host):
        return why_not_public(host)
    if is_local_name(host):
        return "a name of a local network"
    answers = list(dict.fromkeys(resolver(host, port)))
    if not answers:
        raise OSError(f"{_shown(host)} has no address")
    if len(answers) > _MAX_ANSWERS:
        raise AddressInvalid(f"{_shown(host)} has {len(answers)} addresses; at most {_MAX_ANSWERS}")
    found = ((address, why_not_public(address)) for address in answers)
    return next((f"{address}: {why}" for address, why in found if why is not None), None)
