"""`kgym token`: works on the database, so that the first token needs no token."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import click
from rich.markup import escape

from kgym.errors import UserError
from kgym.web.scopes import Scope, Token
from kgym_cli.output import json_option, people, print_table, printed_json, results
from kgym_cli.output.answer import Answer
from kgym_cli.platforms.scheduler_choice import database_url, open_database

if TYPE_CHECKING:
    from kgym_scheduler.database.tokens import Tokens

T = TypeVar("T")


class MadeToken(Answer):
    """A new token. Its secret is shown only once."""

    name: str
    scopes: list[str]
    priority: int
    token: str


class RevokedToken(Answer):
    """A revoked token."""

    name: str


class ForgottenTokens(Answer):
    """Count of removed tokens."""

    forgotten: int


@click.group()
def token() -> None:
    """Create, list and revoke the tokens with which callers and workers authenticate.

    Tokens are in the database: KGYM_DATABASE, or that of this machine's platform. As long as
    none was ever created, a scheduler serves only this machine, but everybody on it. After the
    first one, all callers need a token, except commands of the user who runs this machine's
    platform, on its data folder.
    """


@token.command()
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    type=click.Choice([str(scope) for scope in Scope]),
    multiple=True,
    required=True,
    help="read, submit (includes read), admin (includes both) or worker; may be repeated.",
)
@click.option(
    "--priority",
    type=click.IntRange(0, 100),
    default=0,
    help="Highest priority that its jobs may request.",
)
@json_option(MadeToken)
def create(name: str, scopes: tuple[str, ...], priority: int, as_json: bool) -> None:
    """Create a token called NAME and print it. It cannot be shown again."""
    text = _on_tokens(lambda tokens: tokens.create(name, scopes, priority))
    if printed_json(
        MadeToken(name=name, scopes=list(scopes), priority=priority, token=text), as_json
    ):
        return
    people.print(
        f"token {name} ({', '.join(scopes)}), for KGYM_TOKEN or --token. From now on all callers"
        " need a token, except your own commands on this data folder"
        " (undo with `kgym token forget`):"
    )
    click.echo(text)


@token.command("list")
@json_option(list[Token])
def list_(as_json: bool) -> None:
    """List all tokens, including revoked ones."""
    known = _on_tokens(lambda tokens: tokens.list())
    if printed_json(known, as_json):
        return
    print_table("name", "scopes", "priority", "created", "revoked", rows=map(_row, known))


def _row(token: Token) -> tuple[str, ...]:
    times = [
        at.astimezone().strftime("%Y-%m-%d %H:%M:%S") if at else ""
        for at in (token.created_at, token.revoked_at)
    ]
    return escape(token.name), " ".join(token.scopes), str(token.priority), *times


@token.command()
@click.argument("name")
@json_option(RevokedToken)
def revoke(name: str, as_json: bool) -> None:
    """Revoke a token. Running schedulers refuse it within five seconds."""
    _on_tokens(lambda tokens: tokens.revoke(name))
    if printed_json(RevokedToken(name=name), as_json):
        return
    results.print(f"token {name} is revoked")


@token.command()
@json_option(ForgottenTokens)
def forget(as_json: bool) -> None:
    """Delete all tokens, including revoked ones: callers on this machine need none any more.

    This undoes the first `kgym token create`, and only works on this machine's own platform.
    """
    # SQLite is this machine's own platform; a server's database has other users, who would lose
    # access.
    if not database_url().startswith("sqlite"):
        raise UserError("shared_database", "the database is shared: revoke its tokens one by one")
    count = _on_tokens(lambda tokens: tokens.forget())
    if printed_json(ForgottenTokens(forgotten=count), as_json):
        return
    results.print(f"tokens deleted: {count}")


def _on_tokens(work: "Callable[[Tokens], Awaitable[T]]") -> T:
    from kgym_scheduler.database.tokens import Tokens  # noqa: PLC0415 - as in `connect`

    async def run() -> T:
        async with open_database() as database:
            return await work(Tokens(database))

    return asyncio.run(run())
