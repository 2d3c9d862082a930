"""What a build takes from the caches stays until the build has ended."""

from pathlib import Path

import pytest

from kgym.api.jobs import Artifact
from kgym.api.steps import BuildSpec
from kgym.host.folder_cache import entries
from kgym.transport.artifact_storage import LocalStorage
from kgym_builder.build.build_step import Builder
from kgym_builder.suitecache.suitecache import SuiteCache
from tests.conftest import ANYWHERE, NewRun

pytestmark = pytest.mark.anyio


class Watching(LocalStorage):
    """A storage that tries to empty the caches while a step stores its files."""

    cache: Path
    removed = 0

    async def put(
        self, key: str, path: Path, *, move: bool = False, base: str | None = None
    ) -> Artifact:
        self.removed += sum(entry.remove() for entry in entries(self.cache))
        return await super().put(key, path, move=move, base=base)


async def test_used_entries_stay(new_run: NewRun, fake_build: BuildSpec, tmp_path: Path) -> None:
    """Source and tree are not removed while a build uses them."""
    run = new_run(fake_build)
    run.storage = storage = Watching(tmp_path / "storage")
    storage.cache = tmp_path / "cache"
    with run.held:
        await Builder(SuiteCache(storage.cache, tmp_path / "backports", origins=ANYWHERE))(run)
    assert run.artifacts
    assert storage.removed == 0
    assert [entry.remove() for entry in entries(storage.cache)] == [True, True]
