"""What a worker's words can do: nothing to steps that it does not hold."""

import uuid
from typing import Any

import pytest

from kgym.api.jobs import Artifact
from kgym.api.worker_calls import AttemptEnding
from kgym.errors import UserError
from kgym_scheduler.job_store import JobStore
from kgym_scheduler.queue import attempt_reports
from tests.scheduler.parts import BUILT, WELL, claim_of, job

pytestmark = [pytest.mark.anyio, pytest.mark.attack]


BASE = "0" * 64


def left(key: str, name: str = "vmlinux") -> AttemptEnding:
    artifact = Artifact(name=name, size=1, sha256="0" * 64, key=key)
    return AttemptEnding(result=BUILT, artifacts=[artifact])


async def test_an_artifact_is_a_file_of_the_attempt_and_no_other(store: JobStore) -> None:
    for _ in range(2):
        await store.submit(job())
    mine, other = (await store.claim(claim_of(want=2)))[0].assignments
    own = f"steps/{mine.step_id}/{mine.lease.hex}"
    hers = f"steps/{other.step_id}/{other.lease.hex}"
    for key in (
        f"{hers}/vmlinux",
        f"{hers}/vmlinux~{BASE}",
        f"{own}/vmlinux~{BASE}/x",
        f"{own}/vmlinux~..",
        f"{own}/../{other.lease.hex}/vmlinux",
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
    assert [one.key for one in await store.artifacts(mine.job_id, 0)] == [f"{own}/vmlinux~{BASE}"]


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
