"""What is stored is known, and kept to its budget without a word of anybody."""

from pathlib import Path

import httpx
import pytest

from kgym.api.storage import StorageView, warning
from kgym.web.server import serve
from kgym_scheduler.api.app import create_app
from kgym_scheduler.retention.upkeep import DAYS, Upkeep
from kgym_scheduler.scheduler import Scheduler
from tests.scheduler.parts import BUILD, Platform, job, take
from tests.scheduler.retention.test_artifact_retention import SIZE, Kept

pytestmark = pytest.mark.anyio


@pytest.fixture
def kept(scheduler: Scheduler, platform: Platform, tmp_path: Path) -> Kept:
    return Kept(scheduler, platform, tmp_path)


def upkeep_of(kept: Kept, budget: int | None = None, days: float = DAYS) -> Upkeep:
    return Upkeep(kept.scheduler.store.database, kept.storage, budget=budget, days=days)


@pytest.mark.thorough
async def test_what_is_stored_is_told_by_kind_and_job(kept: Kept, tmp_path: Path) -> None:
    first = await kept.build()
    (tmp_path / "image").write_bytes(b"i" * 300)
    await kept.storage.put("suitecache/a/image", tmp_path / "image")
    await kept.storage.put_base(tmp_path / "image")
    upkeep = upkeep_of(kept, budget=500)
    async with (
        serve(create_app(kept.scheduler, upkeep=upkeep)) as address,
        httpx.AsyncClient(base_url=address.url, trust_env=False, timeout=60) as http,
    ):
        usage = StorageView.model_validate((await http.get("/v1/storage")).json())
        metrics = (await http.get("/metrics")).text
    kinds = {kind.kind: (kind.bytes, kind.number) for kind in usage.kinds}
    assert kinds["artifacts"] == (SIZE, 1)
    assert kinds["entries"] == kinds["bases"] == (300, 1)
    assert kinds["database"][0] > 0
    assert usage.bytes == sum(size for size, _ in kinds.values())
    assert [(part.job, part.bytes) for part in usage.jobs] == [(first, SIZE)]
    assert sum(part.bytes for part in usage.ages) == SIZE
    assert usage.warning
    assert "KGYM_DISK_BUDGET" in usage.warning
    assert 'kgym_stored_bytes{kind="artifacts"} 1000.0' in metrics
    assert "kgym_storage_warning 1.0" in metrics


async def test_a_folder_of_a_strange_name_is_counted_and_stops_nothing(
    kept: Kept, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"x" * 10)
    for name in ("z" * 32, "0" * 31 + "g", "a-b", "9" * 40):
        await kept.storage.put(f"steps/1/{name}/file", tmp_path / "file")
    used = await upkeep_of(kept).use()
    assert {kind.kind: kind.bytes for kind in used.kinds}["artifacts"] == 40
    assert used.jobs == []


@pytest.mark.thorough
async def test_above_the_budget_the_oldest_artifacts_of_finished_jobs_go(kept: Kept) -> None:
    old, new = await kept.build(), await kept.build()
    view, _ = await kept.scheduler.submit(job(BUILD))
    running = await take(kept.scheduler)
    await kept.put(running)
    whole = (await upkeep_of(kept).use()).bytes
    upkeep = upkeep_of(kept, budget=whole - SIZE)
    assert await upkeep.remove_old() == SIZE
    assert (await kept.scheduler.job(old)).steps[0].artifacts_gone_at
    assert (await kept.scheduler.job(old)).steps[0].result
    assert (await kept.scheduler.job(new)).steps[0].artifacts_gone_at is None
    tight = upkeep_of(kept, budget=1)
    assert await tight.remove_old() == SIZE  # what runs keeps its own
    assert [part.job for part in (await tight.use()).jobs] == [view.id]
    assert len(await kept.storage.sizes("steps", 2)) == 1


async def test_old_artifacts_go_and_what_is_asked_for_stays(kept: Kept, tmp_path: Path) -> None:
    (tmp_path / "base").write_bytes(b"b" * 5000)
    base = await kept.storage.put_base(tmp_path / "base")
    number = await kept.build()
    upkeep = upkeep_of(kept, budget=None, days=0)
    assert await upkeep.remove_old() == SIZE
    assert (await kept.scheduler.job(number)).steps[0].artifacts_gone_at
    assert await kept.storage.has_base(base)


def test_a_warning_is_due_at_the_budget_or_where_the_disk_is_nearly_full() -> None:
    tera = 10**12
    assert warning(5, None, tera, 2 * tera) is None
    assert warning(5, 6, tera, 2 * tera) is None
    assert "budget" in str(warning(6, 6, tera, 2 * tera))
    assert "left" in str(warning(5, 6, 10**9, 2 * tera))
    assert warning(5, None, None, None) is None
