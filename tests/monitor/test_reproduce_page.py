"""What a reproduce step offers: consoles side by side, and a bundle to run it again by hand."""

import asyncio
import io
import tarfile
from pathlib import Path

import httpx
import pytest

from kgym.api.jobs import JobView
from kgym.client import Client
from kgym.transport.artifact_storage import LocalStorage
from kgym_cli.jobs import artifact_download
from kgym_scheduler.database.connection import Database
from kgym_scheduler.retention import artifact_retention
from kgym_scheduler.retention.artifact_retention import ArtifactPolicy
from tests.demo.showcase import trial
from tests.monitor.browsing import Visitor, words
from tests.monitor.conftest import Site
from tests.tables import json_rows

# The two reproduce steps of a trial.
CRASHED, FIXED = 1, 3


@pytest.fixture(scope="module")
def job(site: Site) -> JobView:
    return site.client.wait(site.client.submit(trial()).id)


def unpacked(archive: bytes) -> dict[str, tuple[int, bytes]]:
    """Return mode and content of each file by its name."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        files = {member.name: (member.mode, opened.extractfile(member)) for member in opened}
        return {name: (mode, file.read()) for name, (mode, file) in files.items() if file}


def stored(site: Site, name: str, step: int, job: JobView) -> Path:
    """Return the file that storage holds an artifact in."""
    [artifact_] = [artifact_ for artifact_ in job.steps[step].artifacts if artifact_.name == name]
    return site.data / "artifacts" / artifact_.key


async def remove(site: Site, job: JobView) -> None:
    """Have retention remove the files of a job."""
    storage = LocalStorage(site.data / "artifacts")
    database = Database(f"sqlite+aiosqlite:///{site.data / 'kgym.db'}")
    try:
        policy = ArtifactPolicy(artifact_budget=0)
        old = await artifact_retention.old_files(database, storage, policy)
        own = [file for file in old if file.job == job.id]
        assert await artifact_retention.remove_files(database, storage, own) == own
    finally:
        await database.close()


# --- the bundle ---------------------------------------------------------------------------


def test_a_bundle_is_downloaded_from_the_page(
    visitor: Visitor, site: Site, job: JobView, tmp_path: Path
) -> None:
    page = visitor.get(f"/jobs/{job.id}?step={CRASHED}")
    address = f"/jobs/{job.id}/steps/{CRASHED}/bundle.tar.gz"
    assert f'href="{address}"' in page.text
    assert "kB when it is unpacked" in words(page)
    answer = visitor.get(address)
    assert answer.headers["content-type"] == "application/gzip"
    assert f"job-{job.id}-step-1-bundle.tar.gz" in answer.headers["content-disposition"]
    files = unpacked(answer.content)
    assert files["bundle/reproduce.sh"][0] == 0o755
    assert files["bundle/kernel"][1] == stored(site, "bzImage", 0, job).read_bytes()
    assert {"bundle/vmlinux", "bundle/config", "bundle/initrd-0.cpio"} < files.keys()
    step = job.steps[CRASHED]
    fetched = artifact_download.pack(site.client, job, step, tmp_path, quiet=True)
    assert unpacked(Path(fetched.path).read_bytes()) == files


def test_a_build_has_no_bundle(visitor: Visitor, job: JobView) -> None:
    answer = visitor.get(f"/jobs/{job.id}/steps/0/bundle.tar.gz")
    assert answer.status_code == 404
    assert "has no artifacts for a bundle" in words(answer)
    assert "bundle.tar.gz" not in visitor.get(f"/jobs/{job.id}?step=0").text


@pytest.mark.attack
@pytest.mark.parametrize("lost", [True, False])
def test_a_bundle_breaks_off_where_a_file_is_not_as_it_was_stored(
    visitor: Visitor, site: Site, *, lost: bool
) -> None:
    """What came so far is no whole archive, and the browser says that the download failed."""
    job = site.client.wait(site.client.submit(trial()).id)
    file = stored(site, "vmlinux", 0, job)
    if lost:
        file.unlink()
    else:
        file.write_bytes(b"x" * file.stat().st_size)
    with pytest.raises(httpx.RemoteProtocolError):
        visitor.get(f"/jobs/{job.id}/steps/{CRASHED}/bundle.tar.gz")


# --- consoles -----------------------------------------------------------------------------


def consoles(page: httpx.Response) -> list[int]:
    """Return the instances whose consoles a page shows."""
    return [n for n in range(10) if f'aria-labelledby="instance-{n}"' in page.text]


def test_consoles_stand_side_by_side(visitor: Visitor, job: JobView) -> None:
    base = f"/jobs/{job.id}/steps/{CRASHED}/consoles"
    assert f'action="{base}"' in visitor.get(f"/jobs/{job.id}?step={CRASHED}").text
    page = visitor.get(base)
    assert consoles(page) == [0, 1]
    assert f"{base.removesuffix('consoles')}files/console-1.log/text" in page.text
    assert consoles(visitor.get(f"{base}?instance=1")) == [1]


def test_instances_that_differ_are_shown_first(site: Site, visitor: Visitor) -> None:
    job = site.client.wait(site.client.submit(trial("MIXED")).id)
    page = visitor.get(f"/jobs/{job.id}/steps/{FIXED}/consoles")
    shown = consoles(page)
    last = job.steps[FIXED].result.instances[-1].number  # type: ignore[union-attr]
    assert shown == [0, last]
    assert "survived" in words(page)


@pytest.mark.parametrize(
    ("step", "query", "status", "message"), json_rows(__file__, "missing_consoles.jsonl")
)
def test_consoles_that_are_not_there_are_named(
    visitor: Visitor, job: JobView, step: int, query: str, status: int, message: str
) -> None:
    answer = visitor.get(f"/jobs/{job.id}/steps/{step}/consoles{query}")
    assert answer.status_code == status
    assert message in words(answer)


def test_files_that_retention_removed_are_named(site: Site, visitor: Visitor) -> None:
    """They are offered nowhere, and whoever asks for them is told what to do."""
    with Client(site.scheduler) as client:
        job = client.wait(client.submit(trial()).id)
    asyncio.run(remove(site, job))
    page = visitor.get(f"/jobs/{job.id}?step={CRASHED}")
    assert "Manual reproduction is not possible: retention removed" in words(page)
    assert "/consoles" not in page.text
    for path in ("consoles", "bundle.tar.gz"):
        answer = visitor.get(f"/jobs/{job.id}/steps/{CRASHED}/{path}")
        assert answer.status_code == 410
        assert "restart the job" in words(answer)
