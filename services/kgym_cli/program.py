"""The command line: its commands, error handling and exit statuses."""

import contextlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Mapping
from http import HTTPStatus
from types import FrameType, MappingProxyType
from typing import Any, TextIO, cast

import click

from kgym.errors import KgymError, UserError
from kgym_cli import extras, help_pages
from kgym_cli.lazy import Lazy, LazyGroup
from kgym_cli.output import Exit, people, status_of
from kgym_cli.settings import Settings, in_use, options_of

# All commands with their summaries.
COMMANDS = {
    "agent": Lazy("agent", "Search for fixes on behalf of others, as a service.", remote=True),
    "backports": Lazy("upstream", "Show on which kernels a patch resolves a bug.", remote=True),
    "bench": Lazy("bench", "Manage datasets of bugs on which agents are measured."),
    "bisect": Lazy("bisect", "Find the commit that introduced or fixed a bug.", remote=True),
    "bug": Lazy("bug", "List, show and reproduce bugs.", remote=True),
    "cache": Lazy("cache", "List, show, make and drop compiled kernels.", remote=True),
    "check": Lazy("check", "Check which patches apply and compile.", remote=True),
    "completion": Lazy("completion", "Install the completion of commands for your shell."),
    "db": Lazy("db", "Prepare the database."),
    "demo": Lazy(
        "bug_trial", "Show a real bug: crash a kernel, fix it, prove the fix.", remote=True
    ),
    "du": Lazy("du", "Show disk usage.", remote=True),
    "fix": Lazy("fix", "Search for a fix of a bug with a language model.", remote=True),
    "gc": Lazy("gc", "Show what retention would remove, or remove it."),
    "gcp": Lazy("gcp", "Make, show, scale and remove the hosts of a platform on Google Cloud."),
    "group": Lazy("group", "List, show, export and abort groups of jobs.", remote=True),
    "job": Lazy("job", "Submit, list, show, wait for, abort and restart jobs.", remote=True),
    "mcp": Lazy("run_kernel", "Serve the tools for a bug to an agent (MCP).", remote=True),
    "mirror": Lazy("mirror", "Keep copies of Git repositories for this host's workers."),
    "monitor": Lazy("monitor", "Serve web pages of jobs, their steps and workers.", remote=True),
    "report": Lazy("report", "Read crash reports from console logs."),
    "run-kernel": Lazy(
        "run_kernel", "Test the changes in a source tree, or a patch, on a kernel.", remote=True
    ),
    "run": Lazy("run", "List, show, stop and resume searches for a fix.", remote=True),
    "scheduler": Lazy("scheduler", "Accept jobs and hand their steps to workers."),
    "shell": Lazy("shell", "Open a Python shell with a client, datasets and results.", remote=True),
    "slurm": Lazy("slurm", "Run workers on a Slurm cluster."),
    "source": Lazy("source", "Read and search the source of a kernel.", remote=True),
    "sweep": Lazy("sweep", "Test many patches on many bugs.", remote=True),
    "syzkaller": Lazy(
        "syzkaller", "Build the programs that run syzkaller reproducers.", remote=True
    ),
    "token": Lazy("token", "Create, list and revoke tokens of callers and workers."),
    "trace": Lazy("trace", "Show what a kernel executed before it crashed."),
    "up": Lazy("up", "Start scheduler, workers and monitor on this machine."),
    "upstream": Lazy("upstream", "Prove a patch, and write its mail and tags.", remote=True),
    "worker": Lazy(
        "worker", "Run steps until stopped or drained; list and drain workers.", remote=True
    ),
}


class Program(LazyGroup):
    """All commands; each invocation, also in process, has its own settings."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command in the arguments."""
        with in_use(Settings(os.environ)):
            return super().main(*args, **kwargs)


@click.group(
    cls=Program,
    lazy=COMMANDS,
    epilog=help_pages.of_all(),
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@options_of("kgym")
@click.version_option(package_name="kgymsuite")
def cli() -> None:
    """Test patches on real Linux kernels: build, boot, reproduce the crash, judge the fix.

    Exit status: 0 success; 1 negative verdict; 2 bad input; 3 platform failure or
    no verdict; 130 interrupted.
    """
    # The command is imported by now; from here on, interruption must clean up.
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _interrupt)
    signal.signal(signal.SIGTERM, _interrupt)


def run() -> int:
    """Run the command in the arguments; return the exit status."""
    _prepare_streams()
    try:
        status = _status()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except SystemExit as error:  # end of a completion; also how click and rich report EPIPE
        status = Exit.OK if error.code == 0 else Exit.UNREAD
    except BrokenPipeError:
        status = Exit.UNREAD
    except OSError as error:
        status = _failed(error)
    # Until here, signals interrupt; from now on, nothing is left to clean up.
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is _interrupt:
            signal.signal(number, signal.SIG_DFL)
    _discard_unwritten()
    return status


def _status() -> int:
    try:
        status: Any = cli.main(prog_name="kgym", standalone_mode=False)
    except KgymError as error:
        return _refused(error)
    except click.ClickException as error:
        with contextlib.suppress(OSError):
            error.show()
        _answer(400, "bad_usage", error.format_message())
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        _answer(503, "interrupted", "the command was interrupted")
        return Exit.INTERRUPTED
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001 - Python's status 1 would look like a verdict
        lacking = extras.missing(error) if isinstance(error, ModuleNotFoundError) else None
        return _refused(lacking) if lacking is not None else _surprised(error)
    return status if isinstance(status, int) else Exit.OK


def _refused(error: KgymError) -> int:
    _say(f"kgym: {error.message}", style="red")
    problem = getattr(error, "problem", {})  # the scheduler's problem document
    usual = 422 if isinstance(error, UserError) else 503
    more = {**error.details, **problem}
    _answer(problem.get("status", usual), error.reason, error.message, more)
    return status_of(error)


def _surprised(error: Exception) -> int:
    _say("".join(traceback.format_exception(error)))
    _answer(500, "internal_error", f"{type(error).__name__}: {error}")
    return Exit.INFRASTRUCTURE


def _failed(error: OSError) -> int:
    where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
    message = f"{where}{error.strerror or error}"
    _say(f"kgym: {message}", style="red")
    with contextlib.suppress(OSError):
        _answer(503, "os_error", message)
    return Exit.INFRASTRUCTURE


def _answer(
    status: int, reason: str, detail: str, more: Mapping[str, Any] = MappingProxyType({})
) -> None:
    """With --json, print a problem document (RFC 9457), like the REST interface.

    Its `instance` is the command, unless `more` holds a request's.
    """
    # On stdout, instead of the answer: an agent would otherwise have to parse text for people. The
    # arguments are read directly, as click may have failed before it parsed --json.
    words = sys.argv[1:]
    if "--json" not in words[: words.index("--") if "--" in words else None]:
        return
    document = {
        **more,
        "type": f"urn:kgymsuite:problem:{reason}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "instance": str(more.get("instance") or _command(words)),
        "reason": reason,
    }
    click.echo(json.dumps(document, default=str))


def _command(words: list[str]) -> str:
    """Return the path of the command in the arguments, such as `kgym/job/show`."""
    group, named = cast(click.Command, cli), ["kgym"]
    for word in words:
        if isinstance(group, click.Group):
            command = group.get_command(click.Context(group), word)
            if command is not None:
                group = command
                named.append(word)
    return "/".join(named)


def _say(text: str, style: str | None = None) -> None:
    """Print a message for people if possible; only the exit status is guaranteed."""
    with contextlib.suppress(OSError, SystemExit):
        people.print(text, style=style)


def _prepare_streams() -> None:
    """Replace characters outside the terminal's encoding with `?`, and read UTF-8."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # closed: the next opened file must not get this number
            os.open(os.devnull, os.O_RDWR)
    for stream in (sys.stdout, sys.stderr):
        _reconfigure(stream, errors="replace")
    _reconfigure(sys.stdin, encoding="utf-8", errors="surrogateescape")


def _reconfigure(stream: TextIO | None, **how: str) -> None:
    if stream is not None:
        cast(Any, stream).reconfigure(**how)


def _discard_unwritten() -> None:
    """Drop unwritten output: Python would retry at exit and print an error."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)


def _interrupt(_: int, __: FrameType | None) -> None:
    raise KeyboardInterrupt
