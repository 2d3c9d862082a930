"""`kgym completion`."""

import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from kgym.errors import UserError, file_errors
from kgym_cli.output import results

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_KGYM_COMPLETE"
_MARK = "# completion of kgym"


@click.command()
@click.argument("shell", type=click.Choice(SHELLS), required=False)
@click.option(
    "--print", "only_print", is_flag=True, help="Print the script instead of installing it."
)
def completion(shell: str | None, *, only_print: bool) -> None:
    """Install completion of commands, options and names for SHELL, by default your own.

    The script is written below your home folder and sourced by a line in ~/.bashrc or ~/.zshrc;
    fish finds it without one. Repeating the command changes nothing.
    """
    shell = shell or _own_shell()
    script = _script(shell)
    if only_print:
        click.echo(script)
        return
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    if shell == "fish":
        path, start = config / "fish" / "completions" / "kgym.fish", None
    else:
        path = config / "kgym" / f"completion.{shell}"
        folder = Path(os.environ.get("ZDOTDIR") or Path.home()) if shell == "zsh" else Path.home()
        start = folder / f".{shell}rc"
    with file_errors(path, "cannot_write"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(script)
        if start is not None:
            _read_by(start, path)
    results.print(f"installed for new {shell} shells: {path}")


def _own_shell() -> str:
    name = Path(os.environ.get("SHELL", "")).name
    if name not in SHELLS:
        raise UserError("unknown_shell", f"name your shell: {', '.join(SHELLS)}")
    return name


def _script(shell: str) -> str:
    program = click.get_current_context().find_root().command
    made = get_completion_class(shell)
    assert made is not None
    script = made(program, {}, "kgym", VARIABLE).source()
    # zsh has no `compdef` before compinit has run, and a fresh ~/.zshrc does not run it.
    if shell == "zsh":
        script = f"(( $+functions[compdef] )) || {{ autoload -Uz compinit && compinit; }}\n{script}"
    return script


def _read_by(start: Path, script: Path) -> None:
    """Source the script in the shell's start file, replacing an earlier line."""
    there = start.read_text(errors="surrogateescape") if start.exists() else ""
    if _MARK in there:
        # The script's path may have changed since.
        kept = [line for line in there.splitlines(keepends=True) if _MARK not in line]
        there = "".join(kept)
    if there and not there.endswith("\n"):
        there += "\n"
    start.write_text(f"{there}. '{script}'  {_MARK}\n", errors="surrogateescape")
