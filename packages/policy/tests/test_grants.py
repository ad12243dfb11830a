"""What each word of permissions covers."""

import ipaddress
from pathlib import Path

import pytest
from rollcage_policy.grants import Access, grants_of


@pytest.mark.parametrize(
    ("word", "access", "path", "covered"),
    [
        ("fs:read", "read", "/anywhere", True),
        ("fs:read", "write", "/anywhere", False),
        ("fs:write", "write", "/anywhere", True),
        ("fs:write", "read", "/anywhere", False),
        ("fs:read:/srv", "read", "/srv", True),
        ("fs:read:/srv", "read", "/srv/a/b", True),
        ("fs:read:/srv/", "read", "/srv/a", True),
        ("fs:read:/srv/**", "read", "/srv/a", True),
        ("fs:read:/srv/x/..", "read", "/srv/a", True),
        ("fs:read:/srv", "read", "/srvother", False),
        ("fs:read:/srv", "read", "/", False),
        ("fs:read:/", "read", "/anything", True),
        ("fs:reed:/srv", "read", "/srv", False),
        ("disk", "read", "/srv", False),
    ],
)
def test_files(word: str, access: Access, path: str, covered: bool) -> None:
    assert grants_of([word]).covers_path(access, path) is covered


def test_roots_are_where_their_links_lead(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    grants = grants_of([f"fs:write:{tmp_path / 'link'}"])
    assert grants.covers_path("write", str(real / "file"))
    assert not grants.covers_path("write", str(tmp_path / "other"))


def test_a_root_may_be_relative_or_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    grants = grants_of(["fs:write:out-of-here", "fs:read:~/notes"])
    assert grants.covers_path("write", str(tmp_path / "out-of-here" / "x"))
    assert grants.covers_path("read", str(tmp_path / "me" / "notes" / "x"))


@pytest.mark.parametrize(
    ("word", "name", "covered"),
    [
        ("net", "any.example", True),
        ("net:*", "any.example", True),
        ("net:API.example.com", "api.example.com.", True),
        ("net:api.example.com:443", "api.example.com", True),
        ("net:example.com", "api.example.com", False),
        ("net:*.example.com", "api.example.com", True),
        ("net:*.example.com", "example.com", False),
        ("net:*.example.com", "badexample.com", False),
        ("net:*:443", "any.example", True),
        ("net:10.0.0.0/8", "any.example", False),
        ("net:unix", "any.example", False),
        ("http:get", "any.example", False),
    ],
)
def test_hosts(word: str, name: str, covered: bool) -> None:
    assert grants_of([word]).covers_name(name) is covered


@pytest.mark.parametrize(
    ("word", "address", "port"),
    [
        ("net:10.1.2.3", "10.1.2.3", None),
        ("net:10.1.2.3:80", "10.1.2.3", 80),
        ("net:10.0.0.0/8", "10.1.2.3", None),
        ("net:::1", "::1", None),
        ("net:[::1]", "::1", None),
        ("net:[::1]:80", "::1", 80),
        ("net:*:80", "10.1.2.3", 80),
    ],
)
def test_addresses(word: str, address: str, port: int | None) -> None:
    hosts = grants_of([word]).hosts
    assert hosts is not None
    (host,) = hosts
    assert host.holds(ipaddress.ip_address(address))
    assert host.port == port


def test_sockets_and_programs() -> None:
    grants = grants_of(["net:unix:/run/a.sock", "process:git"])
    assert grants.covers_socket("/run/a.sock")
    assert not grants.covers_socket("/run/b.sock")
    assert grants.covers_program("/usr/bin/git")
    assert not grants.covers_program("/usr/bin/rm")
    assert grants_of(["net:unix"]).covers_socket("/run/b.sock")
    assert grants_of(["net"]).covers_socket("/run/b.sock")
    assert grants_of(["process"]).covers_program("rm")
