"""`kgym trace`: minimal traces out of texts, shown, and scored."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kgym.errors import UserError
from kgym_cli.commands.trace import trace
from tests.refused import refused

LINE = "           repro-31      [000] .....   100.{:06}: f: kgym:fs/a.c:{} {}\n"
REPORT = Path(__file__).with_name("traced_crash.txt").read_text()
FIX = Path(__file__).with_name("traced_fix.diff").read_text()


def invoke(*words: object) -> Result:
    return CliRunner().invoke(trace, [str(word) for word in words], catch_exceptions=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    names = ("first", "loop", "loop", "loop", "second", "third")
    text = "".join(LINE.format(n, name, n) for n, name in enumerate(names))
    (tmp_path / "trace").write_text(text)
    (tmp_path / "report").write_text(REPORT)
    (tmp_path / "fix").write_text(FIX)
    (tmp_path / "fs").mkdir()
    (tmp_path / "fs" / "a.c").write_text("int first(int a)\n{\n\treturn a;\n}\n")
    return tmp_path


def minimal(folder: Path, *words: object) -> dict[str, Any]:
    ran = invoke("minimize", folder / "trace", "--report", folder / "report", *words, "--json")
    assert ran.exit_code == 0, ran.output
    answer: dict[str, Any] = json.loads(ran.stdout)
    return answer


def test_a_text_is_cut_down_to_the_calls_around_the_crash(folder: Path) -> None:
    answer = minimal(folder, "--files", "fs/a.c")
    calls = [(call["pattern"][0]["name"], call["count"], call["frame"]) for call in answer["calls"]]
    assert calls == [("loop", 3, None), ("second", 1, 1), ("third", 1, 0)]
    assert (answer["title"], answer["pid"]) == ("KASAN: use-after-free Read in third", 31)
    assert (answer["before"], answer["after"]) == ("repeat", "end")


def test_many_files_may_follow_the_option(folder: Path) -> None:
    words = ("--files", "fs/b.c", "fs/a.c")
    assert len(minimal(folder, *words)["calls"]) == 3


def test_a_minimal_trace_is_shown_as_a_tree(folder: Path) -> None:
    (folder / "minimal.json").write_text(json.dumps(minimal(folder)))
    text = invoke("show", folder / "minimal.json").output
    assert "KASAN: use-after-free Read in third" in text
    assert "[loop] x 3" in text
    assert text.index("second") < text.rindex("third")


def test_a_whole_trace_is_shown_as_a_table_of_its_last_records(folder: Path) -> None:
    text = invoke("show", folder / "trace", "--last", 2, "--pid", 31).output
    assert "third" in text
    assert "loop" not in text
    assert "2 of 6 records" in text


def test_what_a_guest_named_cannot_steer_the_terminal(folder: Path) -> None:
    text = (folder / "trace").read_text().replace("     repro", "\x1b[2J[b]")
    (folder / "trace").write_text(text)
    assert "\x1b" not in invoke("show", folder / "trace").output
    (folder / "minimal.json").write_text(json.dumps(minimal(folder)))
    assert "?[2J[b] (PID 31)" in invoke("show", folder / "minimal.json").output


@pytest.mark.thorough
def test_extract_keeps_a_text_as_records(folder: Path) -> None:
    ran = invoke("extract", folder / "trace", "--output", folder / "out", "--json")
    assert (ran.exit_code, json.loads(ran.stdout)["records"]) == (0, 6)
    assert "6 of 6 records" in invoke("show", folder / "out" / "trace.npz").output


@pytest.mark.thorough
def test_a_dump_without_its_kernel_is_told(folder: Path) -> None:
    (folder / "dump").write_bytes(b"\x7fELF" + bytes(100))
    words = ("minimize", folder / "dump", "--report", folder / "report")
    with pytest.raises(UserError, match="vmlinux"):
        invoke(*words)


def test_no_record_of_the_files_is_a_negative_answer(folder: Path) -> None:
    words = ("--report", folder / "report", "--files", "mm/none.c", "--json")
    ran = invoke("minimize", folder / "trace", *words)
    assert ran.exit_code == 1
    assert json.loads(ran.stdout)["calls"] == []


def test_a_log_without_a_crash_is_told(folder: Path) -> None:
    (folder / "report").write_text("all is well\n")
    with pytest.raises(UserError, match="no crash report"):
        invoke("minimize", folder / "trace", "--report", folder / "report")


def test_scores_against_fixes_are_added_up(folder: Path) -> None:
    fix = ("--fix", folder / "fix", "--source-tree", folder)
    misplaced = (folder / "fix").read_text().replace("/fs/a.c", "/linux/fs/a.c")
    assert misplaced != (folder / "fix").write_text(misplaced)
    stopped, through = minimal(folder, *fix), minimal(folder, *fix, "--past-repeats")
    assert stopped["score"]["edited"] == ["first"]
    assert [answer["score"]["stages"]["backward"] for answer in (stopped, through)] == [0, 1]
    results = []
    for number, answer in enumerate((stopped, through)):
        results.append(folder / f"{number}.json")
        results[-1].write_text(json.dumps(answer))
    total = json.loads(invoke("score", *results, "--json").stdout)
    assert total["bugs"] == 2
    assert total["stages"] == {"stack": 0, "anchor": 0, "backward": 1, "forward": 1, "thread": 2}


@pytest.mark.thorough
@pytest.mark.parametrize("tool", ["zstd", "gzip"])
def test_what_is_compressed_is_read_like_what_is_not(folder: Path, tool: str) -> None:
    plain = minimal(folder, "--files", "fs/a.c")
    packed = subprocess.run([tool, "-c", folder / "trace"], capture_output=True, check=True)
    (folder / "trace").write_bytes(packed.stdout)
    assert minimal(folder, "--files", "fs/a.c") == plain
    answer = invoke("extract", folder / "trace", "--output", folder / "found", "--json")
    assert (answer.exit_code, json.loads(answer.stdout)["records"]) == (0, 6)
    assert "6 records" in invoke("show", folder / "found" / "trace.npz").stdout


def test_what_is_compressed_and_damaged_is_an_error(folder: Path) -> None:
    packed = subprocess.run(["zstd", "-c", folder / "trace"], capture_output=True, check=True)
    (folder / "trace").write_bytes(packed.stdout[:-20])
    with refused("cannot_read", "cannot be decompressed", kind=UserError):
        invoke("extract", folder / "trace", "--output", folder / "found")


@pytest.mark.thorough
def test_a_file_without_a_record_is_no_trace(folder: Path) -> None:
    (folder / "trace").write_text("one line\nand another\n")
    with pytest.raises(UserError, match="none of its 2 lines"):
        invoke("minimize", folder / "trace", "--report", folder / "report")
    answer = invoke("extract", folder / "trace", "--output", folder / "found")
    assert (answer.exit_code, "none of its 2 lines" in answer.stdout) == (2, True)


@pytest.mark.thorough
def test_a_trace_without_records_is_one(folder: Path) -> None:
    (folder / "trace").write_text("# tracer: nop\n#\n# entries-in-buffer/entries-written: 0/0\n")
    answer = invoke("extract", folder / "trace", "--output", folder / "found", "--json")
    assert (answer.exit_code, json.loads(answer.stdout)["records"]) == (0, 0)


def test_an_output_that_is_no_folder_is_an_error(folder: Path) -> None:
    with pytest.raises(UserError, match="name a folder"):
        invoke("extract", folder / "trace", "--output", folder / "report")
