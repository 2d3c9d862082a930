"""`kgym bug new`: a bundle of one's own, by options or by answers, titled as it crashed."""

import os
import pty
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from kgym.api.steps import (
    InstanceOutcome,
    InstanceResult,
    ReproduceResult,
    ReproduceSpec,
    StepKind,
    Verdict,
)
from kgym.bugs import bundle
from kgym.worker.context import StepContext
from kgym_cli.platforms.embedded_platform import Platform
from tests.cli.conftest import Kgym
from tests.cli.worked import working
from tests.conftest import ROOT
from tests.results import built, ran
from tests.tables import json_rows

pytestmark = pytest.mark.thorough

TITLE = 'WARNING in "f"\x7f é'


@pytest.fixture
def repro(tmp_path: Path) -> Path:
    path = tmp_path / "mine.c"
    path.write_text("int main(void) { return 0; }\n")
    return path


def test_a_bug_is_run_once_and_titled_as_it_crashed(
    kgym: Kgym, data: Path, repro: Path, tmp_path: Path
) -> None:
    def crashed(run: StepContext) -> ReproduceResult:
        spec = run.assignment.spec
        assert isinstance(spec, ReproduceSpec)
        assert (spec.titles, spec.time, spec.instances) == ([], 9, 3)
        seen = InstanceResult(
            number=0, outcome=InstanceOutcome.CRASH, title=TITLE, alt_titles=["BUG: f"]
        )
        return ran(Verdict.SAME_CRASH, TITLE).model_copy(update={"instances": [seen]})

    folder, fix = tmp_path / "bug", tmp_path / "a.patch"
    fix.write_text("--- a/f.c\n+++ b/f.c\n@@ -1 +1 @@\n-a\n+b\n")
    words = ("--kernel", "linux-6.1", "--repro", repro, "--time", 9, "--instances", 3, "--fix", fix)
    given = {StepKind.BUILD: lambda _: built(), StepKind.REPRODUCE: crashed}
    with Platform(data, work=False) as idle, working(idle, data, given):
        done = kgym("--server", idle.url, "bug", "new", folder, *words, "--json")
    assert (done.status, done.json["title"]) == (0, TITLE), done.err
    bug = bundle.load(str(folder))
    assert bug.titles == [TITLE, "BUG: f"]
    assert bug.fix is not None
    again = kgym("bug", "new", folder, *words)
    assert (again.status, "name a new folder" in again.err) == (2, True)


def test_a_bug_that_does_not_show_keeps_its_bundle(
    kgym: Kgym, data: Path, repro: Path, tmp_path: Path
) -> None:
    given = {StepKind.BUILD: lambda _: built(), StepKind.REPRODUCE: lambda _: ran(Verdict.NO_CRASH)}
    with Platform(data, work=False) as idle, working(idle, data, given):
        words = ("--kernel", "linux-6.1", "--repro", repro)
        done = kgym("--server", idle.url, "bug", "new", tmp_path / "bug", *words)
    assert (done.status, "not seen yet" in done.out) == (1, True), done.err
    assert bundle.load(str(tmp_path / "bug")).titles == ["not seen yet"]


def test_a_log_gives_the_title(kgym: Kgym, repro: Path, tmp_path: Path) -> None:
    log = tmp_path / "console.log"
    crash = "WARNING: fs/my.c:7 at my_read+0x1/0x2, CPU#1: prog/9\n"
    log.write_text("".join(f"Apr 07 14:13:21 host kernel: {line}\n" for line in ("", crash)))
    words = ("--kernel", "linux-6.1", "--repro", repro, "--no-run", "--log", log)
    done = kgym("bug", "new", tmp_path / "bug", *words)
    assert done.status == 0, done.err
    assert bundle.load(str(tmp_path / "bug")).titles == ["WARNING in my_read"]
    cut = "divide error: 0000 [#1] SMP\n"
    for text, why in (("all is well\n", "it holds no crash"), (cut, "no frames")):
        log.write_text(text)
        refused = kgym("bug", "new", tmp_path / "other", *words)
        assert (refused.status, why in refused.err) == (2, True), refused.err
        assert "give --title" in refused.err


@pytest.mark.parametrize("kernel", ["package", "tree", "tarball", "git"])
def test_a_kernel_is_named_in_one_word(
    kgym: Kgym, repro: Path, tmp_path: Path, kernel: str
) -> None:
    config = tmp_path / "my.config"
    config.write_text("CONFIG_X=y\n")
    tarball = tmp_path / "linux.tar"
    tarball.write_bytes(b"x")
    named = {
        "package": ("linux-source-6.1", {"packages": ["linux-source-6.1"]}),
        "tree": (ROOT / "tests/fakelinux", {"tree": str(ROOT / "tests/fakelinux")}),
        "tarball": (tarball, {"tarball": str(tarball)}),
        "git": ("https://x/y.git@v6/a", {"git": "https://x/y.git", "commit": "v6/a"}),
    }
    word, table = named[kernel]
    words = ("--kernel", word, "--repro", repro, "--config", config, "--no-run")
    done = kgym("bug", "new", tmp_path / "bug", *words, "--title", TITLE)
    assert done.status == 0, done.err
    text = (tmp_path / "bug" / "bug.toml").read_text()
    assert tomllib.loads(text)["kernel"].items() >= {**table, "config": "kernel.config"}.items()


@pytest.mark.parametrize(("words", "complaint"), json_rows(__file__, "no_bundles.jsonl"))
def test_what_cannot_be_a_bundle_leaves_none(
    kgym: Kgym, repro: Path, tmp_path: Path, words: list[str], complaint: str
) -> None:
    folder = tmp_path / "bug"
    done = kgym("bug", "new", folder, *[word.format(repro=repro) for word in words])
    assert (done.status, complaint in done.err) == (2, True), done.err
    assert not folder.exists()


def test_on_a_terminal_it_asks(data: Path, repro: Path, tmp_path: Path) -> None:
    terminal, stdin = pty.openpty()
    folder = tmp_path / "bug"
    os.write(terminal, f"\n{repro}\n\n\n".encode())
    done = subprocess.run(
        [sys.executable, "-m", "kgym_cli", "bug", "new", str(folder), "--no-run"],
        env={**os.environ, "KGYM_DATA": str(data)},
        stdin=stdin,
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
    )
    os.close(terminal)
    os.close(stdin)
    assert done.returncode == 0, done.stderr
    assert "Kernel (a shared one" in done.stderr
    bug = bundle.load(str(folder))
    assert bug.build == bundle.kernel("linux-6.1")
