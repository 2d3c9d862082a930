"""A sweep on real kernels, killed in the middle with all that it has started, and begun again."""

import contextlib
import csv
import os
import signal
import subprocess
import sys
import uuid
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kgym.api.steps import Edit
from kgym.bugs import bundle
from tests.conftest import DATA, kgym

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600), pytest.mark.exhaustive]

DEMO = "watch-queue-filter"
# Whose fixes come before a line that they name in part, which `diff` cannot say.
NOT_LINES = {"fsconfig-source-fd", "key-read-negative"}
# Those that crash within seconds; each has its day.
OTHERS = [
    name for name in bundle.names() if name not in {DEMO, "epoll-loop", "udp-cmsg-leak", *NOT_LINES}
]
NO_FIX = (
    "--- a/kernel/watch_queue.c\n+++ b/kernel/watch_queue.c\n@@ -339,3 +339,3 @@\n"
    " \tif (filter.nr_filters == 0 ||\n"
    "-\t    filter.nr_filters > 16 ||\n"
    "+\t    filter.nr_filters > 15 ||\n"
    " \t    filter.__reserved != 0)\n"
)
# Of one trial on disk: a thousand of one bug take less than 20 GB.
MOST_BYTES = 20 << 20


@pytest.fixture
def bugs(tmp_path: Path) -> list[str]:
    """Two bugs, with patches for them: the fix of each, and one that mends neither."""
    today = datetime.now(UTC).toordinal()
    names = [DEMO, OTHERS[today % len(OTHERS)]]
    for name in names:
        fix = bundle.load(name).fix
        assert fix is not None
        (tmp_path / name).mkdir()
        (tmp_path / name / "fix.patch").write_text("".join(map(diff, fix.edits)))
    (tmp_path / "wrong.patch").write_text(NO_FIX)
    return names


def diff(edit: Edit) -> str:
    """Return an edit as a diff: of whole lines, which are found wherever they stand."""
    before, after = (_whole_lines(text) for text in (edit.original, edit.replacement))
    head = f"--- a/{edit.file}\n+++ b/{edit.file}\n@@ -1,{len(before)} +1,{len(after)} @@\n"
    return head + "".join([*(f"-{line}\n" for line in before), *(f"+{line}\n" for line in after)])


def _whole_lines(text: str) -> list[str]:
    return text.split("\n")[:-1]  # what follows the last line end is as it was


def family(pid: int) -> Iterator[int]:
    """Yield a process and all its descendants."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = path.read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        children[int(parent)].append(int(path.parent.name))
    pids = [pid]
    for parent in pids:
        pids += children[parent]
    yield from pids


def begun_and_killed(words: list[object]) -> list[int]:
    """Begin the sweep; kill all its processes as soon as one pair has its row, and list them."""
    with subprocess.Popen(
        [sys.executable, "-m", "kgym_cli", *map(str, words)],
        env={**os.environ, "KGYM_DATA": str(DATA)},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        killed = list(family(process.pid))
        for pid in killed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    return killed


def stored(job: dict[str, Any]) -> int:
    """Return the bytes on disk of what a job has left."""
    keys = {artifact["key"] for step in job["steps"] for artifact in step["artifacts"]}
    return sum((DATA / "artifacts" / key).stat().st_blocks * 512 for key in keys)


def test_a_killed_sweep_ends_with_one_table(bugs: list[str], tmp_path: Path) -> None:
    table, name = tmp_path / "table.csv", uuid.uuid4().hex
    words = ["sweep", *bugs, "--patches", tmp_path, "--csv", table, "--name", name, "--json"]
    killed = begun_and_killed(words)
    assert len(killed) > 2  # the command, the platform, and what it ran
    status, summary = kgym(*words[:-1])
    assert (status, summary["pairs"]) == (1, 4), summary
    with table.open() as file:
        rows = list(csv.DictReader(file))
    outcomes = {(row["bug"], row["patch"]): (row["outcome"], row["verdict"]) for row in rows}
    assert len(rows) == len(outcomes) == 4
    for bug in bugs:
        assert outcomes[bug, "fix.patch"] == ("resolved", "no_crash"), rows
        assert outcomes[bug, "wrong.patch"] == ("not_resolved", "same_crash"), rows
    group = kgym("group", "show", name)[1]
    assert group["jobs"] == 2 * (1 + 1 + 2)  # a check, the crash, and two trials for each bug
    for row in rows:
        job = kgym("job", "show", row["job"])[1]
        assert stored(job) < MOST_BYTES, row
