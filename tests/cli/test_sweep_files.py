"""Which patches a sweep finds, how its table looks, and what spreadsheets make of it."""

import csv
import io
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from kgym.api import csv_text
from kgym.api.outcomes import Outcome
from kgym.api.steps import Patch
from kgym.bugs import bundle
from kgym.bugs.sweep import Moved, Stage
from kgym.bugs.sweep_rows import Pair, Row, status
from kgym.errors import UserError
from kgym_cli.inputs import patch_files
from kgym_cli.jobs.job_answer import exit_status
from kgym_cli.jobs.sweep_view import View, counts, words

BUGS = [bundle.load("watch-queue-filter"), bundle.load("epoll-loop")]
OF_PATCHES = [
    *(Outcome.RESOLVED, Outcome.NOT_RESOLVED, Outcome.NOT_BUILT, Outcome.DOES_NOT_COMPILE),
    *(Outcome.DOES_NOT_APPLY, Outcome.REFUSED, Outcome.INCONCLUSIVE),
]
DIFF = "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n"


def row(outcome: Outcome, bug: str = "a", patch: str = "p") -> Row:
    return Pair(bug, patch).row(outcome, "so it was")


def test_a_folder_named_as_a_bug_is_for_that_bug_only(tmp_path: Path) -> None:
    for name in ("both.patch", "epoll-loop/one.diff", "epoll-loop/both.patch", "other/two.patch"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(DIFF)
    (tmp_path / ".both.patch.swp").write_text("")
    (tmp_path / "README").write_text("")
    patches = patch_files.find(BUGS, [tmp_path, tmp_path])
    assert list(patches.files["watch-queue-filter"]) == ["both.patch"]
    own = str(tmp_path / "epoll-loop" / "both.patch")
    assert list(patches.files["epoll-loop"]) == [str(tmp_path / "both.patch"), own, "one.diff"]
    assert patches.left_out == [tmp_path / "other"]
    with pytest.raises(UserError, match=r"no \*.patch"):
        patch_files.find(BUGS, [_empty(tmp_path)])
    with pytest.raises(UserError, match="No such file"):
        patch_files.find(BUGS, [tmp_path / "none"])


def _empty(folder: Path) -> Path:
    (folder / "empty").mkdir()
    return folder / "empty"


def test_what_holds_no_patch_is_told_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.patch")
    (tmp_path / "folder.patch").mkdir()
    (tmp_path / "gone.patch").symlink_to(tmp_path / "nowhere")
    (tmp_path / "bomb.patch.gz").write_bytes(b"\x1f\x8b damaged")
    (tmp_path / "good.patch").write_text(DIFF)
    (tmp_path / "huge.patch").write_text(DIFF + "+" * (5 << 20))
    patches = patch_files.find(BUGS[:1], [tmp_path])
    read = {
        candidate.name: candidate.patch
        for candidate in patch_files.candidates(patches.files[BUGS[0].name])
    }
    assert isinstance(read.pop("good.patch"), Patch)
    read.pop("bomb.patch")  # nothing tells it from text: the check will say that it is no diff
    assert {name: isinstance(patch, UserError) for name, patch in read.items()} == {
        "pipe.patch": True,
        "folder.patch": True,
        "gone.patch": True,
        "huge.patch": True,
    }


def test_the_same_command_has_the_same_name(tmp_path: Path) -> None:
    name = patch_files.default_name(["epoll-loop", "x"], [tmp_path / "a b"])
    assert name == patch_files.default_name(["x", "epoll-loop"], [tmp_path / "c" / ".." / "a b"])
    assert name.startswith("sweep-a_b-")
    assert name != patch_files.default_name(["epoll-loop"], [tmp_path / "a b"])
    assert len(patch_files.default_name(["x"], [tmp_path / ("é" * 80)])) <= 100


@given(st.lists(st.sampled_from(OF_PATCHES), min_size=1))
def test_the_status_tells_the_worst(outcomes: list[Outcome]) -> None:
    exit_code = exit_status(status([row(outcome) for outcome in outcomes]))
    if Outcome.INCONCLUSIVE in outcomes:
        assert exit_code == 3
    elif Outcome.REFUSED in outcomes:
        assert exit_code == 2
    else:
        assert exit_code == (set(outcomes) != {Outcome.RESOLVED})


def test_a_pair_is_told_in_the_sentence_of_its_job() -> None:
    lines = [
        words(row(outcome))
        for outcome in (Outcome.RESOLVED, Outcome.INCONCLUSIVE, Outcome.DOES_NOT_APPLY)
    ]
    assert lines == ["Resolved: so it was", "No answer: so it was", "Does not apply: so it was"]
    same = row(Outcome.RESOLVED).model_copy(update={"same_as": "q"})
    assert words(same) == "Resolved: so it was, as q"


def test_a_refused_file_is_not_counted_as_one_without_an_answer() -> None:
    rows = [row(Outcome.REFUSED), row(Outcome.REFUSED), row(Outcome.INCONCLUSIVE)]
    table = counts({"a": 3}, rows, 1)
    cells = {str(column.header): next(iter(column.cells)) for column in table.columns}
    assert (cells["refused"], cells["no answer"], cells["broken"]) == ("2", "1", "-")


@pytest.mark.thorough
@pytest.mark.parametrize("height", [10, 24, 60])
def test_the_live_table_fits_whatever_the_number_of_patches(height: int) -> None:
    pairs = {f"bug-{number}": 500 for number in range(40)}
    view = View(pairs)
    for bug in pairs:
        view.hear(Moved(bug, [f"{n}.patch" for n in range(500)], Stage.BUILD, 7))
        for number in range(100):
            view.hear(row(Outcome.NOT_RESOLVED, bug, f"{number}.patch"))
    console = Console(width=120, height=height)
    lines = console.render_lines(view.table(height))
    assert len(lines) <= height
    text = "\n".join("".join(segment.text for segment in line) for line in lines)
    assert "4000 of 20000" in text
    assert "more bugs" in text


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_no_cell_is_a_formula(text: str) -> None:
    [[cell]] = csv.reader(io.StringIO(csv_text.text([[text]]), newline=""))
    assert not cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))
    assert cell.removeprefix("'") == text.removeprefix("'")
