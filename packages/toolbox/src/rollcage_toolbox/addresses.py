"""Which URLs may be asked, and which addresses may be connected to.

Two checks, because either alone can be walked around: what is *written* (`Reachable.check`) and
what the name *resolves to* at the moment of connecting (`Reachable.addresses`, see `http_wire`).
What reads differently to two parsers (userinfo, backslashes, numbers that some take for addresses,
look-alike letters) is refused, never interpreted.

Sources: the IANA special-purpose address registries (RFC 6890), RFC 6761 (names), RFC 6052 and 8215
(NAT64), RFC 3056 (6to4), RFC 5214 (ISATAP), UTS #46 (IDNA), the metadata addresses that the cloud
providers document.
"""

from __future__ import annotations

import re
import socket
import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final, NamedTuple
from urllib.parse import urljoin

import idna

from rollcage_toolbox.errors import ToolboxError

__all__ = ["AddressRefused", "Reachable", "Resolver", "Target", "system_resolver", "why_not_public"]

Resolver = Callable[[str, int], Sequence[str]]
"""Gives all addresses of a name, for a port; raises OSError where there is none."""

_MAX_URL: Final = 8_000
_MAX_ANSWERS: Final = 32
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class AddressRefused(ToolboxError):
    """A URL, a name or an address that may not be reached; nothing was sent to it."""

    code = "address_refused"


class Target(NamedTuple):
    """A URL that was checked, in its one spelling.

    Attributes:
        url: what is asked; without a fragment.
        scheme: `http` or `https`.
        host: in lower case and ASCII; an IPv6 address without its brackets.
        port: always a number.
    """

    url: str
    scheme: str
    host: str
    port: int

    @property
    def origin(self) -> tuple[str, str, int]:
        """Scheme, host and port (RFC 6454)."""
        return self.scheme, self.host, self.port


def system_resolver(host: str, port: int) -> Sequence[str]:
    """All addresses that the system's resolver gives; its own time limits apply."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


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
_GLOBAL_IPV6: Final = IPv6Network("2000::/3")  # nothing else is handed out
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
    """Why an address in its canonical form is none of the public internet; None where it is one."""
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
        return "no global unicast address"
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


def _host_name(written: str) -> str:
    """A host in its one spelling: an address in canonical form, or an ASCII name in lower case."""
    if written.startswith("[") and written.endswith("]"):
        return _ipv6(written[1:-1])
    name = written.lower() if written.isascii() else _to_ascii(written)
    name = name.removesuffix(".")
    labels = name.split(".")
    if _NUMBER.fullmatch(labels[-1]):  # some parser takes it for an address: only if all do
        return _ipv4(name)
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise AddressRefused(f"{written!r} is no name of a host")
    for label in labels:
        if label.startswith("xn--"):
            _check_letters(written, _decoded(written, label))
    return name


def _ipv4(written: str) -> str:
    try:
        return str(IPv4Address(written))  # refuses leading zeros, and all but four decimal parts
    except ValueError:
        raise AddressRefused(
            f"{written!r} is a number that only some read as an address; write four decimal parts"
        ) from None


def _ipv6(written: str) -> str:
    try:
        if "%" in written:
            raise ValueError
        return str(IPv6Address(written))
    except ValueError:
        raise AddressRefused(f"[{written}] is no IPv6 address") from None


def _to_ascii(written: str) -> str:
    """IDNA 2008, without the mappings of UTS #46: what they change looks like something else."""
    try:
        as_meant = unicodedata.normalize("NFC", written) == written
        if as_meant and idna.uts46_remap(written, std3_rules=True) == written.lower():
            return idna.encode(written.lower(), std3_rules=True).decode("ascii")
    except idna.IDNAError as error:
        raise AddressRefused(f"{written!r} is no name of a host: {error}") from None
    raise AddressRefused(f"{written!r} is spelled with letters that stand for others")


def _decoded(written: str, label: str) -> str:
    try:
        return idna.ulabel(label)
    except idna.IDNAError as error:
        raise AddressRefused(f"{written!r} is no name of a host: {error}") from None


def _check_letters(written: str, label: str) -> None:
    """A label of Latin letters and of others that look like them is made to be mistaken."""
    scripts = {unicodedata.name(c, "?").split()[0] for c in label if c.isalpha()}
    if "LATIN" in scripts and scripts & _MIXED:
        raise AddressRefused(f"{written!r} mixes letters of several scripts in {label!r}")


def _is_local_name(host: str) -> bool:
    labels = host.split(".")
    return len(labels) == 1 or labels[-1] in _LOCAL_NAMES or ".".join(labels[-2:]) in _LOCAL_NAMES


def _is_address(host: str) -> bool:
    return ":" in host or host.rsplit(".", 1)[-1].isdigit()


# --- what may be reached -------------------------------------------------------------------------

_URL: Final = re.compile(
    r"(?P<scheme>[A-Za-z]+)://(?P<authority>[^/?#]*)(?P<path>[^?#]*)(?P<query>\?[^#]*)?(?:#.*)?"
)
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_AUTHORITY: Final = re.compile(r"(?P<host>\[[^\[\]@]*\]|[^\[\]:@]+)(?::(?P<port>[1-9][0-9]{0,4}))?")
_INVISIBLE: Final = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"})


class Reachable:
    """What may be reached: schemes, hosts, ports; and no address off the public internet.

    Args:
        hosts: exact names or addresses, `*.example.com` for all names below, `*` for all.
        ports: the ports that may be connected to.
        schemes: of `http` and `https`.
        private: exact `host:port` pairs that may lie off the public internet (`127.0.0.1:8080`,
            `[::1]:8080`, `db.internal:443`); they need not stand in `hosts` and `ports`.

    Raises:
        ValueError: an entry that can't be read.
    """

    def __init__(
        self,
        *,
        hosts: Collection[str],
        ports: Collection[int] = (80, 443),
        schemes: Collection[str] = ("https", "http"),
        private: Collection[str] = (),
    ) -> None:
        for each in (hosts, private, schemes):
            if isinstance(each, str):
                raise ValueError(f"{each!r} stands where a list of them is expected")
        if unknown := set(schemes) - set(_DEFAULT_PORTS):
            raise ValueError(f"{sorted(unknown)} are no schemes; what can be: http, https")
        self._schemes = frozenset(schemes)
        self._ports = frozenset(ports)
        self._all = "*" in hosts
        self._names = {_entry(h) for h in hosts if not h.startswith("*")}
        self._below = tuple("." + _entry(h[2:]) for h in hosts if h.startswith("*."))
        if odd := [h for h in hosts if h.startswith("*") and h != "*" and not h.startswith("*.")]:
            raise ValueError(
                f"{odd}: a star stands alone, or for all names below one (*.a.example)"
            )
        self._private = {_private(each) for each in private}

    def check(self, url: str) -> Target:
        """Check what is written, and bring it into its one spelling.

        Raises:
            AddressRefused: says which part may not be.
        """
        found = _parts(url)
        scheme = found["scheme"].lower()
        if scheme not in self._schemes:
            raise AddressRefused(f"{scheme!r} is none of {sorted(self._schemes)}: {url!r}")
        authority = _AUTHORITY.fullmatch(found["authority"])
        if authority is None or "%" in found["authority"]:
            raise AddressRefused(
                f"{found['authority']!r} is no host and port; names, passwords and escapes are "
                f"not taken"
            )
        host = _host_name(authority["host"])
        port = int(authority["port"] or _DEFAULT_PORTS[scheme])
        self._check_host(host, port)
        shown = f"[{host}]" if ":" in host else host
        place = shown if port == _DEFAULT_PORTS[scheme] else f"{shown}:{port}"
        rest = (found["path"] or "/") + (found["query"] or "")
        return Target(f"{scheme}://{place}{rest}", scheme, host, port)

    def follow(self, origin: Target, location: str) -> Target:
        """Check where a redirect leads, as strictly as what was asked for first.

        Raises:
            AddressRefused: it may not be reached, or leads from https to http.
        """
        _check_characters(location)  # before joining, which would leave some of them out
        try:
            # With a scheme it stands for itself: joining takes some of these for relative ones.
            joined = location if _SCHEME.match(location) else urljoin(origin.url, location)
        except ValueError as error:
            raise AddressRefused(f"{location!r} is no place to redirect to: {error}") from None
        target = self.check(joined)
        if origin.scheme == "https" and target.scheme == "http":
            raise AddressRefused(f"{origin.url} redirects from https to http: {target.url}")
        return target

    def is_private(self, target: Target) -> bool:
        """Whether it is one of the pairs that may lie off the public internet."""
        return (target.host, target.port) in self._private

    def addresses(self, host: str, port: int, resolver: Resolver = system_resolver) -> list[str]:
        """The addresses that may be connected to for a host: all that it has, or none.

        Raises:
            AddressRefused: one of its addresses is none of the public internet.
            OSError: it has no address.
        """
        self._check_host(host, port)
        answers = [host] if _is_address(host) else list(dict.fromkeys(resolver(host, port)))
        if not answers:
            raise OSError(f"{host} has no address")
        if (host, port) in self._private:
            return answers
        if len(answers) > _MAX_ANSWERS:
            raise AddressRefused(f"{host} has {len(answers)} addresses; at most {_MAX_ANSWERS}")
        for address in answers:
            if why := why_not_public(address):
                raise AddressRefused(f"{host} is {address}, which is not public: {why}")
        return answers

    def _check_host(self, host: str, port: int) -> None:
        if (host, port) in self._private:
            return
        if port > 65535 or port not in self._ports:
            raise AddressRefused(f"port {port} of {host} is none of {sorted(self._ports)}")
        if not (self._all or host in self._names or host.endswith(self._below or "/")):
            raise AddressRefused(f"{host!r} is none of the hosts that may be asked")
        if _is_address(host):
            if why := why_not_public(host):
                raise AddressRefused(f"{host} is not public: {why}")
        elif _is_local_name(host):
            raise AddressRefused(f"{host!r} is a name of a local network")


def _parts(url: str) -> re.Match[str]:
    if len(url) > _MAX_URL:
        raise AddressRefused(f"a URL of {len(url)} characters; at most {_MAX_URL}")
    _check_characters(url)
    found = _URL.fullmatch(url)
    if found is None:
        raise AddressRefused(f"{url!r} is no URL of the form http(s)://host/path")
    return found


def _check_characters(url: str) -> None:
    if odd := next((c for c in url if c == "\\" or unicodedata.category(c) in _INVISIBLE), None):
        raise AddressRefused(f"{odd!a} can't stand in a URL: {url[:_MAX_URL]!a}")


def _entry(written: str) -> str:
    try:
        bare = written.count(":") > 1 and not written.startswith("[")
        return _host_name(f"[{written}]" if bare else written)
    except AddressRefused as error:
        raise ValueError(str(error)) from None


def _private(written: str) -> tuple[str, int]:
    found = _AUTHORITY.fullmatch(written)
    if found is None or found["port"] is None or int(found["port"]) > 65535:
        raise ValueError(f"{written!r} is no host:port")
    return _entry(found["host"]), int(found["port"])
