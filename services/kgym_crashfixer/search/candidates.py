"""An answer as a patch: read, applied to the code, or sent back with what is wrong. Pure."""

from typing import Literal

from kgym.api.agent.nodes import Candidate
from kgym.api.steps import Edit
from kgym_crashfixer.search import answers
from kgym_crashfixer.search.code import Code, RefusedError

# Characters of what is wrong with a patch.
LONGEST_PROBLEM = 16_000
Form = Literal["edits", "diff", "functions"]


def read_patch(form: Form, code: Code, text: str) -> tuple[Candidate, str]:
    """Return what an answer makes of the code, and why it cannot be read; "" where it can.

    The candidate's `problem` says what went wrong, for the model.
    """
    answer = text[: answers.LONGEST]
    try:
        after, reasons = _changed(form, code, text)
    except answers.UnreadableError as error:
        problem = f"The answer cannot be read: {error}."
        return Candidate(text=answer, problem=problem), str(error)
    except (RefusedError, ValueError) as error:  # the latter by what no model of ours holds
        what = "functions" if form == "functions" else "modifications"
        problem = f"The {what} cannot be applied: {error}"
        return Candidate(text=answer, problem=problem[:LONGEST_PROBLEM]), ""
    if after.unchanged:
        problem = "With these modifications the code is as it was when it first crashed."
        return Candidate(text=answer, problem=problem), ""
    made = list(after.edits[len(code.edits) :])
    return Candidate(
        text=answer, edits=made, reasons=reasons, diff=after.diff, digest=after.digest
    ), ""


def _changed(form: Form, code: Code, text: str) -> tuple[Code, list[str]]:
    """Return the code with what an answer changes, and the reasons that it gives."""
    if form == "diff":
        return code.patched(answers.diff(text)), []
    if form == "functions" and (functions := answers.functions(text)):
        edits = code.replacing(functions)
        return (code.edited(edits) if edits else code), [function.reason for function in functions]
    changes = answers.changes(text)
    edits = [
        Edit(file=change.file, original=change.original, replacement=change.patched)
        for change in changes
    ]
    return code.edited(edits), [change.reason for change in changes]
