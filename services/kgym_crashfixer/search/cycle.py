"""A debug cycle (CrashFixer, sections 4.1 and 4.2): from a crash to a patch that was tried."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from kgym.api.agent.nodes import Candidate, CauseCommit, Crash, Node, NodeOutcome, Tried
from kgym.api.agent.strategy import Cycle
from kgym.api.steps import Patch, PatchCheck, PatchOutcome
from kgym_crashfixer.search import answers
from kgym_crashfixer.search.code import LONGEST_PROBLEM, Code, read_patch
from kgym_crashfixer.search.engine import Plan, single, together
from kgym_crashfixer.search.looks import Named, explored, named_files
from kgym_crashfixer.search.work import Answer, Check, Checked, Purpose, Question, Try, Unanswered

# Runs of a patch without a verdict, or with an unrelated crash.
_AGAIN = 3
# Outcomes of a check after which the kernel is built. A check that reached a limit has no answer;
# the build will give it.
BUILT = {PatchOutcome.COMPILES, PatchOutcome.OVER_LIMIT}
# Questions that want several different answers, and get the higher temperature.
_DIVERSE = {
    Purpose.HYPOTHESIS,
    Purpose.HYPOTHESES,
    Purpose.PATCH,
    Purpose.PATCHES,
    Purpose.FUNCTIONS,
    Purpose.DIFF,
}
# The question for each form of a patch.
_ASKED_FOR = {"edits": Purpose.PATCH, "functions": Purpose.FUNCTIONS, "diff": Purpose.DIFF}
# Failed patches in a prompt: the newest ones.
_LESSONS = 12
# Characters of a failed patch's hypothesis in later prompts.
_SUPPOSED = 2_000
# Characters of a patch in a repair question.
_LONGEST_PATCH = 64_000
# Characters of a summary.
_SUMMARY = 4_000
# Characters of the outcome of a patch that was not built.
_OUTCOME = 200
Read = TypeVar("Read")


@dataclass(frozen=True, slots=True)
class Lesson:
    """A failed patch, for the prompts of later cycles."""

    diff: str
    outcome: str
    summary: str
    hypothesis: str = ""
    """The patch's hypothesis, if prompts show it instead of a summary."""
    inherited: bool = False
    """Whether later cycles have its changes in their code."""


@dataclass(frozen=True, slots=True)
class State:
    """The start of a debug cycle: the code, its crash, and earlier failures."""

    code: Code
    crash: Crash
    lessons: tuple[Lesson, ...] = ()
    hypothesis: str | None = None
    cause: CauseCommit | None = None
    """The commit that introduced the bug, if known."""
    program: str = ""
    """The program that crashes the kernel, for prompts."""
    names: tuple[str, ...] = ()
    """Definitions that the model asked for; prompts show them."""
    discussion: bool = False
    """Whether the model may read mails on the bug."""


@dataclass(slots=True)
class Memory:
    """State that all cycles of a search share."""

    digests: dict[str, str] = field(default_factory=dict)
    """Nodes by the digest of the change that they tried, or are trying."""
    lessons: dict[str, Lesson] = field(default_factory=dict)
    """Failed changes by digest."""
    nodes: dict[str, Node] = field(default_factory=dict)
    named: Named | None = None
    """The files that the model named; None before its search for them."""
    first: Crash | None = None
    """The crash with which the search began."""
    trace: str | None = None
    """The calls before that crash, once they are known."""
    validate_with: int = 1

    def trace_of(self, crash: Crash) -> str | None:
        """Return the calls before a crash, if they are known."""
        return self.trace if crash is self.first else crash.trace

    def node(self, name: str, parent: Node | None, begins_at: str) -> Node:
        """Add a node."""
        depth = parent.depth + 1 if parent else 1
        node = Node(
            name=name, parent=parent.name if parent else None, depth=depth, begins_at=begins_at
        )
        self.nodes[name] = node
        return node


def cycle(options: Cycle, memory: Memory, state: State, node: Node) -> Plan[State]:
    """Run a debug cycle; return the state that its children inherit."""
    try:
        return (yield from _rounds(_Asking(options, memory, state, node)))
    finally:  # also if the cycle is dropped
        node.outcome = node.outcome or NodeOutcome.STOPPED


def first_hypotheses(options: Cycle, memory: Memory, state: State, node: Node) -> Plan[State]:
    """Run the first cycle up to its hypotheses, which others share; return their state."""
    asked = _Asking(options, memory, state, node)
    yield from _looked(asked)
    yield from _explored(asked)
    yield from _hypothesis(asked)
    return asked.state


def _rounds(asked: "_Asking") -> Plan[State]:
    """Go from a hypothesis to a patch that is tried; repeat while no patch compiles."""
    yield from _looked(asked)
    yield from _explored(asked)
    options, memory, state, node = asked.options, asked.memory, asked.state, asked.node
    for number in range(options.rounds):
        node.rounds = number + 1
        if number == 0 and state.hypothesis and (node.begins_at == "patch" or node.hypotheses):
            node.hypothesis = state.hypothesis
        # The first round of a `patch` child uses its parent's hypothesis; later rounds ask for a
        # new one.
        elif options.hypotheses:
            yield from _hypothesis(asked)
            if node.hypothesis is None:
                continue
        first = len(node.candidates)
        yield from _candidates(asked)
        ready = yield from _compilable(asked, range(first, len(node.candidates)))
        # A patch that compiles may still fail to build, or turn out to be another node's: try the
        # next.
        while ready:
            index = yield from _choice(asked, ready)
            ready.remove(index)
            if _repeats(asked, node.candidates[index], memory.digests):  # by another node meanwhile
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
    """Common parts of a cycle's questions."""

    options: Cycle
    memory: Memory
    state: State
    node: Node
    failed: bool = False
    """Whether the platform failed to answer."""

    def question(self, purpose: Purpose, **more: Any) -> Question:
        diverse = purpose in _DIVERSE
        crash = self.state.crash
        cause = self.state.cause if self.options.cause else None
        values: dict[str, Any] = {
            "title": crash.title,
            "report": crash.report,
            "program": self.state.program if self.options.program else "",
            "trace": self.memory.trace_of(crash) if self.options.trace else None,
            "files": dict(self.state.code.texts),
            "changed": self.state.code.diff,
            "cause": cause.model_dump() if cause else None,
            "names": [*self.state.names, *(fn.name for fn in (cause.functions if cause else ()))],
            "examples": self.options.examples,
            "lessons": [
                asdict(lesson)
                for lesson in self.state.lessons[-_LESSONS:]
                if self.options.summaries or not lesson.inherited
            ],
            "explanation": self.memory.named.explanation if self.memory.named else "",
            "reasons": self.options.reasons,
            "discussion": self.state.discussion,
            **more,
        }
        return Question(
            node=self.node.name,
            purpose=purpose,
            values=values,
            temperature=self.options.temperature if diverse else self.options.judging,
        )

    def read(self, answer: object, reader: Callable[[str], Read]) -> Read | None:
        """Parse an answer; record unreadable and missing ones in the node and return None."""
        if not isinstance(answer, Answer):
            self.node.unreadable.append(missing(answer))
            return None
        try:
            return reader(answer.text)
        except answers.UnreadableError as error:
            self.node.unreadable.append(str(error))
            return None


def missing(answer: object) -> str:
    """Return why a question has no answer."""
    return f"no answer: {answer.reason}" if isinstance(answer, Unanswered) else "no answer"


def _looked(asked: _Asking) -> Plan[None]:
    """Let the model name the candidate files, once in a search."""
    # Before the first hypothesis: if the fix belongs in another file, patches tried without that
    # file would be paid for in vain.
    options, memory, code = asked.options, asked.memory, asked.state.code
    if options.looks and memory.named is None:
        memory.named = Named()  # so that concurrent cycles do not search as well
        memory.named = yield from named_files(options, code, asked.question, asked.node)
    if memory.named is not None and memory.named.texts and asked.node.parent is None:
        asked.state = replace(asked.state, code=code.only(memory.named.texts))


def _explored(asked: _Asking) -> Plan[None]:
    """Let the model read definitions; without hypotheses, its explanation takes their place."""
    options, state, node = asked.options, asked.state, asked.node
    if not options.explore or node.hypotheses:  # `first_hypotheses` has explored
        return
    seen = yield from explored(options, state.code, asked.question, node)
    names = tuple(dict.fromkeys([*state.names, *seen.names]))
    asked.state = replace(state, code=state.code.with_files(seen.texts), names=names)
    if not options.hypotheses:
        node.hypothesis = seen.explanation or None


def _hypothesis(asked: _Asking) -> Plan[None]:
    """Ask for hypotheses, let the model weigh them, and keep its choice."""
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
    """Ask for patches; have those repaired that do not apply."""
    options, node = asked.options, asked.node
    if options.questions == "together" and options.patches > 1:
        plans = yield from _attempts(asked)
    else:
        plans = {f"p{number}": _candidate(asked) for number in range(options.patches)}
    made = yield from together(plans)
    node.candidates += [candidate for candidate in made.values() if candidate is not None]


def _attempts(asked: _Asking) -> Plan[dict[str, Plan[Candidate | None]]]:
    """Ask for all patches in one answer; return a plan for each that makes it apply."""
    wanted = asked.options.patches
    hypothesis = asked.node.hypothesis
    answer = yield asked.question(Purpose.PATCHES, hypothesis=hypothesis, count=wanted)
    texts = (asked.read(answer, answers.attempts) or [])[:wanted]
    return {f"p{number}": _applicable(asked, text) for number, text in enumerate(texts)}


def _candidate(asked: _Asking) -> Plan[Candidate | None]:
    purpose = _ASKED_FOR[asked.options.answer]
    answer = yield asked.question(purpose, hypothesis=asked.node.hypothesis)
    text = asked.read(answer, str)
    return None if text is None else (yield from _applicable(asked, text))


def _applicable(asked: _Asking, text: str) -> Plan[Candidate | None]:
    """Parse a patch; have it repaired while it does not apply."""
    candidate = _read(asked, text)
    while asked.options.mend == "all" and _mendable(asked, candidate):
        candidate = yield from _repaired(asked, candidate)
    return candidate


def _mendable(asked: _Asking, candidate: Candidate) -> bool:
    return bool(candidate.problem) and candidate.repairs < asked.options.repairs


def _repaired(asked: _Asking, candidate: Candidate) -> Plan[Candidate]:
    """Ask once for a repair of a candidate; return the new candidate."""
    answer = yield asked.question(
        Purpose.REPAIR,
        hypothesis=asked.node.hypothesis,
        answer=candidate.text[:_LONGEST_PATCH],
        problem=candidate.problem,
        form=asked.options.answer,
    )
    text = asked.read(answer, str) or ""
    mended = _read(asked, text) if text.strip() else candidate.model_copy()
    mended.mended = [*candidate.mended, candidate.problem]
    mended.repairs = candidate.repairs + 1
    return mended


def _read(asked: _Asking, text: str) -> Candidate:
    """Parse a patch and apply it; record unreadable answers in the node."""
    candidate, unreadable = read_patch(asked.state.code, text)
    if unreadable:
        asked.node.unreadable.append(unreadable)
    return candidate


def _compilable(asked: _Asking, indices: Sequence[int]) -> Plan[list[int]]:
    """Return the candidates that are new and compile, some after a repair."""
    ready = yield from _checked(asked, indices)
    if asked.options.mend == "needed":
        for index in indices:
            while not (ready or asked.failed) and _mendable(asked, asked.node.candidates[index]):
                mended = yield from _repaired(asked, asked.node.candidates[index])
                asked.node.candidates[index] = mended
                ready = yield from _checked(asked, [index])
    return ready


def _checked(asked: _Asking, indices: Sequence[int]) -> Plan[list[int]]:
    """Have candidates checked; repair failures at once if the strategy mends all."""
    node = asked.node
    ready: list[int] = []
    # One check job for all patches: a check takes a second, but a job has to be claimed first.
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
    """Return the candidates that apply and that no node had before."""
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
    """Return whether a change is known; if it failed, add the failure to later prompts."""
    if candidate.digest not in known:
        return False
    candidate.repeats = known[candidate.digest]
    lesson = asked.memory.lessons.get(candidate.digest)
    if lesson is not None and lesson.diff not in {old.diff for old in asked.state.lessons}:
        lesson = replace(lesson, inherited=False)
        asked.state = replace(asked.state, lessons=(*asked.state.lessons, lesson))
    return True


def _rebuilt(asked: _Asking, index: int, tried: Tried) -> Plan[list[int]]:
    """Have a patch repaired whose kernel does not build; return its index if it then compiles."""
    candidate = asked.node.candidates[index]
    candidate.problem = f"It does not build: {tried.reason}"[:LONGEST_PROBLEM]
    # A check compiles only the changed files, so errors of the linker show in the build alone.
    if candidate.repairs == asked.options.repairs:
        return []
    asked.node.candidates[index] = yield from _repaired(asked, candidate)
    return (yield from _compilable(asked, [index]))


def _diagnostics(check: PatchCheck) -> str:
    words = check.reason or str(check.outcome)
    errors = [
        f"{at.file}:{at.line or '?'}: {at.severity}: {at.message}" for at in check.diagnostics
    ]
    verdict = "does not compile" if check.outcome is PatchOutcome.DOES_NOT_COMPILE else "is no use"
    return "\n".join([f"It {verdict}: {words}", *errors[:20]])[:LONGEST_PROBLEM]


def _choice(asked: _Asking, ready: Sequence[int]) -> Plan[int]:
    """Choose the patch to build: of those that compile, the one that fits the hypothesis best."""
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
    """Try a patch until there is a verdict, and again before claiming `resolved`.

    Return None without a verdict. The change then counts as untried.
    """
    # The node holds the change's digest while it tries it, so that no kernel is built twice.
    decided = False
    memory.digests[candidate.digest] = node.name
    try:
        validated = 0
        for number in range(_AGAIN + memory.validate_with):
            traced = memory.trace is not None
            tried = yield Try(node=node.name, diff=candidate.diff, fresh=number, traced=traced)
            if not isinstance(tried, Tried):
                return None
            node.runs.append(tried)
            if tried.undecided:
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
    """End a cycle without a patch; have its last attempt summarised for later cycles."""
    node = asked.node
    node.outcome = NodeOutcome.NO_PATCH
    after = replace(asked.state, hypothesis=None)
    failed = next((candidate for candidate in reversed(node.candidates) if candidate.problem), None)
    if failed is None or asked.options.summaries != "always":
        return after
    patch = failed.diff or failed.text[:LONGEST_PROBLEM]
    yield from _summarised(
        asked,
        patch=patch,
        verdict=NodeOutcome.NO_PATCH.value,
        after=None,
        obstacles=[failed.problem],
        findings=[],
        built=False,
    )
    outcome = failed.problem.partition("\n")[0][:_OUTCOME]
    lesson = Lesson(patch, outcome, node.summary)
    asked.memory.lessons[failed.digest or node.name] = lesson
    return replace(after, lessons=(*after.lessons, lesson))


def _summarised(asked: _Asking, **failure: object) -> Plan[None]:
    """Have a failed patch summarised for later cycles."""
    hypothesis = asked.node.hypothesis
    answer = yield asked.question(Purpose.SUMMARY, hypothesis=hypothesis, **failure)
    if isinstance(answer, Answer):
        asked.node.summary = answer.text.strip()[:_SUMMARY]


def _learned(asked: _Asking, candidate: Candidate, tried: Tried) -> Plan[State]:
    """Record how the cycle ended; return the state for its children."""
    state, node = asked.state, asked.node
    if tried.resolved:
        node.outcome = NodeOutcome.RESOLVED
        return state
    crashed = tried.crash is not None
    node.outcome = NodeOutcome.CRASHED if crashed else NodeOutcome.REJECTED
    if asked.options.summaries in {True, "always"}:
        yield from _summarised(
            asked,
            patch=candidate.diff,
            verdict=str(tried.verdict),
            after=tried.crash.model_dump() if tried.crash else None,
            obstacles=tried.obstacles,
            findings=tried.messages,
            built=True,
        )
    supposed = (node.hypothesis or "") if asked.options.summaries == "hypothesis" else ""
    lesson = Lesson(candidate.diff, tried.outcome, node.summary, supposed[:_SUPPOSED], crashed)
    asked.memory.lessons[candidate.digest] = lesson
    lessons = (*state.lessons, lesson)
    if tried.crash is None:  # a patch that hides the crash is nothing to build upon
        return replace(state, lessons=lessons, hypothesis=node.hypothesis)
    after = state.code.edited(candidate.edits)
    return replace(
        state, code=after, crash=tried.crash, lessons=lessons, hypothesis=node.hypothesis
    )
