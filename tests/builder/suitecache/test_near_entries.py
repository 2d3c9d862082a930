"""Entries made from the nearest one: the same as from scratch, or from scratch and the reason."""

import asyncio
import hashlib
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from kgym.api.steps import BuildSpec, KernelConfig, Reproducer, TarballSource, VmShape
from kgym.api.suitecache import EntryMaking
from kgym.api.trusted_tags import calibration, request
from kgym.errors import UserError
from kgym.host.folder_cache import locked
from kgym.host.resources import Host
from kgym.host.sandbox_limits import SandboxLimits
from kgym.transport.artifact_storage import LocalStorage
from kgym.worker.context import StepContext
from kgym_builder.build.build_step import Builder
from kgym_builder.suitecache.compiled_trees import INDEX, LOG, MAKING, read_about
from kgym_builder.suitecache.nearest import NearRules
from tests.builder.conftest import suite_cache
from tests.conftest import ROOT, NewRun, attempt, turns
from tests.refused import refused

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]

# By path: what is replaced by what; or a new file's text; None removes it.
Edits = Mapping[str, tuple[str, str] | str | None]
FAKE = ROOT / "tests" / "fakelinux"
# As Linux before 6.1 does, the Makefile tells which objects go into the kernel.
LISTED: Edits = {"Makefile": ("export CC\n", "export CC\nexport KBUILD_VMLINUX_OBJS = $(obj-y)\n")}
ALWAYS = NearRules(rehearsals=1)
NEVER = NearRules(rehearsals=0)
ONE_FILE: Edits = {"fs/open.c": ("return", "return 1 +")}


@dataclass(frozen=True, slots=True)
class Built:
    """A build, and how its entry came to be."""

    run: StepContext
    making: EntryMaking
    folder: Path
    """The entry's."""
    compiled: int

    @property
    def log(self) -> str:
        return (self.run.folder / "step.log").read_text()

    @property
    def kernel(self) -> dict[str, str]:
        return {each.name: each.sha256 for each in self.run.artifacts if each.name != "build.log"}

    @property
    def objects(self) -> set[str]:
        """What checks and evidence will take for the kernel's objects."""
        with sqlite3.connect(self.folder / INDEX) as database:
            return {row[0] for row in database.execute("SELECT path FROM objects")}


Build = Callable[..., Coroutine[None, None, Built]]


def edited(folder: Path, edits: Edits) -> None:
    for path, edit in edits.items():
        file = folder / path
        if edit is None:
            file.unlink()
        elif isinstance(edit, str):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(edit)
        else:
            assert edit[0] in file.read_text(), path
            file.write_text(file.read_text().replace(*edit))


def packed(parent: Path, edits: Edits) -> TarballSource:
    """Return the small make tree with changes, as another source, which is packed once."""
    name = hashlib.sha256(repr(sorted(edits.items())).encode()).hexdigest()[:12]
    folder = parent / "sources" / name / "linux"
    path = Path(f"{folder}.tar")
    if not folder.exists():
        shutil.copytree(FAKE, folder)
        edited(folder, LISTED)
        edited(folder, edits)
        argv = ["tar", "-cf", path, "-C", folder.parent, "linux"]
        subprocess.run(argv, check=True, timeout=20)
    return TarballSource(url=str(path), sha256=hashlib.sha256(path.read_bytes()).hexdigest())


async def built_in(
    parent: Path, run: StepContext, rules: NearRules = ALWAYS, host: str = "one"
) -> Built:
    """Perform a build on a host below `parent`."""
    result = await Builder(suite_cache(parent / host, near=rules))(run)
    folder = parent / host / "suitecache" / result.tree
    making = EntryMaking.model_validate_json((folder / MAKING).read_text())
    return Built(run, making, folder, result.objects_compiled)


def spec_of(parent: Path, edits: Edits, config: str, **spec: object) -> BuildSpec:
    wanted = KernelConfig(base="allnoconfig", fragments=[f"CONFIG_BASE=y\n{config}"])
    return BuildSpec.model_validate({"source": packed(parent, edits), "config": wanted, **spec})


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The tree without changes, built once: most tests begin with a copy of its entry."""
    parent = tmp_path_factory.mktemp("prepared")
    run = attempt(parent, spec_of(parent, {}, ""))
    with run.held:
        return asyncio.run(built_in(parent, run))


@pytest.fixture
def build(new_run: NewRun, prepared: Built, tmp_path: Path) -> Build:
    """Build the small make tree with changes; hosts share the storage, and nothing else."""

    async def make(
        edits: Edits = {},  # noqa: B006 - read only
        config: str = "",
        *,
        rules: NearRules = ALWAYS,
        host: str = "one",
        apart: bool = False,
        **spec: object,
    ) -> Built:
        parent = prepared.folder.parents[2]
        plain = not (edits or config or spec or apart) and host == "one"
        if plain and not (tmp_path / "storage").exists():
            # `cp -a` keeps the owner, the sandbox's user, to whom source trees belong.
            argv = ["cp", "-a", parent / "one", parent / "storage", tmp_path]
            await asyncio.to_thread(subprocess.run, argv, check=True, timeout=20)
            return replace(prepared, folder=tmp_path / prepared.folder.relative_to(parent))
        run = new_run(spec_of(parent, edits, config, **spec))
        if apart:
            run.storage = LocalStorage(tmp_path / "apart")
        return await built_in(tmp_path, run, rules, host)

    return make


EXTRA = "CONFIG_EXTRA=y\n"
INCLUDES: Edits = {
    "kernel/watch_queue.c": (
        "#define WATCH_TYPE__NR 2",
        '#include "local.h"\n#define WATCH_TYPE__NR LOCAL',
    )
}
NEAR: dict[str, tuple[Edits, str, Edits, str, int]] = {
    # base's source and config, the kernel's, and how many objects are compiled for it
    "a source": ({}, "", ONE_FILE, "", 1),
    "a file that others include": ({}, "", {"kernel/sched.c": ("slept = 0", "slept = 1")}, "", 1),
    "a number in all": ({}, "", {"include/linux/limits.h": "#define PARENT_MAX 4095\n"}, "", 4),
    "a symbol more": ({}, "", {}, EXTRA, 1),
    "a symbol less": ({}, EXTRA, {}, "", 0),
    "a flag of all": ({}, "", {}, "CONFIG_WERROR=y\n", 4),
    "a source and a symbol": ({}, EXTRA, ONE_FILE, "CONFIG_ENTRY=y\n", 2),
    "a module more": ({}, "", {}, "CONFIG_EXTRA=m\n", 1),
    "a module less": ({}, "CONFIG_EXTRA=m\n", {}, "", 0),
    "a source less": (
        {"Makefile": ("lib/string.o\n", "lib/string.o lib/more.o\n"), "lib/more.c": "int more;\n"},
        "",
        {},
        "",
        0,
    ),
    "a header that hides another": (
        {**INCLUDES, "include/local.h": "#define LOCAL 1\n"},
        "",
        {**INCLUDES, "include/local.h": "#define LOCAL 1\n", "kernel/local.h": "#define LOCAL 2\n"},
        "",
        1,
    ),
    "words alone": ({}, "", {"Documentation/words.rst": "Words\n"}, "", 0),
}


# Each is made both ways and compared.
@pytest.mark.parametrize(
    ("before", "config", "after", "wanted", "objects"), turns(NEAR.values(), 4, NEAR)
)
async def test_an_entry_is_made_from_the_nearest_and_is_what_comes_from_scratch(
    build: Build, before: Edits, config: str, after: Edits, wanted: str, objects: int
) -> None:
    base = await build(before, config)
    near = await build(after, wanted)
    assert (near.making.rehearsal, near.making.base) == ("equal", base.folder.name), near.log
    assert near.making.objects == objects
    scratch = await build(after, wanted, host="two", apart=True)
    assert scratch.making.base is None
    assert near.kernel == scratch.kernel
    assert near.objects == scratch.objects


async def test_without_a_rehearsal_only_what_differs_is_compiled(build: Build) -> None:
    base = await build()
    near = await build(ONE_FILE, rules=NEVER)
    assert (near.compiled, near.making.files_changed) == (1, 1)
    assert (near.making.rehearsal, near.making.base) == ("none", base.folder.name)
    again = await build(ONE_FILE, "", rules=NEVER, cache="fresh")
    assert again.kernel == near.kernel


async def test_the_shortcut_is_rehearsed_unless_nothing_but_c_code_differs(build: Build) -> None:
    def rehearsed(built: Built) -> bool:
        return "rehearsal" in read_about(built.folder).seconds

    assert rehearsed(await build(rules=NEVER))
    same = await build(ONE_FILE, rules=NEVER)
    assert same.making.base
    assert not rehearsed(same)
    symbol = await build(config=EXTRA, rules=NEVER)
    makefile = await build({"fs/Makefile": "obj-y += open.o\n# another\n"}, rules=NEVER)
    compared = await build({"fs/open.c": ("return", "return 2 +")}, rules=ALWAYS)
    for other in (symbol, makefile, compared):
        assert other.making.base
        assert rehearsed(other)


async def test_it_needs_nothing_of_its_base(build: Build, tmp_path: Path) -> None:
    base = await build()
    near = await build(ONE_FILE, rules=NEVER)
    shutil.rmtree(base.folder)
    shutil.rmtree(tmp_path / "storage" / "suitecache" / base.folder.name)
    again = await build(ONE_FILE, host="two", rules=NEVER, cache="fresh")
    assert again.kernel == near.kernel
    assert "fetched the entry from storage" in again.log
    assert again.making == near.making


async def test_the_nearest_of_many_is_taken(build: Build) -> None:
    await build(dict.fromkeys(("lib/a.c", "lib/b.c", "lib/c.c"), "/* nothing */\n"))
    nearer = await build({"lib/a.c": "/* nothing */\n"})
    await build({}, "CONFIG_WERROR=y\nCONFIG_EXTRA=y\nCONFIG_ENTRY=y\n")
    near = await build({"lib/a.c": "/* nothing */\n", **ONE_FILE}, rules=NEVER)
    assert near.making.base == nearer.folder.name


# --- from scratch, and the reason ----------------------------------------------------------------

REFUSED: dict[str, tuple[Edits, str]] = {
    "a script": ({"scripts/fixdep.sh": ("# Writes", "# Does write")}, "which builds run"),
    "everything": ({"include/linux/kernel.h": ("int fork_one", "extern int fork_one")}, "4 of 4"),
    "an odd name": ({"odd\\name.c": "int odd;\n"}, "odd name"),
}


@pytest.mark.parametrize(("edits", "reason"), REFUSED.values(), ids=REFUSED)
async def test_what_is_too_far_is_from_scratch(build: Build, edits: Edits, reason: str) -> None:
    await build()
    made = await build(edits)
    assert (made.making.base, made.making.rehearsal) == (None, "none")
    assert reason in made.making.reason


async def test_too_many_files_are_too_far(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kgym_builder.suitecache.nearest.MOST_FILES", 2)
    await build()
    made = await build({f"lib/{number}.c": "int one;\n" for number in range(3)})
    assert "3 files differ, and at most 2 may" in made.making.reason


# Objects by another command, which this Makefile, unlike the kernel's, does not notice.
UNTRACKED: Edits = {"Makefile": ("-std=gnu11 -O1", "-std=gnu11 -O2")}


async def test_unequal_means_from_scratch_and_rehearsals_until_equal(build: Build) -> None:
    base = await build()
    made = await build(UNTRACKED)
    assert (made.making.rehearsal, made.making.base) == ("unequal", None)
    assert made.making.rehearsed == base.folder.name
    assert "it would have been another kernel: " in made.making.reason
    assert "command of fs/open.o, " in made.making.reason
    scratch = await build(UNTRACKED, host="two", apart=True)
    assert made.kernel == scratch.kernel
    doubted = await build(ONE_FILE, rules=NEVER)
    assert (doubted.making.rehearsal, doubted.making.base) == ("equal", base.folder.name)
    trusted = await build({"lib/a.c": "int a;\n"}, rules=NEVER)
    assert trusted.making.rehearsal == "none"


async def test_which_are_rehearsed_is_a_share_of_all(build: Build) -> None:
    await build()
    outcomes = []
    for number in (1, 2, 3):
        near = await build({"lib/a.c": f"int a{number};\n"}, rules=NearRules(rehearsals=0.5))
        drawn = int(near.folder.name[:8], 16) < 0.5 * (1 << 32)
        outcomes.append(drawn == (near.making.rehearsal == "equal"))
    assert all(outcomes)


async def test_a_damaged_nearest_entry_is_not_used(build: Build, tmp_path: Path) -> None:
    base = await build()
    for image in tmp_path.rglob("image.squashfs"):
        with image.open("r+b") as file:
            file.seek(image.stat().st_size // 2)
            file.write(b"\0" * 4096)
    made = await build(ONE_FILE)
    assert made.making.base is None
    assert f"{base.folder.name}, which is near, could not be taken" in made.making.reason
    assert "the stored entry is damaged or was removed" in made.log


async def test_nobody_waits_for_an_entry_that_another_makes(build: Build, tmp_path: Path) -> None:
    base = await build()
    folder = base.folder.parent
    async with locked(folder / f".{base.folder.name}.lock"):
        made = await build(ONE_FILE)
    assert "could not be taken" in made.making.reason
    assert "another process makes this entry" in made.log


async def test_an_entry_of_an_earlier_version_is_no_base(build: Build, tmp_path: Path) -> None:
    await build()
    for making in (tmp_path / "storage").rglob(MAKING):
        making.unlink()
    made = await build(ONE_FILE)
    assert made.making.reason == "there is no other of this compiler"
    assert made.making.base is None


async def test_what_is_asked_for_anew_is_made_from_scratch(build: Build) -> None:
    await build()
    assert (await build(ONE_FILE, rules=NEVER)).making.base is not None
    anew = await build(ONE_FILE, rules=NEVER, cache="refresh")
    assert (anew.making.base, anew.making.reason) == (None, "it was asked for anew")


async def test_an_entry_of_a_host_whose_clock_is_ahead_is_no_base(build: Build) -> None:
    ahead = (
        "arch/x86/boot/bzImage: vmlinux",
        "bzImage: later\nlater: vmlinux\n\t@touch -d '1 day' vmlinux\n"
        "arch/x86/boot/bzImage: vmlinux",
    )
    await build({"Makefile": ahead})
    made = await build({"Makefile": ahead, **ONE_FILE})
    assert "clock is ahead" in made.making.reason


# --- hostile, killed, side by side ---------------------------------------------------------------


@pytest.mark.attack
@pytest.mark.parametrize("bases", ["packages", "none"])
async def test_nothing_is_made_from_other_submitters_entries(build: Build, bases: str) -> None:
    """A source's own makefile runs in its build, and could leave any object behind."""
    await build(
        {"Makefile": ('\t@echo "  LD      $@"', "\t@echo evil >>fs/open.o\n\t@echo '  LD'")}
    )
    made = await build(ONE_FILE, rules=NearRules(bases=bases, rehearsals=0))
    assert made.making.base is None


async def test_builders_that_need_the_same_near_entry_at_once_make_it_once(build: Build) -> None:
    base = await build()
    both = await asyncio.gather(*(build(ONE_FILE, rules=NEVER, cache="fresh") for _ in range(2)))
    assert {built.making.base for built in both} == {base.folder.name}
    assert sorted("made from entry" in built.log for built in both) == [False, True]
    other = [build(ONE_FILE, EXTRA, rules=NEVER), build({}, EXTRA, rules=NEVER)]
    made = await asyncio.gather(*other)
    assert all(built.making.base for built in made)


KILLED = """
import asyncio, sys
from pathlib import Path
from kgym.api.steps import BuildSpec
from tests.builder.suitecache.test_near_entries import NEVER, built_in
from tests.builder.conftest import suite_cache
from tests.conftest import attempt

parent = Path(sys.argv[1])
run = attempt(parent, BuildSpec.model_validate_json(sys.stdin.read()))
asyncio.run(built_in(parent, run, NEVER))
"""


@pytest.mark.parametrize(
    "stage",
    ["made from entry", pytest.param("tree: mounted", marks=pytest.mark.exhaustive), "shortcut"],
)
async def test_a_killed_builder(build: Build, prepared: Built, tmp_path: Path, stage: str) -> None:
    """It leaves an entry whole or absent."""
    base = await build()
    spec = spec_of(prepared.folder.parents[2], ONE_FILE, "")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", KILLED, str(tmp_path)),
        stdin=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdin is not None
    process.stdin.write(spec.model_dump_json().encode())
    process.stdin.close()
    end = time.monotonic() + 120
    while process.returncode is None and time.monotonic() < end:
        if any(stage in log.read_text() for log in (tmp_path / "work").glob("*/step.log")):
            break
        await asyncio.sleep(0.01)
    with suppress(ProcessLookupError):
        process.kill()
    await process.wait()
    made = await build(ONE_FILE, rules=NEVER, cache="fresh")
    assert made.making.base == base.folder.name
    scratch = await build(ONE_FILE, host="two", apart=True)
    assert made.kernel == scratch.kernel


# --- how fast ------------------------------------------------------------------------------------

SLOW: Edits = {"Makefile": ('\t@echo "  LD      $@"', "\t@sleep 60")}


async def test_make_is_ended_when_the_jobs_time_for_it_is_over(build: Build) -> None:
    with refused("make_too_slow"):
        await build(SLOW, make_seconds=1)


async def test_more_time_than_the_operator_allows_is_refused(build: Build) -> None:
    most = SandboxLimits.of_host().seconds
    with pytest.raises(UserError) as caught:
        await build(make_seconds=int(most) + 1)
    assert (caught.value.reason, caught.value.details) == ("make_seconds_too_high", {"limit": most})


async def test_make_gets_at_most_one_job_per_core(build: Build) -> None:
    edits: Edits = {"Makefile": ('\t@echo "  LD      $@"', "\t@echo 'jobs: $(MAKEFLAGS)'")}
    for jobs, option in ((1, "-j1"), (1000, f"-j{Host.here().cores}")):
        made = await build(edits, jobs=jobs, cache="refresh")
        lines = (made.folder / LOG).read_text().splitlines()
        assert f" {option} " in next(line for line in lines if "jobs:" in line)


def test_how_fast_to_build_does_not_make_another_bug_of_it(fake_build: BuildSpec) -> None:
    slow = fake_build.model_copy(update={"jobs": 1, "make_seconds": 60})
    programs = [Reproducer(text="int main(void) { return 0; }")]
    marks = {calibration(spec, programs, VmShape()) for spec in (fake_build, slow)}
    assert len(marks) == 1
    assert request([fake_build]) != request([slow])
