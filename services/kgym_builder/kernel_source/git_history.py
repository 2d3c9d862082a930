"""Which commits lie between two of a repository, as Git lists them."""

import re

from kgym.api.steps import MOST_COMMITS
from kgym.errors import InfrastructureError, KgymError, UserError
from kgym_builder.kernel_source import git_program
from kgym_builder.kernel_source.git_program import Answer

# Bytes of a list, at most.
OUTPUT = 64 << 20
_SUBJECT = 150
_ABSENT, _APART = 3, 4
_COMMIT = re.compile(r"[0-9a-f]{40}[ \t]")
_LIST = f"""
OLD=$1 NEW=$2; shift 2
"$@" cat-file -e "$OLD^{{commit}}" 2>/dev/null || exit {_ABSENT}
"$@" cat-file -e "$NEW^{{commit}}" 2>/dev/null || exit {_ABSENT}
"$@" merge-base --is-ancestor "$OLD" "$NEW"
case $? in 0) ;; 1) exit {_APART};; *) exit 1;; esac
"$@" rev-list --topo-order --reverse --max-count={MOST_COMMITS + 1} --no-commit-header \
    --format='%H %P%x09%<({_SUBJECT},trunc)%s' "$NEW" "^$OLD"
"""


def command(folder: str, since: str, commit: str) -> list[str]:
    """Return the command that lists, in a sandbox, what the repository at `folder` has."""
    program = git_program.command(folder=folder)
    return ["bash", "-c", _LIST, "bash", since, commit, *program]


def listed(name: str, since: str, commit: str, answer: Answer) -> str:
    """Return the list, as `kgym.api.steps.HistoryArtifact` describes it.

    Raises UserError `source_not_found`, `not_an_ancestor`, `history_too_long`, InfrastructureError
    `download_failed`.
    """
    if (error := _error(name, since, commit, answer)) is not None:
        raise error
    return "".join(f"{line.rstrip()}\n" for line in answer.lines)


def _error(name: str, since: str, commit: str, answer: Answer) -> KgymError | None:
    done = answer.done
    if done.returncode == _ABSENT:
        return UserError("source_not_found", f"{name} has not both of {since} and {commit}")
    if done.returncode == _APART:
        message = (
            f"{since} does not lie before {commit} in the history of {name}: take an older one,"
            " such as their `git merge-base`"
        )
        return UserError("not_an_ancestor", message)
    if done.returncode != 0:
        return git_program.failed("rev-list", name, done)
    if odd := [line for line in answer.lines if not _COMMIT.match(line)]:
        message = f"the history of {name} holds a line that is no commit: {odd[0][:100]!r}"
        return InfrastructureError("download_failed", message)
    if len(answer.lines) > MOST_COMMITS:
        message = f"more than {MOST_COMMITS} commits lie between {since} and {commit}"
        return UserError("history_too_long", message)
    return None
