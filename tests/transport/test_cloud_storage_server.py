"""The emulator of Google Cloud Storage behaves like the service where no test of ours shows it.

It is called by Google's own client, and by plain HTTP for what that hides. Ranges, pages and
generations are covered by the tests of our storage.
"""

import base64
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import httpx
import pytest
from google.api_core.exceptions import BadRequest, NotFound, PreconditionFailed
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from tests.google.cloud_storage.server import CloudStorage

QUARTER = 256 << 10


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[CloudStorage]:
    with CloudStorage(tmp_path / "cloud") as server:
        server.buckets.create("b")
        yield server


@pytest.fixture
def bucket(cloud: CloudStorage) -> Iterator[Any]:
    options = {"api_endpoint": cloud.url}
    with storage.Client("p", AnonymousCredentials(), client_options=options) as client:
        yield client.bucket("b")


@pytest.fixture
def http(cloud: CloudStorage) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=cloud.url, trust_env=False, verify=False) as client:
        yield client


def crc32c(data: bytes) -> str:
    return base64.b64encode(google_crc32c.Checksum(data).digest()).decode()


# --- preconditions ---------------------------------------------------------------------------


@pytest.mark.parametrize("size", [10, 2 * QUARTER])
def test_a_name_that_is_taken_is_not_taken_again(bucket: Any, size: int) -> None:
    blob = bucket.blob("a", chunk_size=QUARTER)
    blob.upload_from_file(io.BytesIO(bytes(size)), size=size, if_generation_match=0)
    with pytest.raises(PreconditionFailed):
        blob.upload_from_file(io.BytesIO(b"x" * size), size=size, if_generation_match=0)
    assert bucket.blob("a").download_as_bytes() == bytes(size)
    blob.upload_from_file(io.BytesIO(b"x"), size=1, if_generation_match=blob.generation)
    assert bucket.blob("a").download_as_bytes() == b"x"


def test_a_name_that_is_taken_while_an_upload_goes_on_is_not_replaced_at_its_end(
    cloud: CloudStorage, http: httpx.Client
) -> None:
    where = begun(http, "a", "&ifGenerationMatch=0")
    assert http.put(where, content=bytes(QUARTER), headers=span(0, QUARTER, 2)).status_code == 308
    cloud.replace("b", "a", b"somebody's")
    last = http.put(where, content=bytes(QUARTER), headers=span(QUARTER, QUARTER, 2))
    assert last.status_code == 412
    assert cloud.buckets.get("b", "a").file.read_bytes() == b"somebody's"
    assert http.put(where, headers={"Content-Range": "bytes */*"}).status_code == 404


def test_a_change_and_a_removal_are_those_of_what_was_seen(bucket: Any) -> None:
    blob = bucket.blob("a")
    blob.upload_from_string(b"1")
    first = blob.metageneration
    blob.metadata = {"x": "1", "y": "2"}
    blob.patch(if_metageneration_match=first)
    blob.metadata = {"x": None, "z": "3"}
    blob.patch()
    assert bucket.get_blob("a").metadata == {"y": "2", "z": "3"}
    with pytest.raises(PreconditionFailed):
        blob.patch(if_metageneration_match=first)
    with pytest.raises(PreconditionFailed):
        bucket.delete_blob("a", if_metageneration_match=first)
    bucket.delete_blob("a", if_generation_match=blob.generation)
    with pytest.raises(NotFound):
        bucket.delete_blob("a")


# --- uploads ---------------------------------------------------------------------------------


def begun(http: httpx.Client, name: str, more: str = "", **own: str) -> str:
    path = f"/upload/storage/v1/b/b/o?uploadType=resumable{more}"
    answer = http.post(path, json={"name": name, **own})
    assert answer.status_code == 200
    return answer.headers["Location"]


def span(start: int, length: int, quarters: int) -> dict[str, str]:
    return {"Content-Range": f"bytes {start}-{start + length - 1}/{quarters * QUARTER}"}


def test_an_upload_says_how_far_it_has_come(cloud: CloudStorage, http: httpx.Client) -> None:
    data = os.urandom(3 * QUARTER)
    where = begun(http, "a")
    asked = {"Content-Range": f"bytes */{len(data)}"}
    answer = http.put(where, headers=asked)
    assert (answer.status_code, "Range" in answer.headers) == (308, False)
    cloud.faults.add("^PUT", "cut_upload", QUARTER + 1000)
    with pytest.raises(httpx.TransportError):
        http.put(where, content=data, headers=span(0, len(data), 3))
    answer = http.put(where, headers=asked)
    assert answer.headers["Range"] == f"bytes=0-{QUARTER - 1}"
    # What the store has already is passed over; what would leave a gap is refused.
    gap = http.put(where, content=data[2 * QUARTER :], headers=span(2 * QUARTER, QUARTER, 3))
    assert gap.status_code == 400
    answer = http.put(where, content=data[1000:], headers=span(1000, len(data) - 1000, 3))
    assert answer.status_code == 200
    assert answer.json()["crc32c"] == crc32c(data)
    assert http.put(where, headers=asked).json() == answer.json()  # whose answer was lost
    assert cloud.buckets.get("b", "a").file.read_bytes() == data


def test_a_wrong_checksum_is_refused_and_nothing_appears(
    cloud: CloudStorage, http: httpx.Client, bucket: Any
) -> None:
    for where in (begun(http, "a", crc32c=crc32c(b"other")), begun(http, "a")):
        wrong = {"X-Goog-Hash": f"crc32c={crc32c(b'other')}"}
        assert http.put(where, content=b"this", headers=wrong).status_code == 400
    blob = bucket.blob("a")
    blob.crc32c = crc32c(b"other")
    with pytest.raises(BadRequest):
        blob.upload_from_string(b"this", checksum=None)
    assert cloud.buckets.page("b").objects == []


# --- copies ----------------------------------------------------------------------------------


def test_a_copy_has_what_its_source_had_or_only_what_is_said(
    cloud: CloudStorage, bucket: Any
) -> None:
    source = bucket.blob("a")
    source.metadata = {"sha256": "1"}
    source.upload_from_string(bytes(100), "text/x")
    cloud.rewrite_bytes = 30
    copy, token, calls = bucket.blob("b"), None, 0
    while True:
        token, done, total = copy.rewrite(source, token=token)
        calls += 1
        if token is None:
            break
        assert done < total
    assert calls == 4
    assert (copy.metadata, copy.content_type) == ({"sha256": "1"}, "text/x")
    other = bucket.blob("c")
    other.metadata = {"other": "2"}
    with pytest.raises(BadRequest, match="content type"):
        other.rewrite(source)
    cloud.rewrite_bytes = 1 << 30
    other.content_type = "text/y"
    other.rewrite(source)
    assert (other.metadata, other.content_type) == ({"other": "2"}, "text/y")
