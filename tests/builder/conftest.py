"""Builds of the small make tree, and a host that makes them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kgym.api.steps import BuildResult, BuildSpec
from kgym.errors import KgymError
from kgym_builder.build.build_step import Builder
from kgym_builder.suitecache.suitecache import SuiteCache
from tests.conftest import ANYWHERE, ROOT, NewRun


@dataclass(frozen=True, slots=True)
class FakeLinux:
    """The small make tree, of which `spec` is a build, and a host that builds it."""

    builder: Builder
    new_run: NewRun
    spec: BuildSpec

    async def build(self, spec: BuildSpec | None = None, **changes: object) -> BuildResult:
        """Perform a build, by default `spec`, with changes to its fields."""
        spec = (spec or self.spec).model_copy(update=changes)
        return await self.builder(self.new_run(spec))

    async def failure(self, spec: BuildSpec) -> KgymError:
        """Return the error of a build that fails."""
        with pytest.raises(KgymError) as caught:
            await self.build(spec)
        return caught.value


def suite_cache(folder: Path, **settings: Any) -> SuiteCache:
    """Return the cache of a host that may take sources from anywhere."""
    return SuiteCache(folder, ROOT / "configs" / "backports", origins=ANYWHERE, **settings)


@pytest.fixture
def suite(tmp_path: Path) -> SuiteCache:
    """The cache of the test's host."""
    return suite_cache(tmp_path / "cache")


@pytest.fixture
def builder(suite: SuiteCache) -> Builder:
    """The host's builder."""
    return Builder(suite)


@pytest.fixture
def linux(builder: Builder, new_run: NewRun, fake_build: BuildSpec) -> FakeLinux:
    """The small make tree."""
    return FakeLinux(builder, new_run, fake_build)
