"""Tokens in the database."""

import pytest
from sqlalchemy import text

from kgym.errors import Conflict, NotFound, UserError
from kgym_scheduler.database.tokens import Tokens
from kgym_scheduler.scheduler import Scheduler

pytestmark = pytest.mark.anyio


async def test_a_token_is_stored_only_as_a_hash(tokens: Tokens, scheduler: Scheduler) -> None:
    token = await tokens.create("alice", ["read"])
    secret = token.split("_", 2)[2]
    assert len(secret) == 43  # 256 bits in base64
    async with scheduler.store.database.read() as connection:
        [row] = (await connection.execute(text("SELECT * FROM tokens"))).all()
    assert "alice" in row
    assert secret not in str(row)


async def test_a_token_says_whose_it_is_and_a_wrong_one_nothing(tokens: Tokens) -> None:
    token = await tokens.create("alice", ["submit", "read"])
    caller = await tokens.caller(token)
    assert caller is not None
    assert (caller.name, sorted(caller.scopes)) == ("alice", ["read", "submit"])
    other = await tokens.create("bob", ["admin"])
    mixed = "_".join([*other.split("_")[:2], token.split("_", 2)[2]])
    for wrong in (mixed, token[:-1], token + "x", "", "kgym_0_" + "a" * 43, "kgym_9_" + "a" * 43):
        assert await tokens.caller(wrong) is None


async def test_a_revoked_token_is_not_valid_and_its_name_is_free(tokens: Tokens) -> None:
    first = await tokens.create("alice", ["read"])
    with pytest.raises(Conflict, match="there is a token 'alice'"):
        await tokens.create("alice", ["read"])
    await tokens.revoke("alice")
    second = await tokens.create("alice", ["read"])
    assert await tokens.caller(first) is None
    assert await tokens.caller(second) is not None
    assert [token.revoked_at is None for token in await tokens.list()] == [False, True]
    with pytest.raises(NotFound, match="no valid token 'bob'"):
        await tokens.revoke("bob")


async def test_a_bad_name_is_refused(tokens: Tokens) -> None:
    for name in ("local", "", "a b", "ä", "-x", "x" * 101):
        with pytest.raises(UserError, match="cannot be the name"):
            await tokens.create(name, ["read"])


async def test_a_scope_that_there_is_not_is_refused(tokens: Tokens) -> None:
    for scopes in ([], ["root"], ["read", "root"]):
        with pytest.raises(UserError, match="the scopes of a token"):
            await tokens.create("alice", scopes)
