"""Campaigns: fixes are reversed on another kernel, and what comes back is told, each once."""

import asyncio
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from kgym.api.steps import BuildSpec, ReproduceSpec, StepKind, StepResult, TarballSource, Verdict
from kgym.bugs import bundle, fixed_bug, sweep
from kgym.bugs.port import Outcome, PortOptions, PortRow, Subject, port
from kgym.bugs.sweep import SweepOptions
from kgym.client import AsyncClient
from kgym.errors import UserError
from kgym.worker.context import StepContext
from kgym_builder.kernel_source.allowed_origins import Origins
from kgym_cli.commands.bug_port import write_bundle
from kgym_cli.platforms.embedded_platform import Platform
from kgym_cli.platforms.step_registry import Equipment, handlers
from tests.cli.worked import working
from tests.refused import refused
from tests.results import GOOD, built, crash, ran
from tests.tables import json_rows


def fix(path: str, context: str, before: str, after: str) -> str:
    """Return a fix: the line `before` became `after`."""
    old, new = f" {context}\n-{before}\n", f" {context}\n+{after}\n"
    both = old + new.removeprefix(f" {context}\n")
    return f"--- a/{path}\n+++ b/{path}\n@@ -1,2 +1,2 @@\n{both}"


WATCH = ("kernel/watch_queue.c", "\t/* Ignore any unknown types */")
KEPT = "\tif (type >= WATCH_TYPE__NR)"
FIXES = {
    "back": fix(*WATCH, "\tif (type >= 100)", KEPT),
    "quiet": fix(*WATCH, "\tif (type >= 60)", KEPT),
    "unlike": fix(*WATCH, "\tif (type >= 50)", "\tif (type >= 2 * WATCH_TYPE__NR)"),
    "broken": fix(*WATCH, "\tif (kind >= 100)", KEPT),
    "unfixed": fix(*WATCH, "\tif (type >= 70)", KEPT),
    "unproven": fix(*WATCH, "\tif (type >= 80)", KEPT),
    "left-out": "--- a/lib/extra.c\n+++ b/lib/extra.c\n"
    "@@ -1 +1 @@\n-int extra = 0;\n+int extra = 1;\n",
    "words": "The fix is to be careful.\n",
}
WANTED = {
    "back": Outcome.COMES_BACK,
    "quiet": Outcome.NO_CRASH,
    "unlike": Outcome.DOES_NOT_REVERSE,
    "broken": Outcome.DOES_NOT_COMPILE,
    "unfixed": Outcome.NOT_FIXED,
    "unproven": Outcome.INCONCLUSIVE,
    "left-out": Outcome.NOT_BUILT,
    "words": Outcome.REFUSED,
}


class Farm:
    """Workers that crash, or do not, by what the kernel was patched with."""

    def __init__(self) -> None:
        self.asked: list[ReproduceSpec] = []

    def build(self, run: StepContext) -> StepResult:
        """Build, and remember the reversed fix."""
        spec = run.assignment.spec
        assert isinstance(spec, BuildSpec)
        return built(tree=spec.patches[0].diff or "")

    def reproduce(self, run: StepContext) -> StepResult:
        """Crash before the fix, and after it where it is the wrong one."""
        spec, kernel = run.assignment.spec, run.assignment.inputs["build"].result
        assert isinstance(spec, ReproduceSpec)
        self.asked.append(spec)
        tree = getattr(kernel, "tree", "")
        after = spec.baseline is not None
        if "60" in tree:
            return ran()
        if not after or "70" in tree:
            seen = crash("BUG: seen here", run_seconds=None)
            known = {"baseline": Verdict.SAME_CRASH} if after else {}
            return ran(Verdict.SAME_CRASH, seen.title, evidence=GOOD, instances=[seen], **known)
        proof = {} if "80" in tree else {"evidence": GOOD}
        return ran(baseline=Verdict.SAME_CRASH, **proof)


@pytest.fixture
def kernels(tmp_path: Path, fake_source: TarballSource) -> Path:
    """A folder of configs with one shared kernel: the small make tree."""
    folder = tmp_path / "configs" / "kernels"
    folder.mkdir(parents=True)
    (folder / "base.config").write_text("CONFIG_BASE=y\n")
    shutil.copy(fake_source.url, folder / "linux.tar")
    (folder / "small.toml").write_text(
        f'tarball = "linux.tar"\nsha256 = "{fake_source.sha256}"\n'
        'base = "allnoconfig"\nfragments = ["base.config"]\n'
    )
    return folder.parent


@pytest.fixture
def subjects(tmp_path: Path) -> list[Subject]:
    program = tmp_path / "repro.c"
    program.write_text("int main(void) { return 0; }\n")
    made = []
    for name, patch in FIXES.items():
        file = tmp_path / f"{name}.json"
        commits = [{"title": "the fix", "hash": "ab12", "repo": "elsewhere"}]
        about = {"id": name, "title": f"BUG: {name}", "patch": patch, "fix-commits": commits}
        file.write_text(json.dumps(about | {"version": 1}))
        made.append(Subject(fixed_bug.read(file), program))
    return made


@contextmanager
def farming(data: Path, farm: Farm) -> Iterator[str]:
    """Run a platform whose sources and checks are real; its URL."""
    has = Equipment(data / "cache", Origins.named((), (), (Path("/"),)))
    real = handlers([StepKind.SOURCE, StepKind.CHECK], has)
    answers = {StepKind.BUILD: farm.build, StepKind.REPRODUCE: farm.reproduce}
    with Platform(data, work=False) as platform, working(platform, data, answers, real):
        yield platform.url


def ported(url: str, subjects: list[Subject], options: PortOptions) -> dict[str, PortRow]:
    """Return the rows of a campaign, by bug."""
    rows: list[PortRow] = []

    async def go() -> None:
        async with AsyncClient(url) as client:
            await port(client, ["small"], subjects, options, rows.append)

    asyncio.run(go())
    assert len({row.bug for row in rows}) == len(rows)
    return {row.bug: row for row in rows}


@pytest.mark.thorough
def test_each_bug_gets_one_right_row_and_the_same_campaign_runs_nothing_again(
    tmp_path: Path, kernels: Path, subjects: list[Subject]
) -> None:
    farm, data = Farm(), tmp_path / "data"
    options = PortOptions(SweepOptions("campaign"), time=7, configs=kernels)
    with farming(data, farm) as url:
        dry = ported(url, subjects, replace(options, only_reverse=True))
        assert {name for name, row in dry.items() if row.outcome is Outcome.REVERSES} == {
            *("back", "quiet", "broken", "unfixed", "unproven", "left-out")
        }
        assert not farm.asked
        rows = ported(url, subjects, options)
        ran_before = len(farm.asked)
        assert ported(url, subjects, options) == rows
    assert {name: row.outcome for name, row in rows.items()} == WANTED
    assert len(farm.asked) == ran_before
    back = rows["back"]
    assert (back.title, back.crash, back.fix) == ("BUG: back", "BUG: seen here", "ab12")
    assert "kind" in rows["broken"].reason
    assert "leaves the files out" in rows["left-out"].reason
    # Five attempts with the bug, two with the fix; whatever the crash is called.
    asked = {(spec.baseline is None, spec.instances, spec.time) for spec in farm.asked}
    assert asked == {(True, 5, 7), (False, 2, 7)}
    assert all(spec.titles == [] for spec in farm.asked)


@pytest.mark.thorough
def test_any_number_of_bugs_is_compiled(
    tmp_path: Path, kernels: Path, subjects: list[Subject], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By more than one check: a check takes so many patches."""
    monkeypatch.setattr(sweep, "PATCHES", 2)
    farm = Farm()
    options = PortOptions(SweepOptions("campaign"), configs=kernels)
    left_out = next(subject for subject in subjects if subject.bug.id == "left-out")
    many = [
        replace(left_out, bug=left_out.bug.model_copy(update={"id": f"b{number}", "patch": patch}))
        for number in range(2, 7)
        for patch in [FIXES["left-out"].replace("extra = 0", f"extra = {number}")]
    ]
    with farming(tmp_path / "data", farm) as url:
        rows = ported(url, many, options)
    assert len(rows) == 5
    assert {row.outcome for row in rows.values()} == {Outcome.NOT_BUILT}


@pytest.mark.attack
def test_what_comes_back_becomes_a_bundle_whatever_its_crash_is_called(
    tmp_path: Path, kernels: Path, subjects: list[Subject]
) -> None:
    options = PortOptions(SweepOptions("campaign"), time=7, configs=kernels)
    title = 'BUG: "x"\n[fix]\npatch = "other.patch"\x7f\x1b'
    row = PortRow(bug="back", kernel="small", outcome=Outcome.COMES_BACK, crash=title)
    folder = tmp_path / "ported" / "back"
    for _ in range(2):  # a campaign that goes on writes it again
        write_bundle(folder, row, subjects[0], options)
    ported = bundle.load(str(folder), kernels)
    assert ported.titles == [title, "BUG: back"]
    assert (ported.file.references, ported.file.files) == (
        ["syzbot back", "commit ab12: the fix"],
        ["kernel/watch_queue.c"],
    )
    assert ported.fix is not None
    assert f"+{KEPT}" in (ported.fix.diff or "")
    assert [path.name for path in folder.parent.iterdir()] == ["back"]


def test_a_bundle_may_name_a_program_that_lies_elsewhere(
    tmp_path: Path, kernels: Path, subjects: list[Subject], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = PortRow(bug="back", kernel="small", outcome=Outcome.COMES_BACK)
    folder, program = tmp_path / "named", subjects[0].program
    options = PortOptions(SweepOptions("campaign"), configs=kernels)
    write_bundle(folder, row, subjects[0], options, with_program=False)
    assert {path.name for path in folder.iterdir()} == {"bug.toml", "regress.patch"}
    monkeypatch.delenv("KGYM_PROGRAMS", raising=False)
    with refused("no_program", match="KGYM_PROGRAMS"):
        bundle.load(str(folder), kernels)
    monkeypatch.setenv("KGYM_PROGRAMS", str(program.parent))
    text = bundle.load(str(folder), kernels).reproducers[0].text
    assert text == program.read_text()
    program.write_text("int main(void) { return 1; }\n")
    with pytest.raises(UserError, match="SHA-256"):
        bundle.load(str(folder), kernels)
    (folder / program.name).write_text(text)
    assert bundle.load(str(folder), kernels).reproducers[0].text == text


@pytest.mark.attack
@pytest.mark.parametrize(
    ("text", "wrong"), [*json_rows(__file__, "no_bugs.jsonl"), ('"' + "a" * (9 << 20) + '"', "MiB")]
)
def test_a_file_that_is_no_bug_is_named(tmp_path: Path, text: str, wrong: str) -> None:
    file = tmp_path / "bad.json"
    file.write_text(text)
    with refused("bad_fixed_bug", match=wrong) as caught:
        fixed_bug.read(file)
    assert str(file) in caught.value.message
