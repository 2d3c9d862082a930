"""`kgym fix` on a terminal, and off one: what it shows, what Ctrl-C ends, what text cannot do."""

import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.conftest import Kgym
from tests.cli.test_fix import FILE, agent_service, farm, mending, mine, model_of
from tests.crashfixer.farm import Farm
from tests.crashfixer.test_models import Endpoint, Handler, answer, endpoint, refuse

pytestmark = [pytest.mark.timeout(300), pytest.mark.thorough]
__all__ = ["endpoint", "farm", "mine"]
SECONDS = 110
HOSTILE = "\x1b[2J\x1b]0;owned\x07\x1b]52;c;aGk=\x07\x9b31m[bold red]x[/]"
CTRL_C = b"\x03"


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, process: "subprocess.Popen[bytes]", master: int) -> None:
        self.process, self._master = process, master
        self.shown = b""

    def until(self, seen: Callable[[], object]) -> None:
        """Read what it shows until something has happened."""
        ends = time.monotonic() + SECONDS
        while not seen():
            assert time.monotonic() < ends, self.shown
            assert self._read(), self.shown

    def to_its_end(self) -> int:
        """Read the rest; return the exit status."""
        while self._read():
            pass
        return self.process.wait(SECONDS)

    def press(self, key: bytes) -> None:
        os.write(self._master, key)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._master], [], [], 0.1)
        try:
            read = os.read(self._master, 1 << 16) if ready else None
        except OSError:  # nobody has the other side open any more
            read = b""
        self.shown += read or b""
        return read != b""


@contextmanager
def terminal(data: Path, *words: object, columns: int = 80) -> Iterator[Terminal]:
    """Start `kgym` on a terminal that is its own, as a shell does."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "kgym_cli", *map(str, words)]
    process = subprocess.Popen(
        ["setsid", "--ctty", "--wait", *command],
        env={**os.environ, "KGYM_DATA": str(data), "TERM": "xterm", "COLUMNS": str(columns)},
        stdin=slave,
        stdout=slave,
        stderr=slave,
        cwd=data.parent,
    )
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        process.kill()
        process.wait()
        os.close(master)


def test_ctrl_c_ends_the_run_and_its_jobs_and_says_how_to_go_on(
    kgym: Kgym, farm: Farm, mine: Path, tmp_path: Path, data: Path, endpoint: Endpoint
) -> None:
    endpoint.script = [mending]
    farm.hold_at = "run mends"
    how = ("--strategy", tmp_path / "small.toml", "--files", FILE, "--model", model_of(endpoint))
    with terminal(data, "fix", mine, *how) as shown:
        shown.until(farm.held.is_set)
        shown.until(lambda: b"try" in shown.shown)
        shown.press(CTRL_C)
        assert shown.to_its_end() == 130, shown.shown
    assert b"resume with `kgym run resume 1`" in shown.shown
    assert b"Traceback" not in shown.shown
    assert shown.shown.count(b"\x1b[?25l") == shown.shown.count(b"\x1b[?25h") > 0  # the cursor
    assert kgym("run", "show", 1, "--json").json["state"] == "interrupted"
    assert_none_goes_on(kgym)
    farm.hold.set()
    asked = len(endpoint.asked)
    gone_on = kgym("run", "resume", 1, "--out", tmp_path / "out", "--json")
    assert (gone_on.status, gone_on.json["run"]["state"]) == (0, "resolved"), gone_on.err
    assert len(endpoint.asked) == asked


@pytest.mark.exhaustive
def test_ctrl_c_while_the_bug_is_shown_leaves_no_job_and_its_tape_is_continued(
    kgym: Kgym, farm: Farm, mine: Path, tmp_path: Path, data: Path, endpoint: Endpoint
) -> None:
    farm.hold_at = "run"
    tape = tmp_path / "tape.jsonl"
    how = ("--strategy", tmp_path / "small.toml", "--files", FILE, "--model", model_of(endpoint))
    with terminal(data, "fix", mine, *how, "--record", tape) as shown:
        shown.until(farm.held.is_set)
        shown.press(CTRL_C)
        assert shown.to_its_end() == 130, shown.shown
    assert b"resume with `kgym run resume 1`" in shown.shown
    assert_none_goes_on(kgym)
    assert endpoint.asked == []
    farm.hold.set()
    endpoint.script = [mending]
    gone_on = kgym("run", "resume", 1, "--out", tmp_path / "out", "--json")
    assert gone_on.status == 0, gone_on.err
    assert len(tape.read_text().splitlines()) == 1 + len(endpoint.asked) > 1


def test_ctrl_c_leaves_the_run_of_a_service_alone(
    kgym: Kgym, farm: Farm, data: Path, endpoint: Endpoint
) -> None:
    farm.hold_at = "run"
    with agent_service(data, model_of(endpoint)):
        how = ("--files", FILE, "--model", model_of(endpoint))
        with terminal(data, "fix", "watch-queue-filter", *how) as shown:
            shown.until(farm.held.is_set)
            shown.press(CTRL_C)
            assert shown.to_its_end() == 130, shown.shown
        assert b"run 1 goes on" in shown.shown
        assert kgym("run", "show", 1, "--json").json["state"] == "running"
        assert kgym("run", "stop", 1, "--json").json["state"] == "stopped"
        assert_none_goes_on(kgym)


def assert_none_goes_on(kgym: Kgym) -> None:
    states = {job["state"] for job in kgym("job", "list", "--json").json}
    assert "aborted" in states
    assert not states & {"pending", "queued", "running"}


@pytest.mark.attack
def test_what_a_model_and_a_bug_say_steers_no_terminal(
    farm: Farm, mine: Path, tmp_path: Path, data: Path, endpoint: Endpoint
) -> None:
    def hostile(handler: Handler) -> None:
        if "Explain the root cause" in handler.body["messages"][-1]["content"]:
            answer(f"<solution>{HOSTILE}\n{HOSTILE}</solution>")(handler)
        else:
            mending(handler)

    endpoint.script = [hostile]
    bundle_text = (mine / "bug.toml").read_text()
    title = "KASAN: use-after-free in watch_filter"
    (mine / "bug.toml").write_text(
        bundle_text.replace(f'"{title}"', json.dumps(f"{title} {HOSTILE}"))
    )
    how = ("--strategy", tmp_path / "small.toml", "--files", FILE, "--model", model_of(endpoint))
    out = ("--out", tmp_path / "out")
    shown = b""
    for words in (("fix", mine, *how, *out), ("run", "show", 1), ("run", "list")):
        with terminal(data, *words, columns=200) as screen:
            assert screen.to_its_end() == 0, screen.shown
        shown += screen.shown
    for sequence in (b"\x1b[2J", b"\x1b]", b"\x07", "\x9b".encode()):
        assert sequence not in shown
    assert b"owned" in shown


def test_off_a_terminal_each_thing_is_a_line_of_its_own_and_whole(
    kgym: Kgym, farm: Farm, mine: Path, tmp_path: Path, endpoint: Endpoint
) -> None:
    long = f"{'word ' * 300}end"
    endpoint.script = [refuse(400, f"no\n{long}")]
    how = ("--strategy", tmp_path / "small.toml", "--files", FILE, "--model", model_of(endpoint))
    done = kgym("fix", mine, *how)
    assert done.status == 1, done.err
    refusals = [line for line in done.err.splitlines() if "question_refused" in line]
    assert refusals
    assert all(long in refusal for refusal in refusals)
    assert "\x1b" not in done.err + done.out
