"""`rollcage serve`, `ui` and `token`."""

from __future__ import annotations

import ipaddress
import logging
import re
import threading
import time
import webbrowser
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rollcage import open_store
from rollcage_cli.errors import UsageError
from rollcage_cli.options import DEFAULT_STORE, OFF, JsonOption, StoreOption, who
from rollcage_cli.output import console, print_json, visible
from rollcage_views import time_text

from rollcage_server.auth import Authority, OneTime
from rollcage_server.oidc import Issuer
from rollcage_server.roles import Role
from rollcage_server.stores import is_there
from rollcage_server.tokens import Token, TokenFile

__all__ = ["serve", "token", "ui"]

_SPANS: Final = {"m": 60.0, "h": 3600.0, "d": 86_400.0}
_SPAN: Final = re.compile(r"(\d{1,6})([mhd])")
_END: Final = 3  # seconds for viewers when the server ends

TokensOption = Annotated[
    Path | None,
    typer.Option("--tokens", metavar="FILE", help="The file of tokens.", show_default=False),
]
TokensFileOption = Annotated[Path, typer.Option("--tokens", metavar="FILE", help="The file.")]
PortOption = Annotated[int, typer.Option(min=0, max=65_535, help="Where to listen.")]


def serve(
    store: StoreOption = DEFAULT_STORE,
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    port: PortOption = 8321,
    tokens: TokensOption = None,
    oidc: Annotated[
        str | None,
        typer.Option(
            metavar="ISSUER", help="Believe the tokens of this issuer.", show_default=False
        ),
    ] = None,
    audience: Annotated[
        str | None,
        typer.Option(
            help="The audience that tokens have to name; with --oidc.", show_default=False
        ),
    ] = None,
    roles_claim: Annotated[
        str, typer.Option(help="The claim that lists roles.")
    ] = "rollcage_roles",
    name_claim: Annotated[str, typer.Option(help="The claim that names the caller.")] = "sub",
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A name by which the server is called; repeatable.",
            show_default=False,
        ),
    ] = None,
    viewers: Annotated[int, typer.Option(min=1, help="How many follow runs at once.")] = 500,
) -> None:
    """Serve Mission Control: pages, and an API below /api/v1.

    Without --tokens and --oidc it listens on this machine only, and prints an address that signs
    one browser in, once.
    """
    known = Authority(None if tokens is None else TokenFile(tokens), _issuer(
        oidc, audience, roles_claim, name_claim))  # fmt: skip
    if known.tokens is not None:
        known.tokens.list()  # a problem is reported now
    if known.tokens is None and known.issuer is None:
        if not _is_local(host):
            raise UsageError(
                f"--host {visible(host)} can be reached by others: name who may see what, with "
                f"--tokens FILE or --oidc ISSUER --audience NAME"
            )
        known = Authority(once=OneTime(who(None)))
    _run(store, known, host, port, allow_host or [], viewers, browser=False)


def ui(
    store: StoreOption = DEFAULT_STORE,
    port: PortOption = 0,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the address.")] = OFF,
) -> None:
    """Open Mission Control in the browser of this machine."""
    known = Authority(once=OneTime(who(None)))
    _run(store, known, "127.0.0.1", port, [], 500, browser=not no_browser)


# --- tokens --------------------------------------------------------------------------------------

token = typer.Typer(
    name="token",
    help="Make and revoke the tokens of people and programs.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
_DEFAULT_TOKENS: Final = Path("rollcage-tokens.json")


@token.callback()
def _group() -> None:
    """Hold the commands."""


@token.command("create")
def create(
    name: Annotated[
        str, typer.Option(help="Who has the token; approvals and the audit log name them.")
    ],
    role: Annotated[
        list[Role],
        typer.Option(help="What the token allows; repeatable."),
    ],
    tokens: TokensFileOption = _DEFAULT_TOKENS,
    expires: Annotated[
        str, typer.Option(metavar="SPAN", help="How long the token is valid: 30m, 12h, 90d.")
    ] = "30d",
    as_json: JsonOption = OFF,
) -> None:
    """Make a token. Its text is shown once, and kept nowhere: the file has a hash of it."""
    made, text = TokenFile(tokens).create(name, role, _seconds(expires))
    if as_json:
        print_json(_data(made) | {"token": text})
        return
    out = console()
    out.print(text, soft_wrap=True)
    message = f"for {visible(made.name)} ({', '.join(made.roles)})"
    until = time_text(made.expires * 10**6)
    console(error=True).print(f"{message} until {until}", soft_wrap=True)


@token.command("list")
def list_(tokens: TokensFileOption = _DEFAULT_TOKENS, as_json: JsonOption = OFF) -> None:
    """List tokens: their names, roles and ends."""
    found = TokenFile(tokens).list()
    if as_json:
        print_json({"tokens": [_data(each) for each in found]})
        return
    out = console()
    for each in found:
        data = _data(each)
        until = time_text(each.expires * 10**6)
        out.print(f"{each.id}  {data['state']:<8} {until}  {visible(each.name)} "
                  f"({', '.join(each.roles)})", soft_wrap=True)  # fmt: skip


@token.command("revoke")
def revoke(
    id: Annotated[str, typer.Argument(metavar="ID", show_default=False)],  # noqa: A002
    tokens: TokensFileOption = _DEFAULT_TOKENS,
    as_json: JsonOption = OFF,
) -> None:
    """Revoke a token, and end its sessions."""
    gone = TokenFile(tokens).revoke(id)
    if as_json:
        print_json(_data(gone))
        return
    console().print(f"token {gone.id} of {visible(gone.name)} is revoked", soft_wrap=True)


# --- inside --------------------------------------------------------------------------------------


def _run(
    store: str,
    known: Authority,
    host: str,
    port: int,
    names: list[str],
    viewers: int,
    *,
    browser: bool,
) -> None:
    import uvicorn

    from rollcage_server.app import create_app

    _check_there(store)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    app = create_app(store, known, hosts=names, viewers=viewers)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            host=host,
            port=port,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            timeout_graceful_shutdown=_END,
        )
    )
    announced = threading.Thread(
        target=_announce, args=(server, known, host), kwargs={"browser": browser}
    )
    announced.daemon = True
    announced.start()
    server.run()
    if not server.started:
        raise UsageError(f"nothing can listen at {visible(host)}, port {port}: take another --port")


def _check_there(store: str) -> None:
    """Refuse a store that does not exist: its name may be wrong. A database may come back.

    Raises:
        UsageError: the store does not exist.
    """
    own = open_store(store)
    if not is_there(own):
        shown = visible(own.url)
        raise UsageError(f"there is no store at {shown} yet: the first session makes it")


def _announce(server: Any, known: Authority, host: str, *, browser: bool) -> None:
    """Print the server's address, once it listens."""
    tick = threading.Event()
    while not server.started:
        if server.should_exit:
            return
        tick.wait(0.02)
    listening = server.servers[0].sockets[0].getsockname()
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{listening[1]}/"
    if known.once is not None:
        address += f"login?once={known.once.text}"
    console(error=True).print(f"Mission Control: {address}", soft_wrap=True)
    if browser:
        webbrowser.open(address)


def _issuer(oidc: str | None, audience: str | None, roles: str, name: str) -> Issuer | None:
    if oidc is None:
        if audience is not None:
            raise UsageError("--audience goes with --oidc ISSUER")
        return None
    if not audience:
        raise UsageError("--oidc needs --audience NAME: it says whose tokens are accepted here")
    return Issuer(oidc, audience, roles_claim=roles, name_claim=name)


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _seconds(span: str) -> float:
    match = _SPAN.fullmatch(span)
    if match is None or int(match[1]) == 0:
        raise UsageError(f"--expires {visible(span)}: give it as 30m, 12h or 90d")
    return int(match[1]) * _SPANS[match[2]]


def _data(each: Token) -> dict[str, Any]:
    return {
        "id": each.id, "name": each.name, "roles": list(each.roles), "created": each.created,
        "expires": each.expires, "state": each.state(time.time()),
    }  # fmt: skip
