"""Git's commands, each in a sandbox of its own, with limits; and what their failures mean.

Whoever serves a repository decides what Git has to cope with.
"""

import re
from dataclasses import dataclass, replace

from kgym.errors import InfrastructureError, KgymError, UserError
from kgym.host import proc
from kgym.host.sandbox import Sandbox
from kgym_builder.kernel_source.unpack import too_large

STORE = "/kgym/store"
"""Where sandboxes see the object store, read-only."""
SCRATCH = "/kgym/git"
"""Where they see the repository that one fetch writes to."""
SOURCE = "/kgym/source"
"""Where they see the folder that holds a repository of this machine."""
OBJECT_ID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
"""What names an object: a SHA-1, or a SHA-256."""

_ENVIRONMENT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_REPLACE_OBJECTS": "1",
}
_SETTINGS = (
    *("safe.directory=*", "gc.auto=0", "core.hooksPath=/dev/null", "core.bare=true"),
    # Packs come whole or not at all, unlike the single files of objects; larger ones than this are
    # not taken into memory.
    *("fetch.unpackLimit=1", "core.bigFileThreshold=32m"),
)
# What it prints ends with a byte that is in no line of Git's; its messages follow.
_APART = """exec 2>/tmp/said
"$@"
status=$?
printf '\\0'
cat /tmp/said
exit $status
"""
_MOST_LINES = 40
_MOST_WORDS = 4000
_OURS = re.compile(
    r"No space left|Disk quota|Cannot allocate|Input/output error|unable to create thread"
)
"""What Git says where the host is to blame for it that a repository of it cannot be fetched."""
_GONE = re.compile(r"(?m)^fatal: repository '.*' not found$")
_STORED = re.compile(rf"{STORE}/|COLLISION|existing object|did not send all necessary objects")
"""What it says of objects that it borrows, or cannot do without."""
_NO_SUCH = re.compile(r"not our ref|couldn't find remote ref|unable to find remote ref")
_BRANCHES_ONLY = re.compile(
    r"Server does not allow request for unadvertised object"
    r"|dumb http transport does not support|does not support shallow"
    r"|Server does not support --depth"
)


class OnlyBranches(Exception):
    """The server gives whole branches and tags, no single commits."""


class Suspect(Exception):
    """Objects cannot be read: the store is damaged, or the commit is odd; it says why."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command printed, by lines, and apart from it how it ended, with its messages."""

    lines: list[str]
    done: proc.Completed


def command(*words: str, settings: tuple[str, ...] = (), folder: str = SCRATCH) -> list[str]:
    """Return a command of Git on the repository that the sandbox sees at `folder`."""
    chosen = [word for one in (*_SETTINGS, *settings) for word in ("-c", one)]
    return ["git", "-C", folder, *chosen, *words]


async def run(
    name: str,
    box: Sandbox,
    argv: list[str],
    seconds: float,
    stdin: bytes = b"",
    what: str = "",
    **environment: str,
) -> proc.Completed:
    """Run a command, called `name` in errors, on `what`; its status may be any.

    Raises UserError `source_too_large`, InfrastructureError `download_failed` after `seconds`.
    """
    try:
        return await box.run(
            argv,
            timeout=seconds,
            check=False,
            stdin=stdin,
            env={**_ENVIRONMENT, **environment},
        )
    except proc.ProgramTimedOut as error:
        of = f" of {what}" if what else ""
        message = f"`git {name}`{of} was not done within {seconds:g} s"
        raise InfrastructureError("download_failed", message) from error
    except UserError as error:
        found = too_large(error)
        raise (UserError(found.reason, f"{what}: {found.message}") if what else found) from error


async def ask(
    name: str,
    box: Sandbox,
    argv: list[str],
    seconds: float,
    stdin: bytes = b"",
    what: str = "",
    **environment: str,
) -> Answer:
    """Run a command as `run` does, for what it prints: a warning is never taken for an answer."""
    argv = apart(argv)
    return answer(await run(name, box, argv, seconds, stdin, what, **environment))


def apart(argv: list[str]) -> list[str]:
    """Return the command that keeps this one's messages apart, for `answer`."""
    return ["sh", "-c", _APART, "sh", *argv]


def answer(done: proc.Completed) -> Answer:
    """Return what a command printed that was run `apart`."""
    printed, _, said = done.output.rpartition(b"\0")
    lines = [line for line in printed.decode(errors="replace").split("\n") if line]
    return Answer(lines, replace(done, output=said))


def failed(name: str, what: str, done: proc.Completed) -> InfrastructureError:
    """Return the error of a command, with its words."""
    lines = [line.strip() for line in done.text.splitlines() if line.strip()]
    said = " / ".join(lines[:_MOST_LINES])[:_MOST_WORDS]
    said = "".join(one if one.isprintable() else "?" for one in said)  # a server may have said it
    return InfrastructureError(
        "download_failed",
        f"`git {name}` of {what} ended with status {done.returncode}: "
        + (said or "it printed nothing"),
    )


def blames_host(done: proc.Completed) -> bool:
    """Tell whether a command failed for want of the host's disk or memory."""
    return _OURS.search(done.text) is not None


def refused(
    name: str, url: str, what: str, done: proc.Completed, *, local: bool, store: bool = False
) -> KgymError | OnlyBranches | Suspect:
    """Return the error of a command that asked the repository at `url` for `what`.

    Suspect, if it borrowed objects of the `store` that may be to blame.
    """
    if _BRANCHES_ONLY.search(done.text):
        return OnlyBranches()
    if _NO_SUCH.search(done.text):
        return UserError("source_not_found", f"{url} has no {what}, or no longer")
    error = failed(name, url, done)
    if store and _STORED.search(done.text) and not blames_host(done):
        return Suspect(error.message)
    # Of a folder of this host, another attempt says the same.
    lasting = _GONE.search(done.text) or (local and not blames_host(done))
    return UserError("source_not_found", error.message) if lasting else error
