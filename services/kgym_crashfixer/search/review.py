"""The review of a fix as its maintainer would do it: by the model and by the kernel's own tools."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from kgym.api.agent.nodes import Candidate, Node, NodeOutcome
from kgym.api.steps import PatchCheck, PatchOutcome
from kgym.errors import UserError
from kgym.source import unified_diff
from kgym.source.whole_functions import MisfitError
from kgym_crashfixer.search import answers
from kgym_crashfixer.search.code import Code, read_patch
from kgym_crashfixer.search.cycle import Lesson, Memory, State, missing, try_patch
from kgym_crashfixer.search.engine import Plan
from kgym_crashfixer.search.looks import whole
from kgym_crashfixer.search.work import Answer, Check, Checked, Purpose, Question

# What a review's node begins at; also its name.
REVIEW = "review"
# As for other judgements: a reviewer's answers should not vary.
_TEMPERATURE = 0.2
# Findings of tools in a prompt; a hostile tree could name thousands.
_FINDINGS = 30
Read = TypeVar("Read")


@dataclass(slots=True)
class _Review:
    """A running review; `code` has the last diff that resolved the bug."""

    memory: Memory
    state: State
    node: Node
    code: Code
    dropped: list[Lesson] = field(default_factory=list)

    def ask(self, purpose: Purpose, read: Callable[[str], Read]) -> Plan[Read | None]:
        """Ask the model about the code; return what its answer says, if it can be read."""
        crash, upstream = self.state.crash, self.node.upstream
        findings = upstream.findings[:_FINDINGS] if upstream else []
        values: dict[str, Any] = {
            "title": crash.title,
            "report": crash.report,
            "files": dict(self.code.texts),
            "changed": self.code.diff,
            "findings": [f"{each.check}: line {each.line}: {each.message}" for each in findings],
            "lessons": [lesson.values for lesson in self.dropped],
            "reasons": False,
        }
        answer = yield Question(
            node=REVIEW, purpose=purpose, values=values, temperature=_TEMPERATURE
        )
        if not isinstance(answer, Answer):
            self.node.unreadable.append(missing(answer))
            return None
        if purpose is Purpose.REVIEW:
            self.node.review.append(answer.text[: answers.LONGEST_WORDS])
        try:
            return read(answer.text)
        except answers.UnreadableError as error:
            self.node.unreadable.append(str(error))
            return None


def review(rounds: int, memory: Memory, state: State, fix: Node) -> Plan[None]:
    """Let the model review a fix and change it, then write the message of its commit.

    The chosen candidate of the review's node is always the last diff that resolved the bug: first
    the fix itself, then each change of it that was built, run, and is still resolved.
    """
    assert fix.chosen is not None
    node = memory.node(REVIEW, fix, REVIEW)
    node.candidates, node.chosen, node.runs = [fix.candidates[fix.chosen]], 0, list(fix.runs)
    node.hypothesis = fix.hypothesis
    try:
        code = yield from _fixed(node, state)
        if code is not None:
            reviewing = _Review(memory, state, node, code)
            yield from _rounds(reviewing, rounds)
            message = yield from reviewing.ask(Purpose.MESSAGE, answers.message)
            node.message = message or ""
    finally:  # also if the run is stopped meanwhile
        node.outcome = NodeOutcome.RESOLVED


def _fixed(node: Node, state: State) -> Plan[Code | None]:
    """Return the code with the fix: only the files that it changes; None if one is unreadable."""
    diff = node.candidates[0].diff
    texts = {}
    for path in dict.fromkeys(file.paths[0] for file in unified_diff.parse(diff, "the fix")):
        if (text := state.code.files.get(path)) is None:
            seen = yield from whole(REVIEW, path)
            text = seen.text if seen is not None and seen.succeeded else ""
        texts[path] = text
    try:
        return Code(texts).with_diff(diff)
    except (MisfitError, UserError) as error:
        node.unreadable.append(f"the fix cannot be reviewed: {error}")
        return None


def _rounds(reviewing: _Review, rounds: int) -> Plan[None]:
    """Review the code until nothing is to be changed."""
    node = reviewing.node
    check = yield from _checked(reviewing.code)
    node.upstream = check.upstream if check else None
    for _ in range(rounds):
        changed = yield from reviewing.ask(
            Purpose.REVIEW, lambda text: None if approves(text) else _read(reviewing, text)
        )
        if changed is None:
            return
        candidate, problem = changed, changed.problem
        if not problem:
            after = reviewing.code.edited(candidate.edits)
            problem = yield from _tried(reviewing, candidate, after)
            if not problem:
                reviewing.code = after
                continue
        candidate.problem = problem
        node.candidates.append(candidate)
        text = candidate.diff or candidate.text[: answers.LONGEST_WORDS]
        reviewing.dropped.append(Lesson(text, problem, ""))


def approves(text: str) -> bool:
    """Return whether a reviewer's answer wants nothing changed."""
    return "<approved" in text.lower()


def _read(reviewing: _Review, text: str) -> Candidate:
    candidate, unreadable = read_patch(reviewing.code, text)
    if unreadable:
        raise answers.UnreadableError(unreadable)
    return candidate


def _checked(code: Code) -> Plan[PatchCheck | None]:
    """Check the diff as for a mail to its maintainers."""
    check = Check(node=REVIEW, patches=[code.patch("the patch")], upstream=True)
    checked = yield check
    return checked.patches[0] if isinstance(checked, Checked) else None


def _tried(reviewing: _Review, candidate: Candidate, after: Code) -> Plan[str]:
    """Verify a change like any patch; return why it is dropped, or "" if it now is the fix."""
    lessons = reviewing.memory.lessons
    if candidate.digest in lessons:
        return lessons[candidate.digest].outcome
    check = yield from _checked(after)
    candidate.outcome = check.outcome if check else None
    if check is None or check.outcome is not PatchOutcome.COMPILES:
        return f"{check.outcome}: {check.reason}" if check else "it could not be checked"
    # Its runs are the node's only if they hold: the last verified diff keeps its own.
    trial = reviewing.node.model_copy(update={"runs": []})
    tried = yield from try_patch(reviewing.memory, trial, candidate)
    if tried is None:
        return "there was no verdict"
    if not tried.resolved:
        lessons[candidate.digest] = Lesson(candidate.diff, tried.outcome, "")
        return tried.outcome
    node = reviewing.node
    node.candidates.append(candidate)
    node.chosen, node.runs, node.upstream = len(node.candidates) - 1, trial.runs, check.upstream
    return ""
