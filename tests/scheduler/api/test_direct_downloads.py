"""Files that clients fetch from the storage itself, by a signed URL."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from kgym.api.steps import BuildResult, StepKind
from kgym.client import AsyncClient, Client
from kgym.transport.artifact_storage import Storage
from kgym.transport.gcs.storage import GcsStorage
from kgym.web.server import serve
from kgym.worker.context import StepContext
from kgym_scheduler.api.app import create_app
from tests.google.cloud_storage.server import CloudStorage
from tests.scheduler.conftest import NewDatabase
from tests.scheduler.parts import BUILT, Clock, Platform, job

pytestmark = pytest.mark.anyio

CONTENT = b"0123456789abcdef" * (1 << 17)  # 2 MiB
TOKEN = "the-owner's"


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CloudStorage]:
    with CloudStorage(tmp_path / "cloud") as server:
        server.buckets.create("artifacts")
        server.account("scheduler", tmp_path / "key.json")
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
        yield server


@pytest.fixture
def storage(cloud: CloudStorage, tmp_path: Path) -> Iterator[Storage]:
    opened = GcsStorage("artifacts", "kgym", tmp_path / "cache")
    yield opened
    opened.close()


async def build(run: StepContext) -> BuildResult:
    (run.folder / "vmlinux").write_bytes(CONTENT)
    await run.keep(run.folder / "vmlinux")
    return BUILT


@pytest.fixture
async def server(storage: Storage, new_sqlite: NewDatabase, tmp_path: Path) -> AsyncIterator[str]:
    """The URL of a scheduler with one finished job, whose files are in the bucket."""
    platform = Platform(new_sqlite(), tmp_path, Clock())
    platform.storage = storage
    async with (
        platform.scheduler() as scheduler,
        serve(create_app(scheduler, owner=TOKEN)) as address,
        platform.worker(scheduler, {StepKind.BUILD: build}),
        AsyncClient(address.url, TOKEN) as client,
    ):
        await client.wait((await client.submit(job())).id)
        yield address.url


def signed(cloud: CloudStorage) -> list[int]:
    """Return which requests came with a signed URL."""
    return [n for n, url in enumerate(cloud.requests) if "X-Goog-Signature" in url]


@pytest.mark.thorough
async def test_a_download_comes_from_the_storage_and_shows_it_no_token(
    server: str, cloud: CloudStorage, tmp_path: Path
) -> None:
    async with AsyncClient(server, TOKEN) as client:
        await client.download(1, 0, "vmlinux", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT
    (asked,) = signed(cloud)
    assert cloud.shown[asked] is None
    assert not [url for url in cloud.requests if "alt=media" in url]


async def test_what_is_here_already_is_not_fetched_again(
    server: str, cloud: CloudStorage, tmp_path: Path
) -> None:
    cloud.faults.add("X-Goog-Signature", "cut_download", 1 << 20)
    async with AsyncClient(server, TOKEN) as client:
        await client.download(1, 0, "vmlinux", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert len(signed(cloud)) == 1
    assert len([url for url in cloud.requests if "alt=media" in url]) == 1  # the scheduler's


@pytest.mark.parametrize("ahead", [3700, -1000])
async def test_a_url_that_a_wrong_clock_made_worthless_does_no_harm(
    server: str, cloud: CloudStorage, tmp_path: Path, ahead: int
) -> None:
    cloud.accounts.ahead = ahead
    async with AsyncClient(server, TOKEN) as client:
        await client.download(1, 0, "vmlinux", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert len(signed(cloud)) == 1


@pytest.mark.attack
async def test_a_storage_that_gives_out_another_file_is_noticed(
    server: str, cloud: CloudStorage, tmp_path: Path
) -> None:
    cloud.faults.add("X-Goog-Signature", "damage", 5)
    async with AsyncClient(server, TOKEN) as client:
        with pytest.raises(Exception, match="SHA-256"):
            await client.download(1, 0, "vmlinux", tmp_path / "file")
        assert not (tmp_path / "file").exists()
        await client.download(1, 0, "vmlinux", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT


async def test_who_does_not_ask_for_a_url_gets_the_file(server: str, cloud: CloudStorage) -> None:
    where = f"{server}/v1/jobs/1/steps/0/artifacts/vmlinux"
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}) as http:
        assert (await http.get(where)).content == CONTENT
        answer = await http.get(where, params={"direct": "true"})
    assert answer.status_code == 307
    assert answer.headers["Location"].startswith(f"{cloud.url}/artifacts/kgym/steps/")
    assert answer.headers["Cache-Control"] == "no-store"


async def test_the_blocking_client_does_the_same(
    server: str, cloud: CloudStorage, tmp_path: Path
) -> None:
    def fetch() -> None:
        with Client(server, TOKEN) as client:
            client.download(1, 0, "vmlinux", tmp_path / "file")
            cloud.accounts.ahead = 3700
            client.download(1, 0, "vmlinux", tmp_path / "again")

    await asyncio.to_thread(fetch)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert (tmp_path / "again").read_bytes() == CONTENT
    assert len(signed(cloud)) == 2
