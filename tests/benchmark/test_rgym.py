"""RGym's jobs become attempts by their exit codes, and its table names compilers."""

import json
from pathlib import Path
from typing import Any

import pytest

from kgym.bench import attempt_files, dataset, rgym
from kgym.bench.bug_record import FoundText
from kgym.bench.dataset import Dataset
from tests.benchmark.test_dataset import bug, made
from tests.cli.conftest import Kgym
from tests.refused import refused
from tests.tables import json_rows

EXTID = "0123456789abcdef0123"
LINK = f"https://syzkaller.appspot.com/bug?extid={EXTID}"
ERROR = "  CC      kernel/fork.o\nkernel/fork.c:12:3: error: expected ';' before 'x'\n"
# As compiler_mapping.json has them: major, minor and patch level.
TABLE = {
    "5": {"10": {"0": ["clang 12", "gcc 10"], "7": ["clang 11"]}},
    "6": {"1": {"0": ["gcc 12"]}},
}


def known() -> Dataset:
    bugs = made(bug(), bug(id="e" * 40)).bugs
    return Dataset.of("known", [bugs[0].model_copy(update={"extid": EXTID}), bugs[1]])


def job(
    folder: Path, number: int, kind: str, code: int | None, log: str = ERROR, **options: object
) -> None:
    """Write a job's state as RGym does."""
    (folder / str(number)).mkdir(parents=True)
    given = {"timeout": 600, "cores": 4, "metadata": LINK, **options}
    state: dict[str, Any] = {"jobid": str(number), "jobPath": f"/data/{number}", "type": kind}
    state |= {"started_at": 1, "running": False, "exitCode": code, "options": given}
    (folder / str(number) / "state.json").write_text(json.dumps(state))
    (folder / str(number) / "job.log").write_text(log)


@pytest.mark.parametrize(
    ("build", "runs", "expected", "crashed", "completed"), json_rows(__file__, "rgym_jobs.jsonl")
)
def test_exit_codes_are_outcomes(
    tmp_path: Path,
    build: int | None,
    runs: list[int | None],
    expected: str,
    crashed: int | None,
    completed: int | None,
) -> None:
    job(tmp_path, 9, "BUILD", build, patch="+x\n", compiler="gcc")
    for number, code in enumerate(runs, start=10):
        job(tmp_path, number, "REPRODUCER", code, bzImageJobId="9", reproducer="int main;")
    imported = rgym.results(tmp_path, known())
    assert len(imported.attempts) + len(imported.failed) == 1
    for attempt in imported.attempts:
        assert (attempt.bug, attempt.diff, str(attempt.setup)) == (
            "a" * 40,
            "+x\n",
            "rgym, imported",
        )
        assert (attempt.outcome, attempt.crashed, attempt.completed) == (
            expected,
            crashed,
            completed,
        )
    for failed in imported.failed:
        assert failed.reason == expected


def test_a_folder_of_jobs_is_imported_with_compilers(kgym: Kgym, tmp_path: Path) -> None:
    jobs, into = tmp_path / "data", tmp_path / "into"
    job(jobs, 10, "BUILD", 0, patch="+second\n")
    job(jobs, 11, "REPRODUCER", 0, bzImageJobId="10")
    job(jobs, 2, "BUILD", 1, patch="+first\n")
    job(jobs, 3, "BUILD", 0, patch="")  # the kernel with the bug: no attempt
    job(jobs, 4, "REPRODUCER", 1, bzImageJobId="3")
    (first, *_) = known().bugs
    text = FoundText(text="#\n# Linux/x86_64 5.10.9 Kernel Configuration\n#\n")
    crash = first.crashes[0].model_copy(update={"compiler": None, "config": text})
    lacking = first.model_copy(update={"crashes": [crash]})
    Dataset.of("known", [lacking]).save(tmp_path / "known")
    (tmp_path / "compiler_mapping.json").write_text(json.dumps(TABLE))
    done = kgym(
        *("bench", "import", "rgym", jobs, "--from", tmp_path / "known", "--into", into),
        *("--compilers", tmp_path / "compiler_mapping.json"),
        *("--attempts", into / attempt_files.NAME, "--json"),
    )
    assert (done.status, done.json["attempts"], done.json["failed"]) == (0, 2, 0), done.err
    attempts = list(attempt_files.read(into / attempt_files.NAME))
    assert [(each.run, each.outcome, each.diff) for each in attempts] == [
        (1, "compile", "+first\n"),
        (2, "pass", "+second\n"),
    ]
    (there,) = dataset.load(into).bugs
    assert there.crashes[0].compiler == "clang version 11"
    assert kgym("bench", "report", into, "--json").json["setups"][0]["setup"]["agent"] == "rgym"


@pytest.mark.parametrize(
    ("version", "compiler"),
    [
        ("5.10.0", "clang version 12"),
        ("5.10.3", "clang version 12"),
        ("5.10.200", "clang version 11"),
        ("5.4.1", "clang version 12"),
        ("6.6.0", "gcc version 12"),
        ("7.0.0", "gcc version 12"),
    ],
)
def test_the_compiler_is_that_of_the_nearest_version(
    tmp_path: Path, version: str, compiler: str
) -> None:
    (tmp_path / "t.json").write_text(json.dumps(TABLE))
    (first, second) = known().bugs
    text = FoundText(text=f"# Linux/x86 {version}-rc1 Kernel Configuration\n")
    crash = first.crashes[0].model_copy(update={"compiler": None, "config": text})
    bugs = [first.model_copy(update={"crashes": [crash]}), second]
    completed = rgym.with_compilers(Dataset.of("d", bugs), tmp_path / "t.json")
    assert completed.bugs[0].crashes[0].compiler == compiler
    # What syzbot says stays.
    assert completed.bugs[1] == second


@pytest.mark.parametrize(
    "log", ["", "fatal: unable to access", f"{ERROR[:-1]}".replace("expected", "No space left")]
)
def test_a_build_that_ends_without_a_compile_error_is_no_verdict(tmp_path: Path, log: str) -> None:
    job(tmp_path, 1, "BUILD", 1, log, patch="+x\n")
    assert [each.reason for each in rgym.results(tmp_path, known()).failed] == [
        "exit codes: build 1, reproducers []"
    ]


@pytest.mark.attack
def test_two_jobs_of_one_id_and_endless_reasons_are_refused(tmp_path: Path) -> None:
    job(tmp_path, 1, "BUILD", None, patch="+x\n")
    for number in range(2, 32):
        job(tmp_path, number, "REPRODUCER", 10**400, bzImageJobId="1")
    with refused("bad_bug_data"):
        rgym.results(tmp_path, known())
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "state.json").write_text((tmp_path / "2" / "state.json").read_text())
    with refused("bad_bug_data"):
        rgym.bugs(tmp_path, known())


@pytest.mark.attack
@pytest.mark.parametrize(("state", "reason"), json_rows(__file__, "rgym_no_jobs.jsonl"))
def test_what_is_no_job_is_refused(tmp_path: Path, state: str, reason: str) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "state.json").write_text(state)
    with refused(reason):
        rgym.bugs(tmp_path, known())


@pytest.mark.attack
@pytest.mark.parametrize("table", ["[]", '{"5": {"10": {"0": []}}}', '{"5": {"x": {}}}', "{"])
def test_what_is_no_table_of_compilers_is_refused(tmp_path: Path, table: str) -> None:
    (tmp_path / "t.json").write_text(table)
    with refused("bad_bug_data"):
        rgym.with_compilers(known(), tmp_path / "t.json")
