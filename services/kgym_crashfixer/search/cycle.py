"""One debug cycle (CrashFixer, sections 4.1 and 4.2): from a crash to a patch that was tried."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from kgym.api.agent.nodes import Candidate, CauseCommit, Crash, Node, NodeOutcome, Tried
from kgym.api.agent.strategy import Cycle
from kgym.api.steps import Patch, PatchCheck, PatchOutcome, Verdict
from kgym_crashfixer.search import answers
from kgym_crashfixer.search.candidates import LONGEST_PROBLEM, read_patch
from kgym_crashfixer.search.code import Code
from kgym_crashfixer.search.definitions import explored
from kgym_crashfixer.search.engine import Plan, single, together
from kgym_crashfixer.search.looks import further_files
from kgym_crashfixer.search.work import Answer, Check, Checked, Purpose, Question, Try

# Runs of a patch that the platform gave no verdict on, or that ended by an unrelated crash.
_AGAIN = 3
# What a check says of a patch that is built: a limit says neither yes nor no, the build will.
BUILT = {PatchOutcome.COMPILES, PatchOutcome.OVER_LIMIT}
# What several different answers are wanted to.
_DIVERSE = {
    Purpose.HYPOTHESIS,
    Purpose.HYPOTHESES,
    Purpose.PATCH,
    Purpose.PATCHES,
    Purpose.FUNCTIONS,
    Purpose.DIFF,
}
# What a patch of each form is asked for by.
_ASKED_FOR = {
    "edits": Purpose.PATCH,
    "functions": Purpose.FUNCTIONS,
    "diff": Purpose.DIFF,
}
# Failed patches that a prompt tells of: the newest.
_LESSONS = 12
# Characters of the hypothesis of a failed patch that others are told.
_SUPPOSED = 2_000
# Characters of a patch that are sent back to be mended.
_LONGEST_PATCH = 64_000
# Characters of a summary.
_SUMMARY = 4_000
# Characters of what a patch came to that could not be built.
_OUTCOME = 200
Read = TypeVar("Read")


@dataclass(frozen=True, slots=True)
class Lesson:
    """What a failed patch teaches those that come after it."""

    diff: str
    outcome: str
    summary: str
    hypothesis: str = ""
    """What it supposed, where that is told instead of a summary."""
    inherited: bool = False
    """Whether those that come after it have its changes in their code."""

    @property
    def values(self) -> dict[str, str]:
        """What a prompt tells of it."""
        return {
            "diff": self.diff,
            "outcome": self.outcome,
            "summary": self.summary,
            "hypothesis": self.hypothesis,
        }


@dataclass(frozen=True, slots=True)
class State:
    """Where a debug cycle begins: the code, how it crashes, and what failed on the way."""

    code: Code
    crash: Crash
    lessons: tuple[Lesson, ...] = ()
    hypothesis: str | None = None
    cause: CauseCommit | None = None
    """The commit that brought the bug in, where it is known."""
    names: tuple[str, ...] = ()
    """Definitions that the model has asked for, which prompts show."""


@dataclass(slots=True)
class Memory:
    """What all cycles of a search know of each other."""

    digests: dict[str, str] = field(default_factory=dict)
    """The node that tried each change, or is trying it now."""
    lessons: dict[str, Lesson] = field(default_factory=dict)
    """What became of each change that failed."""
    nodes: dict[str, Node] = field(default_factory=dict)
    further_files: dict[str, str] | None = None
    """Texts of further files, by path; None before they were searched for."""
    validate_with: int = 1

    def node(self, name: str, parent: Node | None, begins_at: str) -> Node:
        """Begin a node."""
        depth = parent.depth + 1 if parent else 1
        node = Node(
            name=name, parent=parent.name if parent else None, depth=depth, begins_at=begins_at
        )
        self.nodes[name] = node
        return node


def cycle(options: Cycle, memory: Memory, state: State, node: Node) -> Plan[State]:
    """Carry out a debug cycle; return the state that its children inherit."""
    try:
        return (yield from _rounds(_Asking(options, memory, state, node)))
    finally:  # of a cycle that is dropped as well
        node.outcome = node.outcome or NodeOutcome.STOPPED


def _rounds(asked: "_Asking") -> Plan[State]:
    """Go from the hypothesis to a patch that is tried, again while none compiles."""
    yield from _looked(asked)
    yield from _explored(asked)
    options, memory, state, node = asked.options, asked.memory, asked.state, asked.node
    for number in range(options.rounds):
        node.rounds = number + 1
        if number == 0 and node.begins_at == "patch" and state.hypothesis is not None:
            node.hypothesis = state.hypothesis
        elif options.hypotheses:
            yield from _hypothesis(asked)
            if node.hypothesis is None:
                continue
        first = len(node.candidates)
        yield from _candidates(asked)
        ready = yield from _compilable(asked, range(first, len(node.candidates)))
        while ready:
            index = yield from _choice(asked, ready)
            ready.remove(index)
            if _repeats(asked, node.candidates[index], memory.digests):  # of a node meanwhile
                continue
            node.chosen = index
            tried = yield from try_patch(memory, node, node.candidates[index])
            if tried is None:
                asked.failed = True
            elif tried.verdict == "does_not_build":
                ready += yield from _rebuilt(asked, index, tried)
            else:
                return (yield from _learned(asked, node.candidates[index], tried))
        if asked.failed:
            node.outcome = NodeOutcome.INCONCLUSIVE
            return state
    return (yield from _given_up(asked))


@dataclass(slots=True)
class _Asking:
    """What the questions of a cycle have in common."""

    options: Cycle
    memory: Memory
    state: State
    node: Node
    failed: bool = False
    """Whether the platform owes an answer."""

    def question(self, purpose: Purpose, **more: Any) -> Question:
        diverse = purpose in _DIVERSE
        crash = self.state.crash
        cause = self.state.cause if self.options.cause else None
        values: dict[str, Any] = {
            "title": crash.title,
            "report": crash.report,
            "trace": crash.trace if self.options.trace else None,
            "files": dict(self.state.code.texts),
            "changed": self.state.code.diff,
            "cause": cause.model_dump() if cause else None,
            "names": [
                *self.state.names,
                *(function.name for function in (cause.functions if cause else ())),
            ],
            "examples": self.options.examples,
            "lessons": [
                lesson.values
                for lesson in self.state.lessons[-_LESSONS:]
                if self.options.summaries or not lesson.inherited
            ],
            "reasons": self.options.reasons,
            **more,
        }
        return Question(
            node=self.node.name,
            purpose=purpose,
            values=values,
            temperature=self.options.temperature if diverse else self.options.judging,
        )

    def read(self, answer: object, reader: Callable[[str], Read]) -> Read | None:
        """Return what an answer says; None, which is noted, if that cannot be read."""
        if not isinstance(answer, Answer):
            return None
        try:
            return reader(answer.text)
        except answers.UnreadableError as error:
            self.node.unreadable.append(str(error))
            return None


def _looked(asked: _Asking) -> Plan[None]:
    """Let the model search for further files, once in a search; add what was found."""
    options, memory, code = asked.options, asked.memory, asked.state.code
    if options.looks and memory.further_files is None:
        memory.further_files = {}  # others do not search meanwhile
        memory.further_files = yield from further_files(options, code, asked.question, asked.node)
    if options.looks and memory.further_files:
        asked.state = replace(asked.state, code=code.with_files(memory.further_files))


def _explored(asked: _Asking) -> Plan[None]:
    """Let the model ask for definitions; what it then says of the cause goes with the patch."""
    options, state, node = asked.options, asked.state, asked.node
    if not options.explore:
        return
    seen = yield from explored(options, state.code, asked.question, node)
    names = tuple(dict.fromkeys([*state.names, *seen.names]))
    asked.state = replace(state, code=state.code.with_files(seen.texts), names=names)
    if not options.hypotheses:
        node.hypothesis = seen.explanation or None


def _hypothesis(asked: _Asking) -> Plan[None]:
    """Ask for hypotheses, let the model weigh them, and keep the one that it selects."""
    options, node = asked.options, asked.node
    if options.questions == "together" and options.hypotheses > 1:
        answer = yield asked.question(Purpose.HYPOTHESES, count=options.hypotheses)
        ranked = asked.read(answer, answers.ranked) or []
        node.hypotheses += ranked[: options.hypotheses]
        node.hypothesis = ranked[0] if ranked else None
        return
    replies = yield from together(
        {
            f"h{number}": single(asked.question(Purpose.HYPOTHESIS))
            for number in range(options.hypotheses if options.reflection else 1)
        }
    )
    texts = [asked.read(answer, answers.solution) for answer in replies.values()]
    hypotheses = list(dict.fromkeys(text for text in texts if text))
    node.hypotheses += hypotheses
    node.hypothesis = hypotheses[0] if hypotheses else None
    if options.reflection and len(hypotheses) > 1:
        answer = yield asked.question(Purpose.REFLECTION, hypotheses=hypotheses)
        best = asked.read(answer, lambda text: answers.chosen(text, len(hypotheses)))
        if isinstance(answer, Answer):
            node.critique = answer.text[: answers.LONGEST_WORDS]
        node.hypothesis = hypotheses[best or 0]


def _candidates(asked: _Asking) -> Plan[None]:
    """Ask for patches, and let each be mended whose edits do not apply."""
    options, node = asked.options, asked.node
    if options.questions == "together" and options.patches > 1:
        plans = yield from _attempts(asked)
    else:
        plans = {f"p{number}": _candidate(asked) for number in range(options.patches)}
    made = yield from together(plans)
    node.candidates += [candidate for candidate in made.values() if candidate is not None]


def _attempts(asked: _Asking) -> Plan[dict[str, Plan[Candidate | None]]]:
    """Ask for all patches in one answer; return the plans that make each of them applicable."""
    wanted = asked.options.patches
    hypothesis = asked.node.hypothesis
    answer = yield asked.question(Purpose.PATCHES, hypothesis=hypothesis, count=wanted)
    texts = answers.attempts(answer.text)[:wanted] if isinstance(answer, Answer) else []
    return {f"p{number}": _applicable(asked, text) for number, text in enumerate(texts)}


def _candidate(asked: _Asking) -> Plan[Candidate | None]:
    purpose = _ASKED_FOR[asked.options.answer]
    answer = yield asked.question(purpose, hypothesis=asked.node.hypothesis)
    if not isinstance(answer, Answer):
        return None
    return (yield from _applicable(asked, answer.text))


def _applicable(asked: _Asking, text: str) -> Plan[Candidate | None]:
    """Read a patch; let it be mended as long as its edits do not apply."""
    candidate = _read(asked, text)
    while asked.options.mend == "all" and _mendable(asked, candidate):
        candidate = yield from _repaired(asked, candidate)
    return candidate


def _mendable(asked: _Asking, candidate: Candidate) -> bool:
    return bool(candidate.problem) and candidate.repairs < asked.options.repairs


def _repaired(asked: _Asking, candidate: Candidate) -> Plan[Candidate]:
    """Ask once to mend a candidate; return what comes of it."""
    answer = yield asked.question(
        Purpose.REPAIR,
        hypothesis=asked.node.hypothesis,
        answer=candidate.text[:_LONGEST_PATCH],
        problem=candidate.problem,
        form=asked.options.answer,
    )
    text = answer.text if isinstance(answer, Answer) else ""
    if not text.strip():
        asked.node.unreadable.append("there is no answer")
    mended = _read(asked, text) if text.strip() else candidate.model_copy()
    mended.mended = [*candidate.mended, candidate.problem]
    mended.repairs = candidate.repairs + 1
    return mended


def _read(asked: _Asking, text: str) -> Candidate:
    """Read a patch out of an answer, and apply it; what cannot be read is noted."""
    candidate, unreadable = read_patch(asked.options.answer, asked.state.code, text)
    if unreadable:
        asked.node.unreadable.append(unreadable)
    return candidate


def _compilable(asked: _Asking, indices: Sequence[int]) -> Plan[list[int]]:
    """Return which candidates compile and are new; what does not compile may be mended."""
    ready = yield from _checked(asked, indices)
    if asked.options.mend == "needed":
        for index in indices:
            while not (ready or asked.failed) and _mendable(asked, asked.node.candidates[index]):
                mended = yield from _repaired(asked, asked.node.candidates[index])
                asked.node.candidates[index] = mended
                ready = yield from _checked(asked, [index])
    return ready


def _checked(asked: _Asking, indices: Sequence[int]) -> Plan[list[int]]:
    """Let candidates be checked, and those mended at once that shall be."""
    node = asked.node
    ready: list[int] = []
    left = _new(asked, indices, ready)
    while left:
        patches = [Patch(name=f"p{index}", diff=node.candidates[index].diff) for index in left]
        checked = yield Check(node=node.name, patches=patches)
        if not isinstance(checked, Checked):
            asked.failed = True
            break
        broken = []
        for index, check in zip(left, checked.patches, strict=True):
            candidate = node.candidates[index]
            candidate.outcome = check.outcome
            if check.outcome in BUILT:
                ready.append(index)
            else:
                candidate.problem = _diagnostics(check)
                if asked.options.mend == "all" and _mendable(asked, candidate):
                    broken.append(index)
        mended = yield from together(
            {f"m{index}": _repaired(asked, node.candidates[index]) for index in broken}
        )
        for index, candidate in zip(broken, mended.values(), strict=True):
            node.candidates[index] = candidate
        left = _new(asked, broken, ready)
    return sorted(ready)


def _new(asked: _Asking, indices: Sequence[int], ready: Sequence[int]) -> list[int]:
    """Return the candidates that can be checked, and that nobody has thought of before."""
    node = asked.node
    known = {node.candidates[index].digest: node.name for index in ready} | asked.memory.digests
    new = []
    for index in indices:
        candidate = node.candidates[index]
        if not candidate.problem and not _repeats(asked, candidate, known):
            known[candidate.digest] = node.name
            new.append(index)
    return new


def _repeats(asked: _Asking, candidate: Candidate, known: Mapping[str, str]) -> bool:
    """Tell whether the same change is known; what became of it is told to the model from then."""
    if candidate.digest not in known:
        return False
    candidate.repeats = known[candidate.digest]
    lesson = asked.memory.lessons.get(candidate.digest)
    if lesson is not None and all(
        known_lesson.diff != lesson.diff for known_lesson in asked.state.lessons
    ):
        lesson = replace(lesson, inherited=False)
        asked.state = replace(asked.state, lessons=(*asked.state.lessons, lesson))
    return True


def _rebuilt(asked: _Asking, index: int, tried: Tried) -> Plan[list[int]]:
    """Let a patch be mended whose kernel does not build; return its index if it compiles then."""
    candidate = asked.node.candidates[index]
    candidate.problem = f"It does not build: {tried.reason}"[:LONGEST_PROBLEM]
    if candidate.repairs == asked.options.repairs:
        return []
    asked.node.candidates[index] = yield from _repaired(asked, candidate)
    return (yield from _compilable(asked, [index]))


def _diagnostics(check: PatchCheck) -> str:
    words = check.reason or str(check.outcome)
    errors = [
        f"{diagnostic.file}:{diagnostic.line or '?'}: {diagnostic.severity}: {diagnostic.message}"
        for diagnostic in check.diagnostics
    ]
    verdict = "does not compile" if check.outcome is PatchOutcome.DOES_NOT_COMPILE else "is no use"
    return "\n".join([f"It {verdict}: {words}", *errors[:20]])[:LONGEST_PROBLEM]


def _choice(asked: _Asking, ready: Sequence[int]) -> Plan[int]:
    """Return which of the patches that compile is built: the one that fits the hypothesis best."""
    node = asked.node
    if asked.options.select == "first" or len(ready) == 1:
        return ready[0]
    diffs = [node.candidates[index].diff for index in ready]
    answer = yield asked.question(Purpose.CONSISTENCY, hypothesis=node.hypothesis, patches=diffs)
    best = asked.read(answer, lambda text: answers.chosen(text, len(ready)))
    if isinstance(answer, Answer):
        node.consistency = answer.text[: answers.LONGEST_WORDS]
    return ready[best or 0]


def try_patch(memory: Memory, node: Node, candidate: Candidate) -> Plan[Tried | None]:
    """Try a patch until there is a verdict, and again before `resolved` is claimed.

    Return None if the platform came to none: that is no feedback, and another may try the same.
    """
    decided = False
    memory.digests[candidate.digest] = node.name
    try:
        validated = 0
        for number in range(_AGAIN + memory.validate_with):
            tried = yield Try(node=node.name, diff=candidate.diff, fresh=number)
            if not isinstance(tried, Tried):
                return None
            node.runs.append(tried)
            if tried.verdict is Verdict.INCONCLUSIVE or tried.noise:
                continue
            if not tried.resolved or validated == memory.validate_with:
                decided = True
                return tried
            validated += 1
        return None
    finally:
        if not decided:
            del memory.digests[candidate.digest]


def _given_up(asked: _Asking) -> Plan[State]:
    """End a cycle without a patch; have its last try summed up, for those that come after it."""
    node = asked.node
    node.outcome = NodeOutcome.NO_PATCH
    after = replace(asked.state, hypothesis=None)
    failed = next((candidate for candidate in reversed(node.candidates) if candidate.problem), None)
    if failed is None or asked.options.summaries != "always":
        return after
    patch = failed.diff or failed.text[:LONGEST_PROBLEM]
    answer = yield asked.question(
        Purpose.SUMMARY,
        hypothesis=node.hypothesis,
        patch=patch,
        verdict=NodeOutcome.NO_PATCH.value,
        after=None,
        obstacles=[failed.problem],
        findings=[],
        built=False,
    )
    if isinstance(answer, Answer):
        node.summary = answer.text.strip()[:_SUMMARY]
    outcome = failed.problem.partition("\n")[0][:_OUTCOME]
    lesson = Lesson(patch, outcome, node.summary)
    asked.memory.lessons[failed.digest or node.name] = lesson
    return replace(after, lessons=(*after.lessons, lesson))


def _learned(asked: _Asking, candidate: Candidate, tried: Tried) -> Plan[State]:
    """Note how the cycle ended; return the state for its children."""
    state, node = asked.state, asked.node
    if tried.resolved:
        node.outcome = NodeOutcome.RESOLVED
        return state
    crashed = tried.crash is not None
    node.outcome = NodeOutcome.CRASHED if crashed else NodeOutcome.REJECTED
    if asked.options.summaries in {True, "always"}:
        answer = yield asked.question(
            Purpose.SUMMARY,
            hypothesis=node.hypothesis,
            patch=candidate.diff,
            verdict=str(tried.verdict),
            after=tried.crash.model_dump() if tried.crash else None,
            obstacles=tried.obstacles,
            findings=[finding.message for finding in tried.findings],
            built=True,
        )
        if isinstance(answer, Answer):
            node.summary = answer.text.strip()[:_SUMMARY]
    supposed = (node.hypothesis or "") if asked.options.summaries == "hypothesis" else ""
    lesson = Lesson(candidate.diff, tried.outcome, node.summary, supposed[:_SUPPOSED], crashed)
    asked.memory.lessons[candidate.digest] = lesson
    lessons = (*state.lessons, lesson)
    if tried.crash is None:  # what silences the kernel is nothing to build upon
        return replace(state, lessons=lessons, hypothesis=node.hypothesis)
    after = state.code.edited(candidate.edits)
    return replace(
        state, code=after, crash=tried.crash, lessons=lessons, hypothesis=node.hypothesis
    )
