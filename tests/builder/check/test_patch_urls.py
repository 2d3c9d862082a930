"""Patches from the archive of a mailing list, on a local server that answers as lore does."""

import gzip
import ipaddress
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from kgym.api.steps import Patch
from kgym.errors import InfrastructureError, KgymError, UserError
from kgym.source import patching
from kgym_builder.check import patch_urls
from kgym_builder.kernel_source.allowed_origins import Origins
from tests.builder.kernel_source.web import Answer, Web, ok, redirect, serving

pytestmark = pytest.mark.anyio

HUNK = "--- a/a.c\n+++ b/a.c\n@@ -1 +1 @@\n-int a{};\n+int a{};\n"
HEAD = "From mboxrd@z Thu Jan  1 00:00:00 1970\nMessage-Id: <{}@x>\nSubject: {}\n\nText.\n---\n{}\n"
THREAD = "".join(
    HEAD.format(number, subject, body)
    for number, (subject, body) in enumerate(
        [
            ("[PATCH 1/1] a: first try", HUNK.format(0, 8)),
            ("[PATCH v2 0/2] a: two steps", " a.c | 2 +-\n"),
            ("[PATCH v2 2/2] a: second step", HUNK.format(1, 2)),
            ("[PATCH v2 1/2] a: first step", HUNK.format(0, 1)),
            ("Re: [PATCH v2 1/2] a: first step", "> quoted\nAcked-by: A <a@example.org>\n"),
        ]
    )
)
LORE = {
    "/all/1@x/t.mbox.gz": gzip.compress(THREAD.encode()),
    "/all/1@x/raw": HEAD.format(1, "[PATCH v2 1/2] a: first step", HUNK.format(0, 1)).encode(),
}


def lore(path: str) -> list[bytes]:
    if path in LORE:
        return ok(LORE[path])
    return [b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"]


def origins(*hosts: str) -> Origins:
    """Return the permission to fetch from these hosts, with the network of this machine."""
    return Origins(
        networks=(ipaddress.ip_network("127.0.0.0/8"),),
        patch_hosts=frozenset(host.partition("//")[2] for host in hosts),
    )


async def get(url: str, allowed: Origins) -> Patch:
    with TemporaryDirectory() as folder:
        patch = Patch(name="mail", url=url)
        return await patch_urls.fetch(patch, allowed, Path(folder, "mail"))


async def fetched(web: Web, path: str) -> Patch:
    return await get(f"{web.url}{path}", origins(web.url))


@pytest.mark.parametrize(
    "path", ["/all/1@x/", "/all/1@x/T/#u", "/all/1@x", "/r/1@x", "/all/1@x/t.mbox.gz"]
)
async def test_of_a_thread_the_newest_series_is_taken_with_trailers(path: str) -> None:
    async with serving(lore) as web:
        patch = await fetched(web, path)
    applied = patching.apply(patch, {"a.c": b"int a0;\n"})
    assert applied.changes[0].content == b"int a2;\n"
    assert "Acked-by: A <a@example.org>" in applied.notes
    assert any("a: first try" in note for note in applied.notes)


async def test_a_single_raw_mail() -> None:
    async with serving(lore) as web:
        patch = await fetched(web, "/all/1@x/raw")
    assert patching.apply(patch, {"a.c": b"int a0;\n"}).changes[0].content == b"int a1;\n"


async def failure(answer: Answer, url: Callable[[Web], str], *hosts: str) -> KgymError:
    async with serving(answer) as web:
        allowed = origins(*hosts or (web.url,))
        with pytest.raises(KgymError) as caught:
            await get(url(web), allowed)
    return caught.value


@pytest.mark.attack
async def test_only_hosts_that_the_operator_allows_are_asked() -> None:
    async with serving(lore) as web, serving(lore) as other:
        for url in (f"{other.url}/all/1@x/", f"{web.url.replace('http://', 'http://a@')}/all/1@x/"):
            with pytest.raises(UserError) as caught:
                await get(url, origins(web.url))
            assert caught.value.reason in {"url_not_allowed", "source_not_allowed"}
        with pytest.raises(UserError, match="KGYM_PATCH_HOSTS"):
            await get(f"{web.url}/all/1@x/", Origins())
        # An allowed name that leads into a network that is not allowed.
        closed = Origins(patch_hosts=frozenset([web.url.partition("//")[2]]))
        with pytest.raises(UserError, match="no public address"):
            await get(f"{web.url}/all/1@x/", closed)
        assert (web.asked, other.asked) == ([], [])


@pytest.mark.attack
async def test_a_redirect_to_another_host_is_not_followed() -> None:
    async with serving(lore) as other:
        for target in (f"{other.url}/all/1@x/raw", "file:///etc/passwd", "http://169.254.169.254/"):

            def answer(_: str, target: str = target) -> list[bytes]:
                return redirect(target)

            error = await failure(answer, lambda web: f"{web.url}/all/x/raw")
            assert error.reason in {"url_not_allowed", "source_not_allowed"}
        assert other.asked == []


@pytest.mark.thorough
@pytest.mark.attack
async def test_what_is_too_large_is_not_read_to_its_end() -> None:
    def endless(_: str) -> list[bytes]:
        return [b"HTTP/1.1 200 OK\r\n\r\n", *[b"x" * (1 << 20)] * 200]

    bomb = gzip.compress(b"x" * (64 << 20))
    for answer in (endless, lambda _: ok(bomb)):
        error = await failure(answer, lambda web: f"{web.url}/all/1@x/")
        assert error.reason in {"patch_too_large", "source_too_large"}


async def test_what_is_not_there_is_named() -> None:
    assert (await failure(lore, lambda web: f"{web.url}/all/2@x/")).reason == "source_not_found"
    assert "names no mail" in (await failure(lore, lambda web: f"{web.url}/all")).message
    damaged = await failure(lambda _: ok(b"\x1f\x8bxx"), lambda web: f"{web.url}/all/1@x/")
    assert isinstance(damaged, InfrastructureError)
