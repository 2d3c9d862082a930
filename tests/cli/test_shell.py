"""`kgym shell`: Python with a client, datasets and results."""

import signal
from pathlib import Path

import pytest

from kgym.bench import attempt_files
from kgym.bench.attempt_record import AttemptRecord, Outcome, Setup
from kgym.bench.bug_record import BugRecord
from kgym.bench.dataset import Dataset
from kgym_cli.platforms.embedded_platform import Platform
from tests.cli.conftest import Kgym

LINES = """\
[(d.name, len(d)) for d in datasets.values()]
[[str(a.outcome) for a in attempts] for attempts in results.values()]
async def jobs():
    return [job async for job in client.jobs()]

await jobs()
1 / 0
found = await client.workers()
type(found)
exit()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Results of an agent on a bug."""
    Dataset.of("some", [BugRecord(id="one", title="t", status="fixed")]).save(tmp_path / "r")
    attempt = AttemptRecord(bug="one", run=1, outcome=Outcome.PASS, setup=Setup(agent="a"))
    attempt_files.write(tmp_path / "r" / attempt_files.NAME, [attempt])
    return tmp_path / "r"


def test_lines_are_run_and_awaited(kgym: Kgym, folder: Path, platform: Platform) -> None:
    done = kgym("shell", folder, "--server", platform.url, stdin=LINES)
    assert done.status == 0, done.err
    printed = done.out.replace(">>> ", "").replace("... ", "").splitlines()
    assert printed == ["[('some', 1)]", "[['pass']]", "[]", "<class 'list'>"]
    assert "Names: datasets, results, client" in done.err
    assert "ZeroDivisionError" in done.err


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("sys.exit(3)", 3),
        ("sys.exit('why')", 1),
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
    ],
)
def test_a_shell_ends_with_a_status(kgym: Kgym, folder: Path, line: str, status: int) -> None:
    lines = f"import os, signal, sys\n{line}\nprint('still there')\n"
    done = kgym("shell", folder, "--server", "http://127.0.0.1:1", stdin=lines)
    assert done.status == status, done.err
    assert "still there" not in done.out


def test_ipython_is_used_if_it_is_there(
    kgym: Kgym, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = "def start_ipython(argv, user_ns):\n    print(argv, sorted(user_ns))\n"
    (tmp_path / "IPython.py").write_text(stand_in)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = kgym("shell", folder, "--server", "http://127.0.0.1:1")
    assert (done.status, done.out) == (0, "[] ['client', 'datasets', 'results']\n"), done.err
