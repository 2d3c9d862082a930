"""The platform of a run: where its files come from, what tools see, what prompts are cut to."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from kgym.api.agent.nodes import CauseCommit, CauseFunction, Tried
from kgym.api.agent.strategy import Cycle, Forest, Strategy, Tool
from kgym.api.steps import BuildSpec, Edit, GitSource
from kgym.client import AsyncClient, Client
from kgym.errors import UserError
from kgym_cli.platforms.embedded_platform import Platform as Scheduler
from kgym_crashfixer.platform import SchedulerPlatform, wants_trace
from kgym_crashfixer.platform_protocol import BEGIN, Begun
from kgym_crashfixer.search.search import TRACE
from kgym_crashfixer.search.tool import verdict_words
from kgym_crashfixer.search.work import Purpose, Question, Seen, Source, Trace, Try
from kgym_crashfixer.strategies import load, names
from tests.builder.kernel_source import git_server
from tests.cli.test_sweep import diff
from tests.crashfixer.farm import BUG, Farm
from tests.refused import refused

WATCH, SCHED = "kernel/watch_queue.c", "kernel/sched.c"
PLAIN = Forest(cycle=Cycle(trace=False))
TREE = Path(__file__).parents[1] / "fakelinux"
T = TypeVar("T")


Using = Callable[..., Any]


@pytest.fixture
def using(scheduler: Scheduler, fake_build: BuildSpec) -> Using:
    """Use the platform for a bug of the small tree."""
    dwarf = [*fake_build.config.fragments, "CONFIG_DEBUG_INFO_DWARF5=y\n"]
    config = fake_build.config.model_copy(update={"fragments": dwarf})
    bug = replace(BUG, build=fake_build.model_copy(update={"config": config}))

    def run(strategy: Strategy, use: Callable[[SchedulerPlatform], Awaitable[T]], **more: Any) -> T:
        async def inner() -> T:
            known = replace(bug, cause=more.pop("cause", None))
            known = replace(known, build=more.pop("build", known.build))
            known = replace(known, file=more.pop("file", known.file))

            async def submitted(name: str, job: int) -> None:
                more.get("jobs", []).append((name, job))

            async with AsyncClient(scheduler.url) as client:
                given = {name: value for name, value in more.items() if name != "jobs"}
                given = {"key": "r1", "group": "g", **given}
                platform = SchedulerPlatform(client, known, strategy, submitted=submitted, **given)
                return await use(platform)

        return asyncio.run(inner())

    return run


def test_a_run_begins_with_whole_files_and_then_traces(using: Using, farm: Farm) -> None:
    jobs: list[tuple[str, int]] = []
    begun = using(Forest(localisation="fix"), lambda platform: platform.begin(), jobs=jobs)
    assert begun.files == {WATCH: (TREE / WATCH).read_text()}
    assert (begun.crash.trace, begun.trace, begun.notes) == (None, [WATCH], [])
    assert (BEGIN, begun.job) in jobs
    assert {name for name, _ in jobs} == {BEGIN, "source"}
    trace = Trace(files=begun.trace)
    seen = using(Forest(), lambda platform: platform.do(TRACE, trace), jobs=jobs)
    assert seen.text.startswith("begins() [returned]")
    assert jobs[-1][0] == TRACE


def test_a_known_crash_is_not_reproduced_again_and_a_kernel_without_dwarf_not_traced(
    using: Using, farm: Farm, fake_build: BuildSpec
) -> None:
    strategy, jobs = Forest(localisation="fix"), list[tuple[str, int]]()
    first = using(strategy, lambda platform: platform.begin(), build=fake_build)
    done = list(farm.done)
    assert first.trace == []
    assert "its config has no debug information" in first.notes[0]
    again = using(
        strategy, lambda platform: platform.begin(), build=fake_build, key="r2", jobs=jobs
    )
    assert (again, farm.done) == (first, done)
    assert dict(jobs)[BEGIN] == first.job


@pytest.mark.thorough
def test_the_source_is_made_readable_while_the_bug_is_shown(
    using: Using, farm: Farm, scheduler: Scheduler
) -> None:
    farm.hold_at = "run"
    jobs: list[tuple[str, int]] = []

    async def begin(platform: SchedulerPlatform) -> Begun:
        beginning = asyncio.create_task(platform.begin())
        assert await asyncio.to_thread(farm.held.wait, 60)
        async with AsyncClient(scheduler.url) as client:
            while "source" not in dict(jobs):
                await asyncio.sleep(0.05)
            while not (await client.job(dict(jobs)["source"])).state.final:
                await asyncio.sleep(0.05)
        assert not beginning.done()
        farm.hold.set()
        return await beginning

    begun = using(PLAIN.model_copy(update={"localisation": "fix"}), begin, jobs=jobs)
    assert list(begun.files) == [WATCH]
    assert [name for name, _ in jobs] == [BEGIN, "source"]


def test_where_the_bug_does_not_show_no_job_is_left(
    using: Using, farm: Farm, scheduler: Scheduler
) -> None:
    farm.shows = False
    jobs: list[tuple[str, int]] = []
    with refused("does_not_reproduce", kind=UserError):
        using(PLAIN, lambda platform: platform.begin(), jobs=jobs)
    with Client(scheduler.url) as client:
        assert all(client.job(job).state.final for _, job in jobs)


def test_the_report_names_files_and_says_what_it_passes_over(using: Using, farm: Farm) -> None:
    farm.report = (
        "BUG: KASAN: use-after-free in watch_filter+0x1/0x2 kernel/watch_queue.c:9\n"
        "Call Trace:\n"
        " watch_filter+0x1/0x2 kernel/watch_queue.c:9\n"
        " set_it+0x1/0x2 kernel/sched.c:3\n"
        " gone+0x1/0x2 kernel/gone.c:3\n"
    )
    begun = using(PLAIN, lambda platform: platform.begin())
    assert list(begun.files) == [WATCH, SCHED]
    assert begun.crash.trace is None
    assert [note.split(":")[0] for note in begun.notes] == ["kernel/gone.c is skipped"]
    assert "gone.c" in begun.notes[0]


def test_functions_and_words_find_files_where_the_report_names_none(
    using: Using, farm: Farm
) -> None:
    farm.report = (
        "BUG: KASAN: use-after-free in watch_filter+0x1/0x2\n"
        "Call Trace:\n watch_filter+0x1/0x2\n do_syscall_64+0x1/0x2\n"
    )
    begun = using(PLAIN, lambda platform: platform.begin())
    assert (list(begun.files), begun.notes) == ([WATCH], [])  # its function is looked up
    by_words = PLAIN.model_copy(update={"localisation": "bm25"})
    assert next(iter(using(by_words, lambda platform: platform.begin()).files)) == WATCH


@pytest.mark.parametrize(("compiled", "notes"), [(WATCH, 0), (SCHED, 1)])
def test_functions_are_looked_up_in_the_files_that_the_kernel_has(
    using: Using, farm: Farm, compiled: str, notes: int
) -> None:
    farm.report = "BUG: KASAN: use-after-free in watch_filter+0x1/0x2\n watch_filter+0x1/0x2\n"
    farm.compiled = f'[{{"file": "/mnt/linux/{compiled}"}}]'
    assert len(using(PLAIN, lambda platform: platform.begin()).notes) == notes


def test_the_caller_may_name_the_files(using: Using) -> None:
    begun = using(PLAIN, lambda platform: platform.begin(), files=[SCHED, SCHED])
    assert list(begun.files) == [SCHED]
    with refused("no_files", r"kernel/absent\.c", kind=UserError):
        using(PLAIN, lambda platform: platform.begin(), files=["kernel/absent.c"])


def test_no_file_is_no_beginning(using: Using, farm: Farm) -> None:
    farm.report = "BUG: something bad happened\n"
    with refused("no_files", kind=UserError):
        using(PLAIN, lambda platform: platform.begin())


def test_a_run_that_goes_on_needs_no_second_beginning(using: Using, farm: Farm) -> None:
    begun = using(Forest(localisation="fix"), lambda platform: platform.begin())
    before = list(farm.done)

    async def go_on(platform: SchedulerPlatform) -> Tried:
        await platform.resume(begun)
        result = await platform.do("t0/1-try", Try(node="t0", diff=diff("useless"), traced=True))
        assert isinstance(result, Tried)
        return result

    result = using(Forest(localisation="fix"), go_on)
    assert result.crash.trace is not None
    added = ["build useless", "run useless", "traced build", "traced run useless", "minimize"]
    assert farm.done == before + added


def look(tool: str, *, edits: tuple[Edit, ...] = (), **arguments: Any) -> Source:
    return Source.model_validate(
        {"node": "t", "tool": tool, "arguments": arguments, "edits": list(edits)}
    )


def test_tools_see_the_source_with_the_edits(using: Using) -> None:
    async def run(platform: SchedulerPlatform) -> None:
        async def seen(tool: str, *, edits: tuple[Edit, ...] = (), **more: Any) -> Seen:
            result = await platform.do("t/1-source", look(tool, edits=edits, **more))
            assert isinstance(result, Seen)
            return result

        text = (TREE / WATCH).read_text()
        assert (await seen("whole", path=WATCH)).text == text
        part = await seen("read_file", path=WATCH, start=3, end=5)
        lines = text.splitlines()
        numbered = "\n".join(f"{number}\t{lines[number - 1]}" for number in (3, 4, 5))
        head = f"{WATCH}: lines 3 to 5 of {len(lines)}"
        assert part.text == f"{head}\n<file>\n{numbered}\n</file>"
        edit = Edit(file=WATCH, original="filter[8]", replacement="filter[16]")
        assert "filter[16]" in (await seen("read_file", edits=(edit,), path=WATCH)).text
        folder = (await seen("list_folder", path="")).text.splitlines()
        assert {"kernel/", "Makefile"} <= set(folder)
        assert f"{WATCH}:3: " in (await seen("search", pattern="WATCH_TYPE__NR 2$")).text
        assert (await seen("search", pattern="no such words here")).text.startswith("0 lines\n")
        assert f"{WATCH}:7-14: function: " in (await seen("symbol", name="watch_filter")).text
        for wrong in (
            look("read_file", path="kernel/absent.c"),
            look("read_file", path=7),
            look("read_file", path=WATCH, start="x"),
            look("whole", path="../../etc/passwd"),
            look("read_file", path=WATCH, first=3),
            look("search", pattern="("),
            look("search", pattern="a", glob=7),
            look("symbol", name="not a name"),
            look("symbol"),
        ):
            result = await platform.do("t/1-source", wrong)
            assert isinstance(result, Seen)
            assert not result.succeeded
            assert result.text.startswith("error: ")

    using(Tool(), run)


def test_tools_show_the_crash_and_run_kernels_but_nothing_of_the_fix(
    using: Using, farm: Farm, tmp_path: Path
) -> None:
    linux = tmp_path / "linux"
    linux.mkdir()
    git_server.git(linux, "init", "-q")
    for message in ("watch: add filters", "watch: FIXED, check the type"):
        fix = git_server.commit(linux, message, **{"watch.c": message})
    history = GitSource(url=str(linux), commit="HEAD~1")

    async def run(platform: SchedulerPlatform) -> None:
        async def seen(tool: str, *, edits: tuple[Edit, ...] = (), **more: Any) -> Seen:
            result = await platform.do("t/1-source", look(tool, edits=edits, **more))
            assert isinstance(result, Seen)
            assert "FIXED" not in result.text
            assert "CVE" not in result.text
            return result

        assert not (await seen("console")).succeeded  # nothing has shown the bug yet
        begun = await platform.begin()
        program = (await seen("reproducer")).text
        assert "O_EXCL" in program
        assert "/*" not in program
        assert begun.program in program
        console = (await seen("console", lines=1)).text
        assert "step 1" not in console
        assert console.splitlines()[1] == "[ 2.0] kgym: "
        assert "<crash_report>\n[ 3.0] BUG: bad\n</crash_report>" in console
        config = await seen("kernel_config", part="kasan")
        assert config.text == "1 lines\n<file>\nCONFIG_KASAN=y\n</file>"
        farm.done.clear()
        traced = await seen("trace", functions=["watch_filter", "helper"])
        assert traced.text == (
            f"calls of functions of {WATCH}, from earliest to most recent:\n"
            "<trace>\nhelper() [returned]\n</trace>"
        )
        assert not (await seen("trace", functions=["no such"])).succeeded
        assert (await seen("trace", functions=["gone"])).text.startswith("no trace: no C file")
        ran = await seen("run_program", program="int main(void) {}", patch=diff("mends"))
        assert ran.text.startswith("same_crash: KASAN: ")
        assert not (await seen("run_program", program="x", kind="syz")).succeeded
        again = await seen("run_program", program="int main(void) {}", patch=diff("mends"))
        assert again == ran
        assert farm.done == ["traced build", "traced run", "minimize", "build mends", "run"]
        log = (await seen("git_log", words="watch")).text
        assert log.splitlines()[1].endswith("watch: add filters")
        first = log.splitlines()[1].split()[0]
        assert "+watch: add filters" in (await seen("git_show", commit=first)).text
        assert "add filters" in (await seen("git_blame", path="watch.c")).text
        assert f"has no {fix}" in (await seen("git_show", commit=fix)).text
        assert not (await seen("git_show", commit="HEAD")).succeeded
        assert "vmlinux" in (await seen("layout", name="file")).text

    file = BUG.file.model_copy(update={"history": history})
    using(PLAIN.model_copy(update={"localisation": "fix"}), run, file=file)
    without = using(PLAIN, lambda platform: platform.do("t/1-source", look("git_log")))
    assert without.text.startswith("there is no history")


def test_what_a_patch_prints_for_debugging_comes_back(using: Using, farm: Farm) -> None:
    async def run(platform: SchedulerPlatform) -> Tried:
        await platform.begin()
        result = await platform.do("t/1-try", Try(node="t", diff=diff("useless kgym: %d")))
        assert isinstance(result, Tried)
        return result

    result = using(PLAIN.model_copy(update={"localisation": "fix"}), run)
    assert result.printed == "[ 2.0] kgym: useless kgym: %d"
    assert verdict_words(result).endswith(f"<console>\n{result.printed}\n</console>")


def test_a_definition_is_shown_with_its_file(using: Using) -> None:
    async def run(platform: SchedulerPlatform) -> None:
        edit = Edit(file=WATCH, original="filter[8]", replacement="filter[16]")
        name = "watch_filter"
        result = await platform.do("t/1-source", look("definition", name=name, edits=(edit,)))
        assert isinstance(result, Seen)
        assert result.paths == [WATCH]
        head = f"function in {WATCH}: lines 7 to 14 of "
        assert result.text.startswith(head), result.text
        assert "\n7\tint watch_filter(int type)" in result.text
        for wrong in (look("definition", name="frob_gone"), look("definition", name="not a name")):
            result = await platform.do("t/1-source", wrong)
            assert isinstance(result, Seen)
            assert not result.paths
            assert result.text.startswith(("error: ", "frob_gone is defined nowhere"))

    using(Tool(), run)


CAUSE = CauseCommit(
    commit="c0ffee",
    title="sched: set it",
    functions=[CauseFunction(file=WATCH, name="watch_filter")],
    diff="".join(
        f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n"
        f"@@ -1 +1 @@\n-a\n+{'b' * 15_000}\n"
        for path in ("kernel/gone.c", SCHED)
    ),
)


def test_the_commit_that_brought_the_bug_says_which_files_may_be_changed(
    using: Using, farm: Farm
) -> None:
    farm.report = (
        "BUG: KASAN: use-after-free in set_it+0x1/0x2 kernel/sched.c:3\n"
        "Call Trace:\n set_it+0x1/0x2 kernel/sched.c:3\n"
    )
    by_cause = PLAIN.model_copy(update={"localisation": "cause"})
    begun = using(by_cause, lambda platform: platform.begin(), cause=CAUSE)
    assert list(begun.files) == [SCHED, WATCH]
    assert "kernel/gone.c is skipped" in begun.notes[0]
    assert begun.cause.title == "sched: set it"
    assert begun.cause.diff.startswith(f"diff --git a/{SCHED}")  # what may be changed comes first
    assert begun.cause.diff.endswith(" characters more]\n")
    assert len(begun.cause.diff) < 20_100
    begun = using(by_cause, lambda platform: platform.begin())
    assert list(begun.files) == [SCHED]
    assert "does not name the commit" in begun.notes[0]


def test_only_what_the_crash_is_about_is_shown_if_that_is_wanted(using: Using) -> None:
    text = "".join(f"int f{n}(int a)\n{{\n\treturn a + {n};\n}}\n\n" for n in range(40))
    values = {"report": "BUG: bad in f20+0x1/0x2\nCall Trace:\n f20+0x1/0x2\n", "trace": None}
    values |= {"files": {"a.c": text}, "changed": "", "names": ["f30"]}
    values["explanation"] = "f7() returns too much"
    question = Question(node="t0", purpose=Purpose.FUNCTIONS, values=values, temperature=0.8)

    async def run(platform: SchedulerPlatform) -> Question:
        return platform.fitted(question)

    shown = using(PLAIN, run).values["files"]["a.c"]
    assert re.findall(r"^int (f\d+)", shown, re.MULTILINE) == ["f7", "f20", "f30"]
    assert using(PLAIN.model_copy(update={"context": "functions"}), run) == question


def test_files_are_cut_for_the_prompt_alone(using: Using) -> None:
    text = "".join(f"int f{n}(int a)\n{{\n\treturn a + {n};\n}}\n\n" for n in range(400))
    values = {"report": "BUG: bad in f200+0x1/0x2\nCall Trace:\n f200+0x1/0x2\n", "trace": None}
    question = Question(
        node="t0",
        purpose=Purpose.HYPOTHESIS,
        values={**values, "files": {"a.c": text}, "changed": ""},
        temperature=0.8,
    )

    async def run(platform: SchedulerPlatform) -> tuple[Question, Question]:
        talk = question.model_copy(update={"values": {**values, "files": ["a.c"]}})
        assert platform.fitted(talk) == talk
        assert platform.fitted(question) == platform.fitted(question)
        return platform.fitted(question), question

    cut, whole = using(PLAIN.model_copy(update={"context": "functions"}), run, window=4_000)
    assert "int f200(" in cut.values["files"]["a.c"]
    assert len(cut.values["files"]["a.c"]) < 6_000
    assert whole.values["files"] == {"a.c": text}
    paper, whole = using(PLAIN.model_copy(update={"context": "files"}), run, window=4_000)
    assert paper == whole


def test_each_strategy_knows_whether_it_shows_traces() -> None:
    wanting = {name: wants_trace(load(name)) for name in names()}
    assert wanting["forest"]
    assert wanting["escalate"]
    assert not wants_trace(PLAIN)
