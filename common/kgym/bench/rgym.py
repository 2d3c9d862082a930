"""RGym's jobs as attempts, with the outcomes of its exit codes; and its table of compilers.

Source: karyeet/RGym. A folder of its data has `NUMBER/state.json` for each job
(src/classes/JobAbstract.ts). A BUILD job has a patch; REPRODUCER jobs name the BUILD job whose
kernel they booted. The exit codes are those of Docker/build-kernel/setup.py and
Docker/reproducer/setup.py. Callers have to limit memory and time, as for `karena`.
"""

import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter

from kgym.api.faults import refused_at
from kgym.bench.attempt_record import AttemptRecord, FailedAttempt, Outcome, Setup, Text, Words
from kgym.bench.bug_record import Crash
from kgym.bench.dataset import Dataset
from kgym.bench.dataset_files import chosen, read_bounded, syzbot_ids
from kgym.bench.imported_patches import IMPORTED
from kgym.bench.karena import Imported
from kgym.errors import NotFound, UserError

# Maximum bytes of a file: a job has a config, a patch and a program.
_FILE = 64 << 20
# RGym names no agents.
_SETUP = Setup(agent="rgym", settings=IMPORTED)
_BUILDS = {1: Outcome.COMPILE, 3: Outcome.BAD}
# A build also ends with 1 for a full disk, or without its source.
_COMPILE = re.compile(
    rb"\.[chS]:[\d:]+ (fatal )?error: (?!.*No space left)|undefined (reference|symbol)"
)
# Time-out, sanitizer, boot failure. Others (arguments, set-up, QEMU's end) say nothing.
_RUNS = {0: Outcome.PASS, 1: Outcome.TRIGGER, 2: Outcome.BOOT}
_VERSION = re.compile(r"^# Linux/\S+ (\d{1,9})\.(\d{1,9})\.(\d{1,9})", re.MULTILINE)
_Number = Annotated[str, BeforeValidator(str), Field(pattern=r"^[\w-]{1,100}$")]
_Code = Annotated[int, BeforeValidator(lambda code: -1 if code is None else code)]
_Compiler = Annotated[str, Field(pattern=r"^(gcc|clang) [0-9]{1,3}$")]
_Compilers = Annotated[list[_Compiler], Field(min_length=1)]


class _Options(BaseModel):
    metadata: Words = Field("", description="a link to the bug, as RGym suggests")
    patch: Text = ""
    kernel: _Number = Field("-", alias="bzImageJobId")


class _Job(BaseModel):
    """A job's state; further fields are ignored."""

    number: _Number = Field(alias="jobid")
    type: str
    options: _Options
    code: _Code = Field(-1, alias="exitCode", description="-1, or null: it has not ended")


def bugs(folder: Path, known: Dataset) -> Dataset:
    """Return the bugs that the jobs of a folder name; raise as `dataset_files.chosen` does."""
    names = [name for job in _jobs(folder).values() for name in syzbot_ids(job.options.metadata)]
    return chosen(names, known, folder)


def results(folder: Path, known: Dataset) -> Imported:
    """Return an attempt for each patch that was built, in the order of the jobs."""
    by_name = {name: bug.id for bug in known.bugs for name in (bug.id, bug.extid) if name}
    jobs = _jobs(folder)
    kernels: dict[str, Counter[int]] = defaultdict(Counter)
    for job in jobs.values():
        if job.type == "REPRODUCER":
            kernels[job.options.kernel][job.code] += 1
    imported, runs = Imported(attempts=[], failed=[]), Counter[str]()
    for path, job in jobs.items():
        if job.type != "BUILD" or not job.options.patch.strip():
            continue
        names = [by_name[name] for name in syzbot_ids(job.options.metadata) if name in by_name]
        if not names:
            raise NotFound("no_such_bug", f"{folder}, job {job.number}: its metadata names no bug")
        runs[names[0]] += 1
        same = {"bug": names[0], "setup": _SETUP, "run": runs[names[0]]}
        codes, patch = kernels[job.number], job.options.patch
        with refused_at(str(path)):
            if (outcome := _outcome(job.code, codes, path.with_name("job.log"))) is None:
                reason = f"exit codes: build {job.code}, reproducers {sorted(codes.elements())}"
                imported.failed.append(FailedAttempt.model_validate(same | {"reason": reason}))
                continue
            same |= {"outcome": outcome, "diff": patch, "crashed": codes[1]}
            same |= {"completed": codes[0] + codes[1]}
            imported.attempts.append(AttemptRecord.model_validate(same))
    return imported


def _outcome(build: int, runs: Counter[int], log: Path) -> Outcome | None:
    """Return the outcome of exit codes; None if they say nothing about the patch."""
    if build == 1 and not (log.is_file() and _COMPILE.search(read_bounded(log, _FILE))):
        return None
    if build != 0:
        return _BUILDS.get(build)
    outcomes = {_RUNS.get(code) for code in runs}
    # One run that shows the bug suffices; a fix has to survive all.
    worst = (Outcome.TRIGGER, None, Outcome.BOOT, Outcome.PASS)
    return next((outcome for outcome in worst if outcome in outcomes), None)


def _jobs(folder: Path) -> dict[Path, _Job]:
    """Return the jobs by their files; raise UserError `bad_bug_data`."""
    jobs: dict[str, tuple[Path, _Job]] = {}
    for path in folder.glob("*/state.json"):
        with refused_at(str(path)):
            job = _Job.model_validate_json(read_bounded(path, _FILE))
        if (other := jobs.setdefault(job.number.zfill(100), (path, job))[0]) != path:
            raise UserError("bad_bug_data", f"{path} has the jobid of {other}")
    return dict(jobs[number] for number in sorted(jobs))


def with_compilers(dataset: Dataset, path: Path) -> Dataset:
    """Return the bugs, with unknown compilers taken from RGym's `compiler_mapping.json`.

    As in RGym, the compiler is the first of the mapped kernel version that is nearest to the one
    in the config.
    """
    data = read_bounded(path, _FILE)
    with refused_at(str(path)):
        table = TypeAdapter(dict[int, dict[int, dict[int, _Compilers]]]).validate_json(data)
    compilers = {(a, b, c): table[a][b][c][0] for a in table for b in table[a] for c in table[a][b]}

    def completed(crash: Crash) -> Crash:
        version = _VERSION.search(crash.config.text or "")
        if crash.compiler or version is None or not compilers:
            return crash
        wanted = [*map(int, version.groups())]
        near = min(compilers, key=lambda v: [abs(a - b) for a, b in zip(v, wanted, strict=True)])
        words = compilers[near].replace(" ", " version ")  # a version line: the nearest is used
        return crash.model_copy(update={"compiler": words})

    of_all = [
        bug.model_copy(update={"crashes": [*map(completed, bug.crashes)]}) for bug in dataset.bugs
    ]
    source = f"{dataset.source}; unknown compilers: {path.name}"
    return dataset.model_copy(update={"bugs": tuple(of_all), "source": source})
