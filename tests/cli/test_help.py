"""Help and completion: examples that can be typed, variables, and what the shell offers."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from kgym_cli.help_pages import ENVIRONMENT, OF_ALL, examples
from kgym_cli.program import cli
from tests.cli.conftest import Kgym
from tests.cli.test_answers import commands
from tests.tables import json_rows

EVERY = {" ".join(path): command for path, command in commands(cli)}
NAMED = [(path, line) for path, lines in examples().items() for line in lines]


def test_every_command_has_examples() -> None:
    assert set(examples()) - {"monitor", "worker"} == set(EVERY)


@pytest.mark.parametrize(("path", "line"), NAMED)
def test_an_example_can_be_typed(path: str, line: str) -> None:
    context, command = click.Context(cli), cli
    words = shlex.split(line.rpartition("| ")[2])
    assert " ".join(words).startswith(f"kgym {path}")
    rest = words[1:]
    for name in path.split():
        assert isinstance(command, click.Group)
        subcommand = command.get_command(context, name)
        assert subcommand is not None
        command, rest = subcommand, rest[1:]
    command.make_context(path, rest)


def test_help_shows_examples_and_the_environment(kgym: Kgym) -> None:
    shown = kgym("--help").out
    for words in (*ENVIRONMENT, *OF_ALL):
        assert words in shown
    shown = kgym("job", "list", "--help").out
    assert "Examples:\n    kgym job list --state running --state queued\n" in shown
    assert "KGYM_BUS" in kgym("scheduler", "--help").out


@pytest.mark.parametrize(("line", "offered"), json_rows(__file__, "completions.jsonl"))
@pytest.mark.thorough
def test_the_shell_is_offered_what_goes_on_like_this(line: str, offered: list[str]) -> None:
    words = line.split()
    done = subprocess.run(
        [sys.executable, "-m", "kgym_cli"],
        env={
            **os.environ,
            "_KGYM_COMPLETE": "bash_complete",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(words) - 1),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.partition(",")[2] for line in done.stdout.splitlines()] == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_installed_by_one_command(
    kgym: Kgym, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", f"/bin/{shell}")
    for variable in ("XDG_CONFIG_HOME", "ZDOTDIR"):
        monkeypatch.delenv(variable, raising=False)
    start = tmp_path / f".{shell}rc"
    start.write_text("alias x=y")
    for _ in range(2):
        done = kgym("completion")
        assert (done.status, shell in done.out) == (0, True), done.err
    lines = start.read_text().splitlines()
    assert lines[0] == "alias x=y"
    assert len(lines) == (1 if shell == "fish" else 2)
    script = {"fish": tmp_path / ".config" / "fish" / "completions" / "kgym.fish"}.get(
        shell, tmp_path / ".config" / "kgym" / f"completion.{shell}"
    )
    assert "_KGYM_COMPLETE" in script.read_text()
    assert script.read_text() == kgym("completion", shell, "--print").out.removesuffix("\n")
    if shell == "bash":
        asked = "shopt -s expand_aliases; . ~/.bashrc; complete -p kgym"
        completed = subprocess.run(
            ["bash", "-c", asked], capture_output=True, text=True, check=True, timeout=20
        )
        assert "_kgym_completion kgym" in completed.stdout


def test_a_shell_that_is_not_known_has_to_be_named(
    kgym: Kgym, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHELL", "/bin/dash")
    done = kgym("completion")
    assert (done.status, "bash, zsh, fish" in done.err) == (2, True)
