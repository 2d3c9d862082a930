"""What a worker's words can do: nothing to steps that it does not hold."""

import os
import uuid
from pathlib import Path
from typing import Any

import pytest

from kgym.api.jobs import Artifact
from kgym.api.states import State
from kgym.api.suitecache import EntryFilter
from kgym.api.worker_calls import AttemptEnding, attempt_folder
from kgym.errors import UserError
from kgym.transport.artifact_storage import LocalStorage
from kgym_scheduler.job_store import JobStore
from kgym_scheduler.queue import attempt_reports
from kgym_scheduler.suitecache_entries import SuiteCacheEntries
from tests.conftest import NewRun
from tests.scheduler.parts import BUILD, BUILT, REPRODUCED, WELL, claim_of, job

pytestmark = [pytest.mark.anyio, pytest.mark.attack]


BASE = "0" * 64


def left(key: str, name: str = "vmlinux") -> AttemptEnding:
    artifact = Artifact(name=name, size=1, sha256="0" * 64, key=key)
    return AttemptEnding(result=BUILT, artifacts=[artifact])


async def test_an_artifact_is_a_file_of_the_attempt_and_no_other(store: JobStore) -> None:
    for _ in range(2):
        await store.submit(job())
    mine, other = (await store.claim(claim_of(want=2)))[0].assignments
    own = attempt_folder(mine.step_id, mine.lease)
    hers = attempt_folder(other.step_id, other.lease)
    for key in (
        f"{hers}/vmlinux",
        f"{hers}/vmlinux~{BASE}",
        f"{own}/vmlinux~{BASE}/x",
        f"{own}/vmlinux~..",
        f"{own}/../{hers.rpartition('/')[2]}/vmlinux",
        f"{own}/config",
        "suitecache/x/image",
        "/etc/passwd",
        own,
    ):
        with pytest.raises(UserError, match="no file of this attempt"):
            await store.finish(mine.lease, left(key))
    assert (await store.get(mine.job_id)).steps[0].artifacts == []
    assert await store.finish(mine.lease, left(f"{own}/vmlinux~{BASE}"))
    assert await store.finish(other.lease, WELL)
    assert [file.key for file in await store.artifacts(mine.job_id, 0)] == [f"{own}/vmlinux~{BASE}"]


async def test_a_result_of_another_kind_is_none(store: JobStore) -> None:
    await store.submit(job())
    mine = (await store.claim(claim_of()))[0].assignments[0]
    assert await store.finish(mine.lease, AttemptEnding(result=REPRODUCED))
    (step,) = (await store.get(1)).steps
    assert (step.state, step.result) == (State.QUEUED, None)


async def test_a_folder_in_the_shared_storage_does_not_tell_a_lease(
    new_run: NewRun, store: JobStore, tmp_path: Path
) -> None:
    run = new_run(BUILD)
    (tmp_path / "step.log").write_text("x")
    await run.keep(tmp_path / "step.log")
    lease = run.assignment.lease
    key = run.artifacts[0].key
    assert lease.hex not in key
    assert str(lease) not in key
    assert key == f"{attempt_folder(run.assignment.step_id, lease)}/step.log"
    await store.submit(job())
    claimed = (await store.claim(claim_of()))[0].assignments[0]
    seen = attempt_folder(claimed.step_id, claimed.lease).rpartition("/")[2]
    assert not await store.finish(uuid.UUID(seen), WELL)


@pytest.mark.parametrize(
    "about",
    [
        b"[" * 100_000,
        b"{}",
        b'{"kernel_release": 7}',
        b"\xff",
        b'{"kernel_release": "6.1", "compiler_version": "gcc", "source_identity": "x",'
        b' "image_sha256": "../../x"}',
        8 << 40,
        "link",
    ],
    ids=lambda about: f"{about!r}"[:40],
)
async def test_a_forged_description_of_an_entry_shows_an_entry_without(
    store: JobStore, tmp_path: Path, about: bytes | int | str
) -> None:
    storage = LocalStorage(tmp_path / "storage")
    path = storage.root / "suitecache" / "0123abcd" / "about.json"
    path.parent.mkdir(parents=True)
    if isinstance(about, bytes):
        path.write_bytes(about)
    elif isinstance(about, int):
        path.touch()
        os.truncate(path, about)  # it would fill the scheduler's disk as a copy
    else:
        (tmp_path / "secret").write_text(
            '{"kernel_release": "secret", "compiler_version": "", "source_identity": ""}'
        )
        path.symlink_to(tmp_path / "secret")
    (entry,) = (await SuiteCacheEntries(store, storage).page(EntryFilter())).entries
    assert (entry.name, entry.kernel_release) == ("0123abcd", None)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"sha256": text} for text in ('"\r\nSet-Cookie: a=b', "0" * 63)),
        *({"name": name} for name in ("a/../b", "a\nb", "x" * 256)),
        *({"size": -1}, {"size": 1 << 63}, {"key": "k" * 1001}),
    ],
)
def test_what_names_an_artifact_can_stand_in_a_header(wrong: dict[str, Any]) -> None:
    right = {"name": "vmlinux", "size": 1, "sha256": "0" * 64, "key": "k"}
    assert Artifact.model_validate(right)
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Artifact.model_validate(right | wrong)


async def test_an_endless_log_does_not_fill_the_database(
    store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_reports, "LOG", 100)
    await store.submit(job())
    lease = (await store.claim(claim_of()))[0].assignments[0].lease
    for _ in range(10):
        assert await store.report(lease, "x" * 30, None)
    text = "".join(event.data["text"] for event in await store.log(1, 0))
    assert text.count("x" * 30) == 3
    assert text.startswith("x" * 100 + "\n(the rest of over")
    assert text.count("step.log") == 1


def test_the_volume_of_quiet_attempts_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_reports, "_LEASES", 5)
    volume = attempt_reports.LogVolume()
    for _ in range(100):
        volume.cut(uuid.uuid4(), "x")
    assert len(volume._logged) == 5
