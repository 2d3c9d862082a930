"""Every command and every program in README and the pages does what it is written for."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from kgym.api.jobs import JobRequest
from kgym.api.steps import BuildSpec, PatchCheck, PatchOutcome, StepKind, StepResult, Verdict
from kgym.bugs import bundle
from kgym.client import Client
from kgym.worker.context import StepContext
from kgym_cli.platforms.embedded_platform import Platform
from tests.cli.test_commands import LOG
from tests.cli.worked import working
from tests.conftest import ROOT, turns
from tests.docs.code_blocks import PAGES, CodeBlock, code_blocks
from tests.results import GOOD, built, checked, crash, ran

BLOCKS = [block for page in PAGES for block in code_blocks(page)]
QUICK = [page for page in PAGES if any(not block.how for block in code_blocks(page))]
BUG = bundle.load("watch-queue-filter")
RUN = f"""#!/bin/sh
case $1 in
kgym) shift ;;
*) echo "{ROOT / "run"} $*: mark this block as slow" >&2; exit 9 ;;
esac
exec kgym "$@"
"""
PATCH = """\
--- a/kernel/watch_queue.c
+++ b/kernel/watch_queue.c
@@ -1 +1 @@
-int before;
+int after;
"""


def test_what_is_not_run_says_which_test_does_or_why() -> None:
    for block in BLOCKS:
        assert block.how in {"", "slow", "cloud"}, f"{block.page.name}: {block.how}"
        if block.how == "slow":
            assert (ROOT / block.why).is_file(), f"{block.page.name}: {block.why}"
        if block.how == "cloud":
            assert block.why, f"{block.page.name}: {block.text}"


def test_no_command_stands_where_it_is_not_tried() -> None:
    for page in PAGES:
        for language, text in re.findall(r"(?ms)^```(\w+)[^\n]*\n(.*?)^```$", page.read_text()):
            if language not in {"sh", "console", "python"}:
                assert not re.search(r"(?m)^(\./run|kgym|run_kernel|curl) ", text), (page, text)


def answer(run: StepContext) -> StepResult:
    """What a step of any kind comes to: the bug shows, every fix mends it."""
    (run.folder / "vmlinux").write_text("a kernel")
    (run.folder / "report-0").write_text(LOG)
    (run.folder / "bundle.tar.gz").write_text("a bundle")
    spec = run.assignment.spec
    if spec.kind is StepKind.BUILD:
        return built()
    if spec.kind is StepKind.CHECK:
        good = PatchOutcome.COMPILES
        return checked([PatchCheck(name=p.name, outcome=good, seconds=1) for p in spec.patches])
    if spec.baseline is not None:
        return ran(Verdict.NO_CRASH, evidence=GOOD, baseline=Verdict.SAME_CRASH)
    title = spec.titles[0]
    return ran(Verdict.SAME_CRASH, title, completed=10, instances=[crash(title)] * 10)


@pytest.fixture
def folder(tmp_path: Path, fake_build: BuildSpec) -> Path:
    """A folder with what the pages' commands take."""
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "run").write_text(RUN)
    (folder / "run").chmod(0o755)
    (folder / "configs").symlink_to(ROOT / "configs")
    (folder / "my.patch").write_text(PATCH)
    (folder / "patches").mkdir()
    (folder / "patches" / "1.patch").write_text(PATCH)
    (folder / "console.log").write_text(LOG)
    (folder / "repro.c").write_text("int main(void) { return 0; }\n")
    thread = folder / "syzbot" / "threads" / "0a1b2c3d" / "0.mbox"
    thread.parent.mkdir(parents=True)
    thread.write_text("From mboxrd@z Thu Jan  1 00:00:00 1970\nSubject: a bug\n\n")
    (folder / "job.json").write_text(JobRequest(steps=[fake_build]).model_dump_json())
    return folder


@pytest.fixture
def worked(data: Path) -> Iterator[Platform]:
    """A platform whose steps are answered at once, with one job that has ended."""
    given = dict.fromkeys((StepKind.BUILD, StepKind.CHECK, StepKind.REPRODUCE), answer)
    with Platform(data, work=False) as platform, working(platform, data, given):
        with Client(platform.url) as client:
            client.wait(client.submit(BUG.job(BUG.fix)).id)
        yield platform


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "page", [PAGES[0], *turns(QUICK[1:], 2)], ids=lambda page: str(page.relative_to(ROOT))
)
def test_the_commands_of_a_page_run_as_they_are_written(
    page: Path, folder: Path, worked: Platform, data: Path
) -> None:
    elsewhere = {block.text for block in BLOCKS if block.page not in {page, PAGES[0]}}
    for block in code_blocks(page):
        if not block.how and block.text not in elsewhere:
            while httpx.get(f"{worked.url}/v1/caller", trust_env=False).status_code != 200:
                time.sleep(0.1)  # tokens were forgotten: a scheduler looks every 5 s
            done = executed(block, folder, worked, data)
            assert done.returncode == 0, f"{block.text}\n{done.stdout}\n{done.stderr}"


def executed(
    block: CodeBlock, folder: Path, platform: Platform, data: Path
) -> subprocess.CompletedProcess[str]:
    """Run a block; the platform of `./run up` is at another address here."""
    text = block.text.replace("http://127.0.0.1:8420", platform.url)
    argv = [sys.executable, "-c", text] if block.language == "python" else ["sh", "-ec", text]
    return subprocess.run(
        argv,
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "KGYM_DATA": str(data),
            "KGYM_SERVER": platform.url,
        },
        capture_output=True,
        check=False,
        text=True,
        timeout=280,
    )
