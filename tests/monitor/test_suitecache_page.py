"""The page of SuiteCache: which kernels are kept, where, and what jobs on them came to."""

import asyncio
import json
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from playwright.sync_api import expect

from kgym.api.outcomes import Outcome
from kgym.api.steps import StepKind
from kgym.api.suitecache import EntryFilter, EntryMaking, HeldEntry
from kgym.api.worker_calls import Claim, WorkerInfo
from kgym.transport.artifact_storage import LocalStorage
from kgym.worker.http_calls import HttpWorkerCalls
from tests.demo.demo_site import demo_site
from tests.demo.showcase import ENTRY, HOSTILE, trial
from tests.monitor.browsing import Visitor
from tests.monitor.conftest import PATIENCE, Reader, Site

HOST = "builder-7"
SHA256 = "01" * 32
expect.set_options(timeout=PATIENCE)


def run(work: Coroutine[Any, Any, Any]) -> None:
    """Do it in a loop of its own: that of the browser runs in this thread."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, work).result()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site of its own: these tests count all jobs on an entry."""
    with demo_site(tmp_path_factory.mktemp("data")) as own:
        yield own


def stored(site: Site, name: str, folder: Path, **about: str) -> None:
    """Keep an entry in storage, with a file that is not small."""
    about = {
        "image_sha256": SHA256,
        "kernel_release": "6.1.192",
        "compiler_version": "gcc-12 12.2.0",
        "source_identity": "package:linux-source-6.1=6.1.192-1",
        "backports": ["dtc-yylloc"],
        **about,
    }
    image, about_file = folder / "image", folder / "about.json"
    image.write_bytes(b"x" * 1_500_000)
    about_file.write_text(json.dumps(about))
    storage = LocalStorage(site.data / "artifacts")
    making = EntryMaking(
        image_sha256=SHA256,
        toolchain="",
        files="",
        rehearsal="unequal",
        reason="vmlinux .text differs",
        objects=1229,
        made_at=datetime.now(UTC),
        seconds=420,
    )
    how = folder / "making.json"
    how.write_text(making.model_dump_json())
    run(storage.put(f"suitecache/{name}/{SHA256[:32]}/making.json", how))
    run(storage.put(f"suitecache/{name}/{SHA256[:32]}/image.squashfs", image))
    run(storage.put(f"suitecache/{name}/about.json", about_file))


def tell(site: Site, worker: str, *held: HeldEntry) -> None:
    """Be a worker that says which entries its host keeps."""

    async def claim() -> None:
        info = WorkerInfo(id=worker, kinds=[StepKind.CHECK], slots=1)
        async with HttpWorkerCalls(site.scheduler) as calls:
            await calls.claim(Claim(id=uuid4(), worker=info, want=0, entries=list(held)))

    run(claim())


@pytest.fixture(scope="module")
def entries(site: Site, tmp_path_factory: pytest.TempPathFactory) -> None:
    """An entry in storage, used by a job and kept by a worker; and one that nobody has used."""
    folder = tmp_path_factory.mktemp("entries")
    stored(site, ENTRY, folder)
    stored(site, "hostile", folder, kernel_release=HOSTILE)
    tell(site, f"{HOST}:12:abc", HeldEntry(name=ENTRY, bytes=1_500_000))
    job = site.client.submit(trial())
    site.client.wait(job.id)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        [entry] = site.client.suitecache(EntryFilter(name=ENTRY)).entries or [None]
        if entry is not None and entry.outcomes.get(Outcome.RESOLVED) and entry.kernel_release:
            return
        time.sleep(0.1)
    raise AssertionError("the job's entry was not counted within a minute")


@pytest.mark.usefixtures("entries")
def test_the_page_says_what_is_kept_where_and_who_uses_it(visitor: Visitor) -> None:
    text = visitor.get("/suitecache").text
    for words in ("6.1.192", "gcc-12 12.2.0", "linux-source-6.1", "dtc-yylloc", "1.5 MB"):
        assert words in text
    assert ENTRY[:12] in text
    assert HOST in text
    assert "made from scratch" in text
    assert "vmlinux .text differs" in text
    assert f"/jobs?entry={ENTRY}&amp;outcome=resolved" in text
    assert "1 resolved" in text
    assert "1 job<" in text


@pytest.mark.usefixtures("entries")
def test_an_entry_leads_to_its_jobs(visitor: Visitor) -> None:
    text = visitor.get(f"/jobs?entry={ENTRY}").text
    assert 'id="job-1"' in text
    assert f'value="{ENTRY}"' in text
    assert "No job matches this filter" in visitor.get("/jobs?entry=" + "0" * 40).text
    assert 'role="alert"' in visitor.get("/jobs?entry=../x").text


@pytest.mark.usefixtures("entries")
def test_entries_are_searched(visitor: Visitor) -> None:
    for words, shown in ((HOST, True), (ENTRY[:9], True), ("gcc-12", True), ("6.99", False)):
        text = visitor.get("/suitecache", params={"text": words}).text
        assert (ENTRY in text) == shown, words
    assert "No entry matches this filter" in visitor.get("/suitecache?text=6.99").text
    assert 'role="alert"' in visitor.get("/suitecache?text=" + "x" * 300).text


@pytest.mark.usefixtures("entries")
def test_what_an_entry_says_of_itself_is_text(visitor: Visitor) -> None:
    text = visitor.get("/suitecache").text
    assert "<script>document.title" not in text
    assert "&lt;script&gt;" in text
    assert "\x1b" not in text


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("entries")
def test_the_page_tells_of_a_new_entry_without_reloading(
    reader: Reader, site: Site, tmp_path: Path
) -> None:
    page = reader.live("/suitecache")
    page.evaluate("window.sameDocument = true")
    stored(site, "new-one", tmp_path, kernel_release="6.6.6")
    expect(page.locator("tr", has_text="6.6.6")).to_contain_text("no job known")
    tell(site, f"{HOST}:99:x", HeldEntry(name="new-one", bytes=5))
    expect(page.locator("tr", has_text="6.6.6")).to_contain_text(HOST)
    assert page.evaluate("window.sameDocument") is True
    assert page.title().startswith("SuiteCache")
