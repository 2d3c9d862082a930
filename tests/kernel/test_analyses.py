"""cscope's database and the numbers of instructions of a real kernel."""

import subprocess
import tarfile
from pathlib import Path

import pytest

from kgym.api.steps import BuildArtifact, Edit, Patch
from kgym.bugs import bundle
from tests.conftest import fetched
from tests.kernel.machine import FILE, submitted

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(3600)]

FUNCTION = "watch_queue_set_filter"
BOUND = "\t    filter.nr_filters > 16 ||\n"
ONE_MORE = Edit(file=FILE, original=BOUND, replacement=f"{BOUND}\t    filter.nr_filters == 13 ||\n")


def test_a_build_leaves_cscopes_database_and_counts_of_instructions(tmp_path: Path) -> None:
    build = bundle.load("watch-queue-filter").build
    more = {"patches": [*build.patches, Patch(edits=[ONE_MORE])]}
    spec = build.model_copy(update={**more, "analyses": ["cscope", "instructions"]})
    job = submitted(spec)
    with tarfile.open(fetched(job, 0, BuildArtifact.CSCOPE, tmp_path)) as tar:
        tar.extractall(tmp_path, filter="data")
    done = subprocess.run(
        ["cscope", "-d", "-L", "-1", FUNCTION], cwd=tmp_path, capture_output=True, check=True
    )
    assert any(line.startswith(f"{FILE} {FUNCTION} ") for line in done.stdout.decode().splitlines())
    lines = fetched(job, 0, BuildArtifact.INSTRUCTIONS, tmp_path).read_text().splitlines()
    counts = {
        name: (int(old), int(new)) for name, old, new in (row.split("\t") for row in lines[1:])
    }
    assert len(counts) > 5_000
    before, after = counts[FUNCTION]
    assert 20 < before < after
    # What no patch touches stays as it is.
    assert {name for name, (old, new) in counts.items() if old != new} == {FUNCTION}
