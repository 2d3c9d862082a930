"""The program around the commands: its help, its streams, its end."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from kgym.configs import data_folder
from kgym_cli.lazy import LazyGroup
from kgym_cli.program import COMMANDS, cli
from tests.cli.conftest import Answer, Kgym, small_disk
from tests.conftest import ROOT

KGYM = [sys.executable, "-m", "kgym_cli"]
UNREAD = 141


def fresh(*words: object) -> Answer:
    """Run `kgym` in an interpreter that starts in the test's environment."""
    done = subprocess.run(
        [*KGYM, *map(str, words)], capture_output=True, check=False, encoding="latin-1", timeout=60
    )
    return Answer(done.returncode, done.stdout, done.stderr)


def imported(*words: str) -> set[str]:
    """Return the modules that a command imports."""
    argv = [sys.executable, "-X", "importtime", "-m", "kgym_cli", *words]
    done = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60)
    return {line.rsplit("|", 1)[1].strip() for line in done.stderr.splitlines() if "|" in line}


def test_help_imports_no_command() -> None:
    modules = imported("--help")
    assert "click" in modules
    assert not modules & {"pydantic", "asyncio", "httpx", "sqlalchemy", "kgym_cli.commands.bug"}


@pytest.mark.thorough
def test_a_list_of_bugs_imports_nothing_that_runs_them() -> None:
    modules = imported("bug", "list")
    assert "kgym.bugs.shipped" in modules
    assert not modules & {
        "kgym.bugs.bundle",
        "kgym.api.steps",
        "httpx",
        "asyncio",
        "sqlalchemy",
        "rich.progress",
        "kgym.crash.report",
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_is_there_and_says_what_it_is(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.name == name
    assert command.help
    assert COMMANDS[name].summary.endswith(".")
    if isinstance(command, LazyGroup):
        for name in command.list_commands(click.Context(command)):
            assert command.get_command(click.Context(command), name) is not None


@pytest.mark.thorough
@pytest.mark.parametrize("words", [["bug", "list"], ["bug", "list", "--json"], ["--help"]])
def test_a_reader_that_leaves_is_no_error(words: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [*KGYM, *words], stdout=write, stderr=subprocess.PIPE, check=False, timeout=60
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (UNREAD, b"")


@pytest.mark.thorough
@pytest.mark.parametrize("words", [["bug", "list"], ["bug", "list", "--json"], ["--help"]])
def test_a_result_that_cannot_be_written_is_an_error_in_one_line(words: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*KGYM, *words], stdout=full, stderr=subprocess.PIPE, check=False, timeout=60
        )
    assert (done.returncode, done.stderr) == (3, b"kgym: No space left on device\n")


@pytest.mark.thorough
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_change_no_status(closed: str) -> None:
    for words, status in (("bug list", 0), ("bug show nope", 2)):
        done = subprocess.run(
            ["sh", "-c", f'exec "$0" -m kgym_cli {words} {closed}', sys.executable],
            capture_output=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == status, done.stderr
        assert b"Traceback" not in done.stderr


@pytest.mark.thorough
def test_what_the_terminal_cannot_show_is_a_question_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    log = tmp_path / "console.log"
    log.write_text("[    1.0] BUG: KASAN: use-after-free in f+0x1/0x2 → 終\n")
    shown = fresh("report", "parse", log)
    assert (shown.status, "Traceback" in shown.err) == (0, False), shown.err


def test_a_name_that_is_not_utf_8_is_refused_in_one_line(kgym: Kgym) -> None:
    name = os.fsdecode(b"\xff.patch")
    refused = kgym("bug", "reproduce", "watch-queue-filter", "--fix", name)
    assert (refused.status, len(refused.err.splitlines())) == (2, 1), refused.err


def test_to_try_a_fix_and_none_is_refused(kgym: Kgym, tmp_path: Path) -> None:
    (tmp_path / "a.patch").write_text("--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n")
    refused = kgym(
        "bug", "reproduce", "watch-queue-filter", "--fix", tmp_path / "a.patch", "--no-fix"
    )
    assert (refused.status, "--no-fix" in refused.err) == (2, True), refused.err


@pytest.mark.thorough
@pytest.mark.parametrize("module", ["click", "rich.console", "pydantic", "kgym.api.steps", "httpx"])
def test_ctrl_c_while_it_imports_ends_it_without_a_word(data: Path, module: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", "kgym_cli", "job", "list"],
        env={**os.environ, "KGYM_DATA": str(data)},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.rsplit("|", 1)[-1].strip() == module:
            break
    process.send_signal(signal.SIGINT)
    _, error_text = process.communicate(timeout=60)
    assert [line for line in error_text.splitlines() if not line.startswith("import time:")] == []
    assert process.returncode in {130, -signal.SIGINT}


def test_an_error_that_nobody_foresaw_is_no_verdict() -> None:
    program = """
import sys, types, click
from kgym_cli import commands, program
odd = types.ModuleType("odd")
odd.odd = click.Command("odd", callback=lambda: 1 / 0)
sys.modules[commands.__name__ + ".odd"] = odd
program.COMMANDS["odd"] = program.Lazy("odd", "Divides by zero.")
sys.argv = ["kgym", "odd"]
sys.exit(program.run())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, "ZeroDivisionError" in done.stderr) == (3, True), done.stderr


@pytest.fixture
def latin_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A locale in which text is Latin-1."""
    where = tmp_path / "locale"
    where.mkdir()
    made = ["localedef", "-i", "en_US", "-f", "ISO-8859-1", where / "en_US.ISO-8859-1"]
    try:
        subprocess.run(made, check=True, capture_output=True, timeout=60)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no such locale can be made here: {error}")
    monkeypatch.setenv("LOCPATH", str(where))
    monkeypatch.setenv("LC_ALL", "en_US.ISO-8859-1")


@pytest.mark.thorough
@pytest.mark.usefixtures("latin_1")
def test_files_are_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    folder = tmp_path / "bug"
    folder.mkdir()
    (folder / "repro.c").write_text("int main(void) { return 0; } // Grüße 終\n", "utf-8")
    (folder / "bug.toml").write_text(
        'title = "KASAN: use-after-free in Grüße"\nfiles = ["f.c"]\n'
        '[kernel]\ntarball = "linux.tar"\nsha256 = "' + "0" * 64 + '"\nbase = "allnoconfig"\n'
        '[reproducer]\nfile = "repro.c"\ntime = 7\n'
        '[[regress.edits]]\nfile = "f.c"\noriginal = "a"\nreplacement = "b"\n',
        "utf-8",
    )
    shown = fresh("bug", "show", folder, "--json")
    assert shown.status == 0, shown.err
    assert shown.json["title"] == "KASAN: use-after-free in Grüße"
    assert shown.json["job"]["steps"][1]["reproducer"]["text"].endswith("// Grüße 終\n")


def unusable(folder: Path) -> None:
    folder.write_text("no folder")


def of_another(folder: Path) -> None:
    folder.symlink_to("/proc/1/kgym")


@pytest.mark.parametrize("spoil", [unusable, of_another])
@pytest.mark.parametrize(
    "words",
    [
        ["job", "list"],
        ["token", "list"],
        ["gc"],
        ["up", "--port", "0"],
        ["bug", "reproduce", "watch-queue-filter"],
    ],
)
def test_a_data_folder_that_cannot_be_used_is_named(
    kgym: Kgym, data: Path, words: list[str], spoil: Callable[[Path], None]
) -> None:
    spoil(data)
    refused = kgym(*words)
    assert (refused.status, len(refused.err.splitlines())) == (2, 1), refused.err
    assert f"{data} cannot be used" in refused.err
    assert "KGYM_DATA" in refused.err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small file system")
@pytest.mark.parametrize("command", ["job", "token"])
@pytest.mark.parametrize(
    ("spare", "status", "message"),
    [(None, 2, "Read-only"), (0, 3, "No space"), (4096, 3, ""), (40_000, 3, "")],
)
def test_a_disk_that_takes_nothing_is_named(
    kgym: Kgym, data: Path, command: str, spare: int | None, status: int, message: str
) -> None:
    with small_disk(data, "64k"):
        if spare is None:
            subprocess.run(["mount", "-o", "remount,ro", data], check=True)
        else:
            (data / "big").write_bytes(bytes((1 << 16) - spare))
        refused = kgym(command, "list")
        assert (refused.status, len(refused.err.splitlines())) == (status, 1), refused.err
        assert message in refused.err


def test_the_data_folder_is_the_checkouts_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KGYM_DATA", raising=False)
    assert data_folder() == ROOT / ".kgym"


def test_a_command_that_waits_says_where_its_data_is(
    kgym: Kgym, data: Path, build_job: str
) -> None:
    done = kgym("job", "submit", "-", "--wait", stdin=build_job)
    assert f"data: {data}" in done.err
