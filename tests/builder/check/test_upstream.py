"""What a maintainer asks of a patch: on a small real Git tree, with scripts as kernels have."""

import asyncio
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from kgym.api.steps import BuildSpec, CheckSpec, GitSource, Patch
from kgym.source import unified_diff
from kgym.source.subsystem import subsystem
from kgym_builder.check.check_step import Checker
from kgym_builder.kernel_source import line_history
from tests.builder.conftest import suite_cache
from tests.builder.kernel_source import git_server
from tests.conftest import ANYWHERE, ROOT, NewRun
from tests.tables import json_rows

HERE = Path(__file__).parent
WATCH = "kernel/watch_queue.c"
BEFORE = (ROOT / "tests" / "fakelinux" / WATCH).read_text()
AFTER = BEFORE.replace("type >= WATCH_TYPE__NR", "type < 0 || type >= WATCH_TYPE__NR")
DIFF = unified_diff.between(WATCH, BEFORE, AFTER)
# Checkpatch as far as the platform knows it: one finding, if it is asked strictly.
STYLE = f'print "{WATCH}:10: CHECK:SPACING: no\\n" if grep {{ $_ eq "--strict" }} @ARGV;'


@pytest.mark.parametrize(("name", "path", "subjects"), json_rows(__file__, "prefixes.jsonl"))
def test_the_subsystem_is_that_of_earlier_subjects_or_of_maintainers(
    name: str, path: str, subjects: list[str]
) -> None:
    assert subsystem(subjects, path, (HERE / "MAINTAINERS").read_text()) == name


def test_hunks_name_their_functions_as_gits_do() -> None:
    lines = [*(f"int f{n}(void)\n{{\n\treturn {n};\n}}\n\n" for n in range(3)), "int g(void)\n{\n"]
    before = "".join([*lines, "\tgoto out;\nout:\n", "\tx();\n" * 9, "}\n"])
    after = before.replace("x();", "y();").replace("return 2", "return 3")
    heads = [line for line in _named(before, after).splitlines() if line.startswith("@@")]
    assert heads == ["@@ -10,20 +10,20 @@ int f1(void)"]
    assert "@@ -1,9 +0,0 @@\n" in _named(" x\n" * 9, "")


def _named(before: str, after: str) -> str:
    return unified_diff.between("a.c", before, after, functions=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The small make tree with scripts; what a patch changes has three authors in three commits."""
    folder = tmp_path / "linux"
    shutil.copytree(ROOT / "tests" / "fakelinux", folder)
    for name in ("MAINTAINERS", "scripts/get_maintainer.pl"):
        shutil.copy(HERE / Path(name).name, folder / name)
    (folder / "scripts" / "checkpatch.pl").write_text(STYLE)
    git_server.git(folder, "init", "-q", "-b", "main")
    subjects = ("watch_queue: add it", "watch_queue: add the limit", "watch: say why")
    limit, why = (
        "\tif (type >= WATCH_TYPE__NR)\n\t\treturn -1;\n",
        "\t/* Ignore any unknown types */\n",
    )
    texts = (BEFORE.replace(why + limit, ""), BEFORE.replace(why, ""), BEFORE)
    for subject, text in zip(subjects, texts, strict=True):
        (folder / WATCH).write_text(text)
        git_server.git(folder, "add", "-A")
        git_server.git(folder, "commit", "-qm", subject)
        git_server.git(folder, "tag", f"v5.{texts.index(text)}")
    return folder


def test_lines_count_for_the_commit_that_wrote_them_unless_they_read_otherwise(
    repository: Path,
) -> None:
    async def git(words: Sequence[str]) -> list[str]:
        try:
            return git_server.git(repository, *words).splitlines()
        except subprocess.CalledProcessError:
            return []

    def read(diff: str, commit: str = "main") -> list[tuple[str, int, int, str]]:
        history = asyncio.run(line_history.read(git, commit, diff, WATCH))
        assert not history.subjects or history.subjects[-1] == "watch_queue: add it"
        return [(each.title, each.removed, each.kept, each.tag) for each in history.blame]

    assert read(DIFF) == [
        ("watch_queue: add the limit", 1, 1, "v5.1"),
        ("watch: say why", 0, 1, "v5.2"),
    ]
    assert read(DIFF.replace("int type)", "int kind)").replace("/* Ig", "/* ig")) == [
        ("watch_queue: add the limit", 1, 1, "v5.1")
    ]
    assert read(DIFF, "v5.0") == []
    assert read(DIFF, "nothing") == []
    assert read(f"--- a/{WATCH}\n+++ b/{WATCH}\n@@ -900 +900 @@\n-a\n+b\n") == []


@pytest.mark.anyio
@pytest.mark.thorough
@pytest.mark.attack
async def test_a_check_answers_from_the_trees_own_scripts_and_history(
    repository: Path, tmp_path: Path, new_run: NewRun, fake_build: BuildSpec
) -> None:
    checker = Checker(suite_cache(tmp_path), tmp_path, ANYWHERE)
    spec = CheckSpec(
        source=GitSource(url=str(repository), commit="main"),
        config=fake_build.config,
        patches=[Patch(diff=DIFF), Patch(diff=DIFF.replace("type < 0", "no"))],
        upstream=True,
    )
    check, broken = (await checker(new_run(spec))).patches
    assert broken.upstream is None
    facts = check.upstream
    assert facts is not None
    assert facts.diff == DIFF.replace("@@\n", "@@ static unsigned char filter[8];\n", 1)
    assert (facts.prefix, facts.release[:4]) == ("watch_queue", "6.1.")
    assert facts.recipients == [
        f"Ann Ä <ann@example.org> (maintainer:{WATCH})",
        '"Bob, B." <bob@example.org> (reviewer:WATCH)',
        "linux-kernel@vger.kernel.org (open list)",
    ]
    # Tools that this machine lacks are named: they have not found that all is well.
    absent = [name for name in ("clang-format", "sparse") if shutil.which(name) is None]
    assert [(each.check, each.reason, each.line) for each in facts.findings] == [
        *((name, "not_run", None) for name in absent),
        ("checkpatch", "SPACING", 10),
    ]
    assert [each.title for each in facts.blame] == ["watch_queue: add the limit", "watch: say why"]
