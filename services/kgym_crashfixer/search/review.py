"""The review of a fix as its maintainer would do it: by the model and by the kernel's own tools."""

from dataclasses import asdict
from typing import Any

from kgym.api.agent.nodes import Candidate, Node, NodeOutcome
from kgym.api.steps import Patch, PatchCheck, PatchOutcome
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


def review(rounds: int, memory: Memory, state: State, fix: Node) -> Plan[None]:
    """Let the model review a fix and change it, then write the message of its commit.

    The chosen candidate of the review's node is always the last diff that resolved the bug: first
    the fix itself, then each change of it that was built, run, and is still resolved.
    """
    node = memory.node(REVIEW, fix, REVIEW)
    node.candidates, node.chosen, node.runs = [fix.candidates[fix.chosen or 0]], 0, list(fix.runs)
    node.hypothesis = fix.hypothesis
    try:
        yield from _reviewed(rounds, memory, state, node)
    finally:  # also if the run is stopped meanwhile
        node.outcome = NodeOutcome.RESOLVED


def _reviewed(rounds: int, memory: Memory, state: State, node: Node) -> Plan[None]:
    diff = node.candidates[0].diff
    code = yield from _fixed(node, state, diff)
    if code is None:
        return
    check = yield from _checked(diff)
    node.upstream = check.upstream if check else None
    dropped: list[Lesson] = []
    for _ in range(rounds):
        text = yield from _asked(Purpose.REVIEW, node, state, code, dropped)
        if not text or "<approved" in text.lower():
            break
        candidate, _ = read_patch(code, text)
        if not candidate.problem:
            candidate.problem = yield from _tried(memory, node, candidate)
        node.candidates.append(candidate)
        if candidate.problem:
            what = candidate.diff or candidate.text[: answers.LONGEST_WORDS]
            dropped.append(Lesson(what, candidate.problem, ""))
        else:
            node.chosen, code = len(node.candidates) - 1, code.edited(candidate.edits)
    text = yield from _asked(Purpose.MESSAGE, node, state, code, [])
    node.message = answers.message(text)


def _fixed(node: Node, state: State, diff: str) -> Plan[Code | None]:
    """Return the code with the fix: only the files that it changes; None if one is unreadable."""
    texts = {}
    for path in dict.fromkeys(file.paths[0] for file in unified_diff.parse(diff, "the fix")):
        if (text := state.code.files.get(path)) is None:
            seen = yield from whole(REVIEW, path)
            text = seen.text if seen.succeeded else ""
        texts[path] = text
    try:
        return Code(texts).with_diff(diff)
    except (MisfitError, UserError) as error:
        node.unreadable.append(f"the fix cannot be reviewed: {error}")
        return None


def _asked(
    purpose: Purpose, node: Node, state: State, code: Code, dropped: list[Lesson]
) -> Plan[str]:
    """Ask the model about the code; return its answer, empty if there is none."""
    findings = node.upstream.findings[:_FINDINGS] if node.upstream else []
    values: dict[str, Any] = {
        "title": state.crash.title,
        "report": state.crash.report,
        "files": dict(code.texts),
        "changed": code.diff,
        # No change of the patch can mend a finding without a line, such as a missing tool.
        "findings": [
            f"{each.check}: line {each.line}: {each.message}" for each in findings if each.line
        ],
        "lessons": [asdict(lesson) for lesson in dropped],
        "reasons": False,
    }
    answer = yield Question(node=REVIEW, purpose=purpose, values=values, temperature=_TEMPERATURE)
    if not isinstance(answer, Answer):
        node.unreadable.append(missing(answer))
    return answer.text if isinstance(answer, Answer) else ""


def _checked(diff: str) -> Plan[PatchCheck | None]:
    """Check a diff as for a mail to its maintainers."""
    patch = Patch(name="the patch", diff=diff)
    checked = yield Check(node=REVIEW, patches=[patch], upstream=True)
    return checked.patches[0] if isinstance(checked, Checked) else None


def _tried(memory: Memory, node: Node, candidate: Candidate) -> Plan[str]:
    """Verify a change like any patch; return why it is dropped, or "" if it now is the fix."""
    if candidate.digest in memory.lessons:
        return memory.lessons[candidate.digest].outcome
    check = yield from _checked(candidate.diff)
    if check is None or check.outcome is not PatchOutcome.COMPILES:
        return f"{check.outcome}: {check.reason}" if check else "it was not checked"
    # Tried on a copy: the node keeps the runs of its last verified diff unless this one resolves.
    trial = node.model_copy(update={"runs": []})
    tried = yield from try_patch(memory, trial, candidate)
    if tried is None:
        return "there was no verdict"
    if not tried.resolved:
        memory.lessons[candidate.digest] = Lesson(candidate.diff, tried.outcome, "")
        return tried.outcome
    node.runs, node.upstream = trial.runs, check.upstream
    return ""
