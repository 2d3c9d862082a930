"""A real kernel made from a near entry is the one that comes from scratch."""

from pathlib import Path

import pytest

from kgym.api.steps import KernelConfig
from kgym.api.suitecache import EntryMaking
from kgym.bugs import bundle
from kgym_builder.kbuild.kbuild import Output
from kgym_builder.kbuild.object_index import Index
from kgym_builder.suitecache.compiled_trees import INDEX, MAKING, linked_in
from kgym_builder.suitecache.nearest import NearRules
from kgym_builder.suitecache.suitecache import SuiteCache
from tests.bench.kernels_near import appended, other_source
from tests.conftest import DATA, ROOT, NewRun

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(7200)]

CONFIG = Path(__file__).with_name("near.config").read_text()
# A module and a system call less, others and a driver more.
OTHERS = "CONFIG_CRC7=n\nCONFIG_CRC8=m\nCONFIG_SIGNALFD=n\nCONFIG_EPOLL=y\nCONFIG_DEVMEM=y\n"
MAKEFILE = "Makefile"
HEADER = "include/linux/tty_flip.h"


@pytest.mark.exhaustive
async def test_a_near_entry_equals_scratch(new_run: NewRun, tmp_path: Path) -> None:
    kernel = bundle.kernel("linux-6.1")

    def made(*fragments: str) -> KernelConfig:
        return KernelConfig(base="tinyconfig", fragments=[CONFIG, *fragments])

    suite = SuiteCache(
        tmp_path / "cache", ROOT / "configs" / "backports", near=NearRules(rehearsals=1)
    )
    (tmp_path / "cache").mkdir()
    (DATA / "cache" / "sources").mkdir(parents=True, exist_ok=True)
    (tmp_path / "cache" / "sources").symlink_to(DATA / "cache" / "sources")
    spec = kernel.model_copy(update={"config": made()})
    run = new_run(spec)
    base = await suite.take(
        spec, await suite.identify(spec, run), run, Output(run.folder / "build.log")
    )

    source = (await suite.published(spec, run)).source.tree
    compiled = sorted(Index(base.folder / INDEX).sources(sorted(linked_in(base.folder))).values())
    texts = appended(source, compiled, 20)
    makefile = (source / MAKEFILE).read_text()
    texts[MAKEFILE] = makefile.replace("\nEXTRAVERSION =", "\nEXTRAVERSION = -near", 1)
    texts[HEADER] = (source / HEADER).read_text() + "\n#define KGYM_NEAR 1\n"
    assert texts[MAKEFILE] != makefile
    other = {"config": made(OTHERS), "backports": [other_source(source, texts)]}
    spec = spec.model_copy(update=other)
    run = new_run(spec)
    near = await suite.take(
        spec, await suite.identify(spec, run), run, Output(run.folder / "build.log")
    )

    making = EntryMaking.model_validate_json((near.folder / MAKING).read_text())
    log = (run.folder / "step.log").read_text()
    assert making.rehearsal == "equal", log
    assert making.base == base.identity
    assert making.files_changed == len(texts)
    assert near.about.kernel_release.endswith("-near")
    # Most of them because of CONFIG_EPOLL: it changes `struct file` (include/linux/fs.h).
    assert 20 < making.objects < len(near.linked)
