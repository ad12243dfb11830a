"""The URLs that may be requested, and the addresses that may be connected to.

Two checks, because either alone can be bypassed: of the *written* URL (`Reachable.check`) and of
the addresses to which its name *resolves* at the moment of connecting (`Reachable.addresses`, see
`http_wire`). URLs and addresses are parsed by the gate's code, as for policies.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Generator
from typing import Final, NamedTuple
from urllib.parse import urljoin

from rollcage_policy.addresses import (
    DEFAULT_PORTS,
    AddressInvalid,
    Resolver,
    check_characters,
    host_name,
    is_address,
    is_local_name,
    split_authority,
    split_url,
    system_resolver,
    why_not_public,
    why_not_public_host,
)

from rollcage_toolbox.errors import ToolboxError

__all__ = ["AddressRefused", "Reachable", "Resolver", "Target", "system_resolver", "why_not_public"]

_SCHEMES: Final = frozenset({"http", "https"})
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


class AddressRefused(ToolboxError):
    """A URL, a name or an address that may not be reached; nothing was sent to it."""

    code = "address_refused"


class Target(NamedTuple):
    """A URL that was checked, in its one spelling.

    Attributes:
        url: the URL, without a fragment.
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


@contextlib.contextmanager
def _refusing() -> Generator[None]:
    """Refuse unparsable input."""
    try:
        yield
    except AddressInvalid as error:
        raise AddressRefused(str(error)) from None


class Reachable:
    """The reachable schemes, hosts and ports; no address off the public internet.

    Args:
        hosts: exact names or addresses, `*.example.com` for all names below, `*` for all.
        ports: the ports that may be connected to.
        schemes: of `http` and `https`.
        private: exact `host:port` pairs that may lie off the public internet (`127.0.0.1:8080`,
            `[::1]:8080`, `db.internal:443`); they need not be in `hosts` and `ports`.

    Raises:
        ValueError: an entry that can't be parsed.
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
                raise ValueError(f"{each!r} is one text; a list of texts is expected")
        if unknown := set(schemes) - _SCHEMES:
            raise ValueError(f"{sorted(unknown)} are no schemes; what can be: http, https")
        self._schemes = frozenset(schemes)
        self._ports = frozenset(ports)
        self._all = "*" in hosts
        self._names = {_entry(h) for h in hosts if not h.startswith("*")}
        self._below = tuple("." + _entry(h[2:]) for h in hosts if h.startswith("*."))
        if odd := [h for h in hosts if h.startswith("*") and h != "*" and not h.startswith("*.")]:
            raise ValueError(
                f"{odd}: a star is written alone, or for all names below one (*.a.example)"
            )
        self._private = {_private(each) for each in private}

    def check(self, url: str) -> Target:
        """Check a written URL, and return it in its one spelling.

        Raises:
            AddressRefused: names the refused part.
        """
        with _refusing():
            scheme, host, port, rest = split_url(url, respelled=True)
        if scheme not in self._schemes:
            raise AddressRefused(f"{scheme!r} is none of {sorted(self._schemes)}: {url!r}")
        self._check_host(host, port)
        shown = f"[{host}]" if ":" in host else host
        place = shown if port == DEFAULT_PORTS[scheme] else f"{shown}:{port}"
        return Target(f"{scheme}://{place}{rest}", scheme, host, port)

    def follow(self, origin: Target, location: str) -> Target:
        """Check the target of a redirect, as strictly as the original URL.

        Raises:
            AddressRefused: the target may not be reached, or leads from https to http.
        """
        with _refusing():
            check_characters(location)  # before joining, which would leave some of them out
        try:
            # With a scheme it is complete: joining takes some of these for relative ones.
            joined = location if _SCHEME.match(location) else urljoin(origin.url, location)
        except ValueError as error:
            raise AddressRefused(f"{location!r} is no place to redirect to: {error}") from None
        target = self.check(joined)
        if origin.scheme == "https" and target.scheme == "http":
            raise AddressRefused(f"{origin.url} redirects from https to http: {target.url}")
        return target

    def is_private(self, target: Target) -> bool:
        """Return whether the target is one of the pairs that may lie off the public internet."""
        return (target.host, target.port) in self._private

    def addresses(self, host: str, port: int, resolver: Resolver = system_resolver) -> list[str]:
        """Return the addresses to connect to for a host: all of its addresses, or none.

        Raises:
            AddressRefused: one of its addresses is not on the public internet.
            OSError: the host has no address.
        """
        self._check_host(host, port)
        answers = [host] if is_address(host) else list(dict.fromkeys(resolver(host, port)))
        if (host, port) in self._private and answers:
            return answers
        with _refusing():
            why = why_not_public_host(host, port, lambda *_: answers)
        if why is not None:
            raise AddressRefused(f"{host} is not public: {why}")
        return answers

    def _check_host(self, host: str, port: int) -> None:
        if (host, port) in self._private:
            return
        if port not in self._ports:
            raise AddressRefused(f"port {port} of {host} is none of {sorted(self._ports)}")
        if not (self._all or host in self._names or host.endswith(self._below or "/")):
            raise AddressRefused(f"{host!r} is not one of the allowed hosts")
        if is_address(host):
            if why := why_not_public(host):
                raise AddressRefused(f"{host} is not public: {why}")
        elif is_local_name(host):
            raise AddressRefused(f"{host!r} is a name of a local network")


def _entry(written: str) -> str:
    bare = written.count(":") > 1 and not written.startswith("[")
    return host_name(f"[{written}]" if bare else written)


def _private(written: str) -> tuple[str, int]:
    host, port = split_authority(written)
    if port is None:
        raise ValueError(f"{written!r} is no host:port")
    return host, port
