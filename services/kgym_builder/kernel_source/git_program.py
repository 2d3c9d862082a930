"""Run Git's commands, each in a sandbox with limits, and interpret their failures.

The sandbox is needed because the server of a repository controls Git's input.
"""

import re
from dataclasses import dataclass, replace

from kgym.errors import InfrastructureError, KgymError, UserError
from kgym.host import proc
from kgym.host.sandbox import Sandbox
from kgym_builder.kernel_source.unpack import too_large

# Paths in sandboxes: the object store, read-only;
STORE = "/kgym/store"
# the repository that one fetch writes to;
SCRATCH = "/kgym/git"
# and the folder with a repository of this machine.
SOURCE = "/kgym/source"
# An object's id: a SHA-1 or a SHA-256.
OBJECT_ID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")

_ENVIRONMENT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_REPLACE_OBJECTS": "1",
}
_SETTINGS = (
    *("safe.directory=*", "gc.auto=0", "core.hooksPath=/dev/null", "core.bare=true"),
    # A pack arrives whole or not at all, unlike loose objects. Files larger than the threshold are
    # streamed, not held in memory.
    *("fetch.unpackLimit=1", "core.bigFileThreshold=32m"),
)
_END = b"\0"
# Runs a command, then prints a NUL, with which no line of Git begins, and its messages. Kept apart,
# a warning is never taken for an answer. A server's messages are among them: the pipe breaks after
# a megabyte, which ends the command.
_APART = """mkfifo /tmp/messages
head -c 1000000 </tmp/messages >/tmp/kept &
"$@" 2>/tmp/messages
status=$?
wait
printf '\\0'
cat /tmp/kept
exit $status
"""
_MOST_LINES = 40
_MOST_WORDS = 4000
# Messages of Git that blame this host for the failure.
_OURS = re.compile(
    r"No space left|Disk quota|Cannot allocate|Input/output error|unable to create thread"
)
_GONE = re.compile(r"(?m)^fatal: repository '.*' not found$")
# Messages about borrowed or missing objects.
_STORED = re.compile(rf"{STORE}/|COLLISION|existing object|did not send all necessary objects")
_SECRET = re.compile(r"could not read (Username|Password) for|Authentication failed for")
_OTHER_IDS = re.compile(r"mismatched (object )?(algorithms|object format)|unknown object format")
_NO_SUCH = re.compile(r"not our ref|couldn't find remote ref|unable to find remote ref")
_BRANCHES_ONLY = re.compile(
    r"Server does not allow request for unadvertised object"
    r"|dumb http transport does not support|does not support shallow"
    r"|Server does not support --depth"
)


class OnlyBranches(Exception):
    """The server sends whole branches and tags, but no single commits."""


class Suspect(Exception):
    """Objects cannot be read: either the store is damaged, or the commit is odd."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The lines that a command printed, and separately its status with its messages."""

    lines: list[str]
    done: proc.Completed


def command(*words: str, settings: tuple[str, ...] = (), folder: str = SCRATCH) -> list[str]:
    """Return a Git command on the repository at `folder` in the sandbox."""
    chosen = [word for setting in (*_SETTINGS, *settings) for word in ("-c", setting)]
    return ["git", "-C", folder, *chosen, *words]


async def ask(
    name: str,
    box: Sandbox,
    argv: list[str],
    seconds: float,
    stdin: bytes = b"",
    what: str = "",
    **environment: str,
) -> Answer:
    """Run a command; return its output, even beyond `proc.KEPT`, and any status.

    Errors call it `name` and its subject `what`. Raises UserError `source_too_large`,
    InfrastructureError `download_failed` after `seconds`.
    """
    lines: list[bytes] = []
    try:
        done = await box.run(
            ["sh", "-c", _APART, "sh", *argv],
            timeout=seconds,
            check=False,
            stdin=stdin,
            on_line=lines.append,
            env={**_ENVIRONMENT, **environment},
        )
    except proc.ProgramTimedOut as error:
        of = f" of {what}" if what else ""
        message = f"`git {name}`{of} was not done within {seconds:g} s"
        raise InfrastructureError("download_failed", message) from error
    except UserError as error:
        refusal = too_large(error)
        raise (
            UserError(refusal.reason, f"{what}: {refusal.message}") if what else refusal
        ) from error
    end = next((number for number, line in enumerate(lines) if line.startswith(_END)), None)
    if end is None:  # the command was killed
        return Answer([], done)
    messages = b"\n".join(lines[end:]).removeprefix(_END)
    answer = [line.decode(errors="replace") for line in lines[:end]]
    return Answer(answer, replace(done, output=messages))


def failed(name: str, what: str, done: proc.Completed) -> InfrastructureError:
    """Return the error of a failed command, with its messages."""
    lines = [line.strip() for line in done.text.splitlines() if line.strip()]
    words = " / ".join(lines[:_MOST_LINES])[:_MOST_WORDS]
    words = "".join(
        char if char.isprintable() else "?" for char in words
    )  # a server may have said it
    return InfrastructureError(
        "download_failed",
        f"`git {name}` of {what} ended with status {done.returncode}: "
        + (words or "it printed nothing"),
    )


def blames_host(done: proc.Completed) -> bool:
    """Return whether a command failed because the host lacks disk space or memory."""
    return _OURS.search(done.text) is not None


def refused(
    name: str, url: str, what: str, done: proc.Completed, *, local: bool, store: bool = False
) -> KgymError | OnlyBranches | Suspect:
    """Return the error of a failed command that asked the repository at `url` for `what`.

    It is Suspect if objects borrowed from the `store` may be to blame.
    """
    if _BRANCHES_ONLY.search(done.text):
        return OnlyBranches()
    if _NO_SUCH.search(done.text):
        return UserError("source_not_found", f"{url} has no {what}, or no longer")
    if _SECRET.search(done.text):
        # GitHub asks for a password if a repository does not exist.
        message = f"{url} asks for a user and password: it is private, or does not exist"
        return UserError("source_not_found", message)
    if _OTHER_IDS.search(done.text):
        return other_ids(url)
    error = failed(name, url, done)
    if store and _STORED.search(done.text) and not blames_host(done):
        return Suspect(error.message)
    # A folder of this host fails the same way on every attempt.
    lasting = _GONE.search(done.text) or (local and not blames_host(done))
    return UserError("source_not_found", error.message) if lasting else error


def other_ids(url: str) -> UserError:
    """Return the error of a repository with SHA-256 ids, which the store cannot hold."""
    message = f"{url} names commits by SHA-256, with 64 digits: only SHA-1, with 40, can be used"
    return UserError("source_unreadable", message)
