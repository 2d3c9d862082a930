"""The command line as a whole: its commands, and how each of them ends."""

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

# The commands, and what `kgym --help` says of them.
COMMANDS = {
    "agent": Lazy("agent", "Search for fixes on behalf of others, as a service.", remote=True),
    "bench": Lazy("bench", "Datasets of bugs, for agents to be measured on."),
    "bisect": Lazy("bisect", "Find the commit that brought a bug, or fixed it.", remote=True),
    "bug": Lazy("bug", "List, show and reproduce bugs.", remote=True),
    "cache": Lazy("cache", "List, show, make and drop compiled kernels.", remote=True),
    "check": Lazy("check", "Say which patches apply and compile.", remote=True),
    "completion": Lazy("completion", "Install the completion of commands for your shell."),
    "db": Lazy("db", "Prepare the database."),
    "demo": Lazy(
        "bug_trial", "Show a real bug: crash a kernel, fix it, prove the fix.", remote=True
    ),
    "du": Lazy("du", "Show what takes disk.", remote=True),
    "fix": Lazy("fix", "Search for a fix of a bug with a language model.", remote=True),
    "gc": Lazy("gc", "Show what retention would remove, or remove it."),
    "gcp": Lazy("gcp", "Make, show, scale and remove the hosts of a platform on Google Cloud."),
    "group": Lazy("group", "List, show, export and abort groups of jobs.", remote=True),
    "job": Lazy("job", "Submit, list, show, wait for, abort and restart jobs.", remote=True),
    "mcp": Lazy("mcp", "Serve the tools for a bug to an agent (MCP).", remote=True),
    "mirror": Lazy("mirror", "Keep copies of Git repositories for this host's workers."),
    "monitor": Lazy("monitor", "Serve web pages of jobs, their steps and workers.", remote=True),
    "report": Lazy("report", "Read crash reports out of console logs."),
    "run-kernel": Lazy(
        "run_kernel", "Try the changes of a source tree, or a patch, on a kernel.", remote=True
    ),
    "run": Lazy("run", "List, show, stop and resume searches for a fix.", remote=True),
    "scheduler": Lazy("scheduler", "Take jobs and hand their steps to workers."),
    "source": Lazy("source", "Read and search the source of a kernel.", remote=True),
    "sweep": Lazy("sweep", "Try many patches on many bugs.", remote=True),
    "syzkaller": Lazy(
        "syzkaller", "Build the programs that run syzkaller's reproducers.", remote=True
    ),
    "token": Lazy("token", "Make, list and revoke the tokens of callers and workers."),
    "trace": Lazy("trace", "What a kernel executed before it crashed."),
    "up": Lazy("up", "Start scheduler, workers and monitor on this machine."),
    "worker": Lazy(
        "worker", "Do steps until stopped or drained; list and drain workers.", remote=True
    ),
}


class Program(LazyGroup):
    """All commands; each invocation, also in process, begins with settings of its own."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command that the arguments name."""
        with in_use(Settings(os.environ)):
            return super().main(*args, **kwargs)


@click.group(
    cls=Program,
    lazy=COMMANDS,
    epilog=help_pages.of_all(),
    context_settings={"help_option_names": ["-h", "--help"]},
)
@options_of("kgym")
@click.version_option(package_name="kgymsuite")
def cli() -> None:
    """Try patches on real Linux kernels: build, boot, reproduce the crash, tell whether it is gone.

    Exit status: 0 success; 1 a verdict says no; 2 bad input; 3 the platform
    failed or came to no verdict; 130 interrupted.
    """
    # The command is imported by now, and what it begins it has to tidy up.
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _interrupt)
    signal.signal(signal.SIGTERM, _interrupt)


def run() -> int:
    """Run the command that the arguments name; return the exit status."""
    _prepare_streams()
    try:
        status = _status()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except SystemExit as error:  # click's end of a completion; or how it and rich say what follows
        status = Exit.OK if error.code == 0 else Exit.UNREAD
    except BrokenPipeError:
        status = Exit.UNREAD
    except OSError as error:
        status = _failed(error)
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
    except Exception as error:  # noqa: BLE001 - Python's own status, 1, would be taken for a verdict
        lacking = extras.missing(error) if isinstance(error, ModuleNotFoundError) else None
        return _refused(lacking) if lacking is not None else _surprised(error)
    return status if isinstance(status, int) else Exit.OK


def _refused(error: KgymError) -> int:
    _say(f"kgym: {error.message}", style="red")
    problem = getattr(error, "problem", {})  # as the scheduler answered
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
    """Answer with a problem document (RFC 9457), as the REST interface does, if JSON is asked for.

    Its `instance` is the command, unless `more` holds the one of a request.
    """
    words = sys.argv[1:]
    if "--json" not in words[: words.index("--") if "--" in words else None]:
        return
    document = {
        "type": f"urn:kgymsuite:problem:{reason}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "instance": _command(words),
        "reason": reason,
    }
    click.echo(json.dumps({**more, **document, **_instance(more)}, default=str))


def _instance(more: Mapping[str, Any]) -> dict[str, str]:
    return {"instance": str(more["instance"])} if "instance" in more else {}


def _command(words: list[str]) -> str:
    """Return the command that the arguments name, such as `kgym/job/show`."""
    group, named = cast(click.Command, cli), ["kgym"]
    for word in words:
        if isinstance(group, click.Group):
            command = group.get_command(click.Context(group), word)
            if command is not None:
                group = command
                named.append(word)
    return "/".join(named)


def _say(text: str, style: str | None = None) -> None:
    """Print a message for people if that is possible; the exit status is what counts."""
    with contextlib.suppress(OSError, SystemExit):
        people.print(text, markup=False, style=style)


def _prepare_streams() -> None:
    """Make what cannot be said in the terminal's encoding a `?`, and read UTF-8."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # closed: what is opened next must not take its place
            os.open(os.devnull, os.O_RDWR)
    for stream in (sys.stdout, sys.stderr):
        _reconfigure(stream, errors="replace")
    _reconfigure(sys.stdin, encoding="utf-8", errors="surrogateescape")


def _reconfigure(stream: TextIO | None, **how: str) -> None:
    if stream is not None:
        cast(Any, stream).reconfigure(**how)


def _discard_unwritten() -> None:
    """Drop what could not be written: Python would try again when it ends, and print an error."""
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
