"""Storage in a bucket whose server fails, is cut off, throttles, and is used by others as well."""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from kgym.errors import InfrastructureError, UserError
from kgym.transport.artifact_storage import ArtifactMissing
from kgym.transport.gcs.connection import connect
from kgym.transport.gcs.storage import CALLS, GcsStorage
from tests.google.cloud_storage.faults import Kind
from tests.google.cloud_storage.server import CloudStorage
from tests.refused import refused
from tests.transport.buckets import Bucket

pytestmark = pytest.mark.anyio

# Bytes of a file that is sent and fetched in two parts.
LARGE = 20 << 20
SIZES = pytest.mark.parametrize("size", [1000, LARGE])


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CloudStorage]:
    with CloudStorage(tmp_path / "cloud") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        yield server


@pytest.fixture
def bucket(cloud: CloudStorage, tmp_path: Path) -> Iterator[Bucket]:
    opened = Bucket(cloud, tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def storage(bucket: Bucket) -> GcsStorage:
    return bucket.storage


@pytest.fixture
async def impatient(bucket: Bucket, tmp_path: Path) -> AsyncIterator[GcsStorage]:
    """A storage that soon gives up."""
    opened = GcsStorage(bucket.name, bucket.prefix, tmp_path / "c", connect(CALLS), patience=0.3)
    yield opened
    opened.close()


@contextlib.contextmanager
def raises(reason: str, message: str = ".") -> Iterator[None]:
    with pytest.raises(InfrastructureError, match=message) as raised:
        yield
    assert raised.value.reason == reason


def some(path: Path, size: int) -> bytes:
    path.write_bytes(os.urandom(size))
    return path.read_bytes()


async def content(storage: GcsStorage, key: str, size: int) -> bytes:
    return b"".join([chunk async for chunk in storage.read(key, 0, size)])


# --- faults that pass ------------------------------------------------------------------------


@pytest.mark.thorough
@SIZES
@pytest.mark.parametrize(
    ("kind", "number"), [("status", 429), ("status", 503), ("status", 408), ("reset", 0)]
)
async def test_what_fails_for_a_while_is_done_in_the_end(
    bucket: Bucket, tmp_path: Path, size: int, kind: Kind, number: int
) -> None:
    storage, faults = bucket.storage, bucket.cloud.faults
    data = some(tmp_path / "file", size)
    faults.add("^(POST|PUT|GET)", kind, number, times=2)
    await storage.put("steps/1/file", tmp_path / "file")
    faults.add("^GET", kind, number, times=2)
    await storage.get("steps/1/file", tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == data
    faults.add("alt=media", kind, number, times=2)
    assert await content(storage, "steps/1/file", size) == data
    faults.add("^POST", kind, number, times=2)
    await storage.copy("steps/1/file", "steps/2/file")
    faults.add("prefix=", kind, number, times=2)
    assert await storage.sizes("steps", 1) == {"steps/1": size, "steps/2": size}
    faults.add("^DELETE", kind, number, times=2)
    await storage.remove("steps/1")
    assert list(bucket.sizes()) == ["steps/2/file"]
    assert faults.left == 0


# Of an upload that is cut after 100 bytes, the store keeps nothing: its quantum is larger.
@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "number"), [("status", 503), ("cut_upload", 100)])
async def test_what_does_not_pass_is_an_error_after_a_while(
    bucket: Bucket, impatient: GcsStorage, tmp_path: Path, kind: Kind, number: int
) -> None:
    some(tmp_path / "file", LARGE)
    bucket.cloud.faults.add("^PUT", kind, number, times=1000)
    with raises("storage_failed"):
        await impatient.put("a", tmp_path / "file")
    assert bucket.sizes() == {}


@SIZES
async def test_an_upload_whose_answer_is_lost_is_done_once(
    bucket: Bucket, tmp_path: Path, size: int
) -> None:
    data = some(tmp_path / "file", size)
    bucket.cloud.faults.add("^(PUT|POST .*multipart)", "lost_answer")
    artifact = await bucket.storage.put("steps/1/file", tmp_path / "file")
    assert (artifact.size, bucket.content("steps/1/file")) == (size, data)
    assert bucket.cloud.faults.left == 0
    name = f"{bucket.prefix}/steps/1/file"
    own = bucket.cloud.buckets.get(bucket.name, name).own["metadata"]
    assert own["sha256"] == artifact.sha256


@pytest.mark.parametrize("answer", ["^DELETE", "^POST .*rewriteTo", "^PATCH"])
async def test_other_lost_answers_do_no_harm(bucket: Bucket, tmp_path: Path, answer: str) -> None:
    storage = bucket.storage
    data = some(tmp_path / "file", 10_000)
    base = await storage.put_base(tmp_path / "file")
    await storage.put("steps/1/file", tmp_path / "file")
    bucket.age_base(base, 1e6)
    bucket.cloud.faults.add(answer, "lost_answer")
    assert await storage.has_base(base)
    await storage.copy("steps/1/file", "steps/2/file")
    await storage.remove("steps/1")
    assert bucket.cloud.faults.left == 0
    assert sorted(bucket.sizes()) == [f"bases/{base}/file", "steps/2/file"]
    assert bucket.content("steps/2/file") == data


@pytest.mark.thorough
@pytest.mark.parametrize("kept", [0, 1 << 18, 3_000_000])
async def test_an_upload_that_breaks_off_is_done_in_the_end(
    bucket: Bucket, tmp_path: Path, kept: int
) -> None:
    data = some(tmp_path / "file", LARGE)
    bucket.cloud.faults.add("^PUT", "cut_upload", 100)
    bucket.cloud.faults.add("^PUT", "cut_upload", kept)
    await bucket.storage.put("a", tmp_path / "file")
    assert bucket.content("a") == data
    assert bucket.cloud.faults.left == 0


async def test_an_upload_that_the_store_forgot_begins_anew(bucket: Bucket, tmp_path: Path) -> None:
    data = some(tmp_path / "file", LARGE)
    bucket.cloud.faults.add("^PUT", "cut_upload", 3_000_000)
    bucket.cloud.faults.add("^PUT", "status", 410)
    await bucket.storage.put("a", tmp_path / "file")
    assert bucket.content("a") == data


@pytest.mark.thorough
async def test_a_download_goes_on_where_it_broke_off(bucket: Bucket, tmp_path: Path) -> None:
    data = some(tmp_path / "file", LARGE)
    await bucket.storage.put("a", tmp_path / "file")
    for at in (0, 1, 2_000_000):
        bucket.cloud.faults.add("alt=media", "cut_download", at)
    await bucket.storage.get("a", tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == data
    bucket.cloud.faults.add("alt=media", "cut_download", 2_000_000)
    read = b"".join([chunk async for chunk in bucket.storage.read("a", 1_000_000, LARGE - 5)])
    assert read == data[1_000_000:-5]
    assert bucket.cloud.faults.left == 0


@pytest.mark.thorough
async def test_a_copy_takes_as_many_calls_as_the_store_wants(
    bucket: Bucket, tmp_path: Path
) -> None:
    data = some(tmp_path / "file", LARGE)
    await bucket.storage.put("a", tmp_path / "file")
    bucket.cloud.rewrite_bytes = 1 << 20
    await bucket.storage.copy("a", "b")
    assert bucket.content("b") == data
    calls = [line for line in bucket.cloud.requests if "rewriteTo" in line]
    assert len(calls) == LARGE >> 20
    await bucket.storage.get("b", tmp_path / "again")  # its SHA-256 came with it


# --- damage ----------------------------------------------------------------------------------


async def test_what_is_damaged_on_its_way_is_fetched_again(bucket: Bucket, tmp_path: Path) -> None:
    data = some(tmp_path / "file", LARGE)
    await bucket.storage.put("a", tmp_path / "file")
    bucket.cloud.faults.add("alt=media", "damage", 4_000_000)
    await bucket.storage.get("a", tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == data


@pytest.mark.thorough
@SIZES
async def test_what_the_store_has_damaged_is_an_error(
    bucket: Bucket, tmp_path: Path, size: int
) -> None:
    data = bytearray(some(tmp_path / "file", size))
    await bucket.storage.put("a", tmp_path / "file")
    data[size // 2] ^= 1
    bucket.damage("a", bytes(data))
    with raises("artifact_damaged"):
        await bucket.elsewhere().get("a", tmp_path / "again")
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["file"]


@pytest.mark.thorough
async def test_a_file_that_changes_while_it_is_sent_is_not_stored(
    bucket: Bucket, tmp_path: Path
) -> None:
    some(tmp_path / "file", LARGE)
    faults = bucket.cloud.faults
    faults.add("^PUT", "cut_upload", 1_000_000)
    faults.add("^PUT", "status", 503, times=6)

    def change() -> None:
        while faults.left > 6:
            time.sleep(0.001)
        with (tmp_path / "file").open("r+b") as file:
            file.seek(LARGE - 10)
            file.write(b"other")

    changing = threading.Thread(target=change)
    changing.start()
    with raises("storage_failed", "CRC32C"):
        await bucket.storage.put("a", tmp_path / "file")
    changing.join()
    assert bucket.sizes() == {}


# --- others ----------------------------------------------------------------------------------


@pytest.mark.thorough
async def test_of_two_writers_of_one_name_each_file_is_whole(
    bucket: Bucket, tmp_path: Path
) -> None:
    here, there = bucket.storage, bucket.elsewhere()
    kinds = {some(tmp_path / "one", 70_000), some(tmp_path / "other", 2 << 20)}
    await here.put("a", tmp_path / "one")
    done = False

    async def write(storage: GcsStorage, name: str) -> None:
        for _ in range(10):
            await storage.put("a", tmp_path / name)

    async def read() -> set[bytes]:
        contents = set()
        while not done:
            await there.get("a", tmp_path / "read")
            contents.add((tmp_path / "read").read_bytes())
        return contents

    reading = asyncio.create_task(read())
    await asyncio.gather(write(here, "one"), write(there, "other"))
    done = True
    assert await reading <= kinds
    assert bucket.content("a") in kinds


@pytest.mark.thorough
async def test_what_is_stored_while_a_folder_is_removed_stays(
    bucket: Bucket, tmp_path: Path
) -> None:
    some(tmp_path / "file", 10)
    await bucket.storage.put("a/file", tmp_path / "file")
    bucket.cloud.faults.add("^DELETE", "status", 503, times=4)
    removing = asyncio.create_task(bucket.storage.remove("a"))
    while bucket.cloud.faults.left > 3:
        await asyncio.sleep(0.001)
    bucket.overwrite("a/file", b"newer")
    await removing
    assert bucket.content("a/file") == b"newer"


@pytest.mark.attack
async def test_what_others_put_into_the_bucket_is_not_taken_for_ours(
    bucket: Bucket, tmp_path: Path
) -> None:
    foreign = "0" * 64
    for key in ("bases/x", f"bases/{foreign}/other", f"bases/{foreign}/file", "steps/../../x"):
        bucket.overwrite(key, b"x" * 10_000)
    bucket.cloud.replace(bucket.name, "elsewhere", b"x")
    storage = bucket.storage
    assert not await storage.has_base(foreign)
    some(tmp_path / "file", 10_000)
    kept = await storage.put("steps/1/file", tmp_path / "file", base=foreign)
    assert kept.key == "steps/1/file"
    assert await storage.sizes("steps", 1) == {"steps/1": 10_000, "steps/..": 10_000}
    assert list(await storage.remove_bases(-1)) == [foreign]


@pytest.mark.thorough
async def test_lists_come_in_pages_with_no_more_than_is_asked_for(
    bucket: Bucket, cloud: CloudStorage
) -> None:
    for number in range(2500):
        bucket.overwrite(f"steps/{number % 7}/{number}", b"x")
    cloud.requests.clear()
    sizes = await bucket.storage.sizes("steps", 1)
    assert sum(sizes.values()) == 2500
    assert len(sizes) == 7
    asked = [parse_qs(urlsplit(request.split(" ")[1]).query) for request in cloud.requests]
    assert len(asked) == 3
    assert all(request["fields"][0].startswith("items(name,size") for request in asked)


@pytest.mark.thorough
async def test_so_many_calls_are_under_way_at_once_and_no_more(
    bucket: Bucket, tmp_path: Path
) -> None:
    some(tmp_path / "file", 10)
    await asyncio.gather(*(bucket.storage.put(f"a/{n}", tmp_path / "file") for n in range(100)))
    assert len(bucket.sizes()) == 100
    assert 1 < bucket.cloud.most_at_once <= CALLS


# --- credentials -----------------------------------------------------------------------------


@pytest.fixture
def signing(
    cloud: CloudStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Bucket]:
    """A bucket that only a service account may use."""
    cloud.account("worker", tmp_path / "key.json")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    opened = Bucket(cloud, tmp_path)
    yield opened
    opened.close()


@pytest.mark.thorough
async def test_a_service_account_gets_a_token_and_another_when_that_is_expired(
    signing: Bucket, tmp_path: Path
) -> None:
    data = some(tmp_path / "file", LARGE)
    await signing.storage.put("a", tmp_path / "file")
    signing.cloud.accounts.forget_tokens()
    await signing.storage.get("a", tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == data
    signing.cloud.faults.add("^PUT", "status", 401)  # of a part: it is sent again as a whole
    await signing.storage.put("b", tmp_path / "file")
    assert signing.content("b") == data
    assert len([request for request in signing.cloud.requests if "/token" in request]) == 3


@pytest.mark.attack
async def test_whoever_has_no_token_gets_nothing(
    signing: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some(tmp_path / "file", 10)
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
    stranger = signing.elsewhere()
    with raises("storage_refused"):
        await stranger.put("a", tmp_path / "file")
    with raises("storage_refused"):
        await stranger.sizes("steps", 1)
    assert signing.sizes() == {}


async def test_a_link_gives_the_file_to_anybody_for_a_while(
    signing: Bucket, tmp_path: Path
) -> None:
    data = some(tmp_path / "file", 100_000)
    await signing.storage.put("steps/1/a+b.c~" + "0" * 64, tmp_path / "file")
    await signing.storage.put("steps/1/a+b.ç", tmp_path / "file")
    link = await signing.storage.link("steps/1/a+b.ç")
    assert link is not None
    async with httpx.AsyncClient() as client:
        assert (await client.get(link)).content == data
        part = await client.get(link, headers={"Range": "bytes=99990-"})
        assert (part.status_code, part.content) == (206, data[99_990:])
        assert (await client.get(link.replace("steps", "stepz"))).status_code == 403
        signing.cloud.accounts.ahead = 3700
        assert (await client.get(link)).status_code == 400  # expired
        signing.cloud.accounts.ahead = -1000
        assert (await client.get(link)).status_code == 403  # signed in the future
        signing.cloud.accounts.ahead = 0
        signing.overwrite("steps/1/a+b.ç", b"another file of that name")
        assert (await client.get(link)).status_code == 404
    assert await signing.storage.link("steps/1/a+b.c~" + "0" * 64) is None
    with pytest.raises(ArtifactMissing):
        await signing.storage.link("steps/9/x")


async def test_without_a_key_there_are_no_links(bucket: Bucket, tmp_path: Path) -> None:
    some(tmp_path / "file", 10)
    await bucket.storage.put("a", tmp_path / "file")
    assert await bucket.storage.link("a") is None


def test_without_credentials_it_is_said_how_to_give_some(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "absent.json"))
    with refused("no_credentials", kind=UserError):
        connect(1)


async def test_a_bucket_that_is_not_there_is_named(cloud: CloudStorage, tmp_path: Path) -> None:
    storage = GcsStorage("absent", "", tmp_path / "cache")
    some(tmp_path / "file", 10)
    with pytest.raises(InfrastructureError, match="no bucket absent"):
        await storage.put("a", tmp_path / "file")
    with pytest.raises(InfrastructureError, match="no bucket absent"):
        await storage.sizes("steps", 1)
    storage.close()


async def test_a_bucket_can_be_used_without_a_prefix(cloud: CloudStorage, tmp_path: Path) -> None:
    bucket = Bucket(cloud, tmp_path, prefix="")
    data = some(tmp_path / "file", 10)
    await bucket.storage.put("steps/1/file", tmp_path / "file")
    stored = cloud.buckets.get(bucket.name, "steps/1/file")
    assert stored.file.read_bytes() == data
    assert abs(datetime.now(UTC).timestamp() - stored.created) < 60
    assert await bucket.storage.sizes("steps", 1) == {"steps/1": 10}
    bucket.close()
