"""Bugs that are drawn by chance, and models and platforms of stated skill, for simulated searches.

A bug has parts, mended one after the other; for each, one theory is right and others are wrong.
A model knows nothing but what its question shows, and what it thinks is drawn from `Skill`.
Nothing here is measured on a real model.
"""

import heapq
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from kgym.api.agent.conversation import ToolCall
from kgym.api.agent.nodes import Crash, Tried
from kgym.api.agent.strategy import Strategy
from kgym.api.steps import PatchCheck, PatchOutcome, Verdict
from kgym_crashfixer.search.code import Code
from kgym_crashfixer.search.cycle import State
from kgym_crashfixer.search.search import Search
from kgym_crashfixer.search.work import Answer, Check, Checked, Purpose, Question, Result, Seen, Try

FILE, FURTHER = "a.c", "b.c"
# The number of the theory that is right.
_RIGHT = 0
_PLUS = re.compile(r"^\+P(\d) (\w+)", re.MULTILINE)
_LINE = re.compile(r"^P(\d) (\w+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Skill:
    """What a model and its bugs are like. Shares are chances from 0 to 1."""

    # Mean chance over all bugs that a theory thought of freely is the right one ...
    insight: float = 0.3
    # ... which differs from bug to bug by a beta distribution; smaller: more differently.
    spread: float = 2.0
    # Wrong theories of a bug; each is half as popular as the one before.
    theories: int = 6
    # Shares of bugs with one, two and three places to mend, one crash behind the other.
    parts: tuple[float, ...] = (0.7, 0.25, 0.05)
    # Share of bugs whose fix is in no file of the report (CrashFixer, 6.1: 26 %).
    elsewhere: float = 0.26
    # Share of wrong theories that keep the kernel quiet instead of mending it ...
    silencers: float = 0.25
    # ... and of these, those that findings or controls give away.
    noticed: float = 0.8
    # Share of answers to equal questions that are the same theory: a model repeats itself.
    habit: float = 0.5
    # Chance of staying with the theory that has just failed.
    stubborn: float = 0.4
    # Chance of giving up a theory because it is shown to have failed, with what it taught ...
    learns: float = 0.7
    # ... and where only the changed code and the new crash show it.
    glances: float = 0.35
    # Whether what a failed patch supposed, and its result, teach as much as a summary: it is what a
    # plain agent has before it as well.
    supposition: bool = True
    # Share of patches of the right theory that are right.
    carries_out: float = 0.6
    # Insight of a patch that is written without a hypothesis, against one with it.
    at_once: float = 0.8
    # Chance of seeing the right hypothesis among several, or the right patch; else by chance.
    reflects: float = 0.6
    compiles: float = 0.75
    # Share of lists of edits that apply ...
    applies: float = 0.92
    # ... and of diffs as `git diff` writes them.
    applies_diff: float = 0.6
    # Share of repair turns that mend a patch.
    mends: float = 0.6
    # Skill on code that has a wrong patch, against code without.
    entangled: float = 0.85
    # Share of runs in which a kernel that has the bug does not crash.
    misses: float = 0.05
    inconclusive: float = 0.03
    # Mean number of looks at the source before the first edit of a plain agent.
    looks: int = 6
    # Insight if the fix is in no file of the report, but was searched for: all of the insight that
    # a plain agent has there, and the debug cycles after a search.
    outside: float = 0.5
    # Insight of each further hypothesis of one answer, against one that is asked for alone.
    listed: float = 0.5
    # Skill of ranking hypotheses in the answer that lists them, against a reflection of its own.
    # Whether it sees the right one is settled for each place to mend: asking again does not help.
    weighs: float = 0.75
    # Share of further patches of one answer that are the same as its first.
    alike: float = 0.5


@dataclass(frozen=True, slots=True)
class Prices:
    """In US dollars; tokens by the million. The defaults are of a large model of 2025."""

    read: float = 1.25
    # Of what an earlier question began with ...
    cached: float = 0.31
    # ... also of another debug cycle; else of the same cycle or conversation alone.
    across: bool = True
    written: float = 10.0
    # 5 s of a machine with 8 cores, at 0.40 an hour.
    check: float = 0.0006
    # Build and reproducer: 10 minutes of it.
    kernel: float = 0.067


# Tokens of an answer, thinking included; of one that holds several, for the first.
_WRITTEN = {
    Purpose.FILES: 500,
    Purpose.HYPOTHESES: 1500,
    Purpose.HYPOTHESIS: 1500,
    Purpose.REFLECTION: 1000,
    Purpose.PATCH: 1200,
    Purpose.PATCHES: 1200,
    Purpose.DIFF: 1200,
    Purpose.REPAIR: 1200,
    Purpose.CONSISTENCY: 800,
    Purpose.SUMMARY: 300,
    Purpose.TOOL: 500,
    Purpose.REVIEW: 300,
    Purpose.MESSAGE: 300,
}
# Tokens of each further hypothesis, with its weighing, or patch of one answer.
_FURTHER = 500
# Tokens of a report with its instructions, of a lesson, of what a tool shows.
_REPORT, _LESSON, _LOOKED = 2500, 500, 1500
_SECONDS = {Question: 30.0, Check: 5.0, Try: 300.0}


@dataclass(slots=True)
class Bug:
    """One bug, drawn by its seed."""

    seed: int
    skill: Skill
    parts: int = 1
    insight: float = 0.0
    elsewhere: bool = False
    # Tokens of its files ...
    size: float = 0.0
    # ... and of those that a search finds.
    further: float = 0.0
    # Wrong theories, by part, that keep the kernel quiet ...
    silent: set[tuple[int, int]] = field(default_factory=set)
    # ... and those of which findings tell then.
    noticed: set[tuple[int, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        chance, skill = random.Random(f"bug {self.seed}"), self.skill
        a = skill.insight * skill.spread
        self.insight = chance.betavariate(a, skill.spread - a)
        self.parts = chance.choices((1, 2, 3), skill.parts)[0]
        self.elsewhere = chance.random() < skill.elsewhere
        self.size = min(100_000.0, chance.lognormvariate(9.4, 0.8))  # the median is 12,000
        wrong = [(part, n) for part in range(self.parts) for n in range(1, skill.theories + 1)]
        self.silent = {theory for theory in wrong if chance.random() < skill.silencers}
        self.noticed = {theory for theory in wrong if chance.random() < skill.noticed}
        self.further = min(100_000.0, chance.lognormvariate(8.7, 0.8))  # the median is 6,000

    @property
    def state(self) -> State:
        """Where its searches begin."""
        text = "".join(f"P{part} bug\n" for part in range(self.parts))
        return State(Code({FILE: text}), Crash(title="crash in P0", report="0"))


class Mind:
    """Thinks of theories for a bug: the same in all that it is asked about it."""

    def __init__(self, bug: Bug, insight: float) -> None:
        self._skill, self._seed, self._insight = bug.skill, bug.seed, insight

    def theory(
        self, part: int, failed: Sequence[tuple[int, float]], share: float, chance: random.Random
    ) -> int:
        """Return the number of a theory, given those seen to fail and how clearly, oldest first."""
        skill = self._skill
        habits = random.Random(f"mind {self._seed} {part} {failed}")
        weights = self._weights(failed, share, habits)
        usual = habits.choices(range(len(weights)), weights)[0]
        if failed and habits.random() < skill.stubborn:
            usual = failed[-1][0]
        if chance.random() < skill.habit:
            return usual
        return chance.choices(range(len(weights)), weights)[0]

    def theories(
        self, part: int, failed: Sequence[tuple[int, float]], many: int, chance: random.Random
    ) -> list[int]:
        """Return different theories of one answer, as they come to mind.

        The first is thought of freely. Of the further ones each is right more rarely (`listed`).
        """
        skill = self._skill
        theories = [self.theory(part, failed, 1.0, chance)]
        habits = random.Random(f"list {self._seed} {part} {failed} {theories}")
        weights = self._weights(failed, skill.listed, habits)
        while len(theories) < many:
            weights[theories[-1]] = 0.0
            if not any(weights):
                break
            again = habits if chance.random() < skill.habit else chance
            theories.append(again.choices(range(len(weights)), weights)[0])
        return theories

    def sees(self, part: int) -> bool:
        """Tell whether the right theory is seen among several of one answer: always, or never."""
        skill = self._skill
        return random.Random(f"sees {self._seed} {part}").random() < skill.reflects * skill.weighs

    def _weights(
        self, failed: Sequence[tuple[int, float]], share: float, habits: random.Random
    ) -> list[float]:
        right = self._insight * share
        popular = [0.5**number for number in range(self._skill.theories)]
        weights = [right, *((1 - right) * share / sum(popular) for share in popular)]
        for theory, clearly in failed:
            # What failed by its execution alone is not given up as easily.
            if habits.random() < (clearly / 2 if theory == _RIGHT else clearly):
                weights[theory] *= 0.05
        return weights


class Simulation:
    """Does the work of searches for a fix of one bug, and counts what it costs."""

    def __init__(self, bug: Bug, prices: Prices, strategy: Strategy) -> None:
        self.bug, self.prices, self.strategy = bug, prices, strategy
        self.dollars = 0.0
        self.seconds = 0.0
        self.kernels = 0
        self.runs = 0
        # Whether the patch that was claimed to be a fix is one; None without a claim.
        self.right: bool | None = None
        blind = bug.elsewhere and strategy.localisation == "report"
        self._mind = Mind(bug, 0.0 if blind else bug.insight)
        self._searching = Mind(bug, bug.insight * (bug.skill.outside if bug.elsewhere else 1.0))
        self._read: dict[str, float] = {}
        self._talks: dict[str, Talk] = {}

    def search(self, limit: float) -> bool:
        """Search once, until a fix is claimed, nothing is left, or the limit in dollars is met."""
        search = Search(self.strategy, self.bug.state)
        self.runs += 1
        self._read, self._talks = {}, {}
        now, order = self.seconds, count()
        under_way: list[tuple[float, int, str, Question | Check | Try]] = []
        while not search.done:
            for asked in search.ask():
                ends = now + _SECONDS.get(type(asked.work), 1.0)
                heapq.heappush(under_way, (ends, next(order), asked.name, asked.work))
                self._pay(asked.work)
            if self.dollars > limit:
                search.stop()
                break
            now, _, name, work = heapq.heappop(under_way)
            search.tell(name, self._result(name, work))
            if gone := set(search.dropped()):
                under_way = [work for work in under_way if work[2] not in gone]
                heapq.heapify(under_way)
        self.seconds = now
        fixes = search.fixes()
        if fixes:
            self.right = all(token == "ok" for _, token in _tokens(self.bug, fixes[0].diff))
        return bool(fixes)

    def _pay(self, work: Question | Check | Try) -> None:
        """Pay for work as it begins: what is dropped has cost the same."""
        prices = self.prices
        match work:
            case Check():
                self.dollars += prices.check
            case Try():
                self.dollars += prices.kernel
                self.kernels += 1
            case Question(purpose=Purpose.TOOL | Purpose.FILES):
                before = _REPORT + _LESSON * len(work.values["lessons"])
                before += (_LOOKED + _WRITTEN[Purpose.TOOL]) * len(work.turns)
                self._tokens(work, f"talk {work.node}", before)
            case Question():
                values = work.values
                lessons = _LESSON * len(values["lessons"])
                files = self.bug.size + (self.bug.further if FURTHER in values["files"] else 0)
                began = (values["report"], *values["files"].items())
                begins = str(began) if prices.across else work.node
                self._tokens(work, begins, _REPORT + files + lessons)

    def _tokens(self, work: Question, begins: str, read: float) -> None:
        """Pay for a question that reads so many tokens; `begins` tells with which it begins."""
        cached = min(read, self._read.get(begins, 0.0))
        self._read[begins] = read
        written = _WRITTEN[work.purpose] + _FURTHER * (work.values.get("count", 1) - 1)
        prices = self.prices
        dollars = cached * prices.cached + (read - cached) * prices.read
        self.dollars += (dollars + written * prices.written) / 1e6

    def _result(self, name: str, work: object) -> Result:
        chance = random.Random(f"{self.bug.seed} {self.runs} {name}")
        match work:
            case Question(purpose=Purpose.TOOL):
                talk = self._talks.setdefault(work.node, Talk(self.bug, self._searching))
                return talk.answer(work, chance)
            case Question(purpose=Purpose.FILES):
                return self._looked(work, chance)
            case Question():
                return Answer(text=self._answer(work, chance))
            case Check(patches=patches):
                return Checked(patches=[_checked(patch.diff or "") for patch in patches])
            case Try(diff=diff):
                return _tried(self.bug, diff, chance)
        return Seen(text="".join(self.bug.state.code.texts.values()))

    def _looked(self, question: Question, chance: random.Random) -> Answer:
        """Look as often as a plain agent does; then name the file, where there are turns for it."""
        wanted = _looks(self.bug.skill, random.Random(f"{self.bug.seed} {self.runs} looks"))
        done = len(question.turns) == wanted
        call = ToolCall(
            id=str(len(question.turns)),
            name="name_files" if done else "search",
            arguments={"files": [FILE, FURTHER], "explanation": ""} if done else {"pattern": "P"},
        )
        return Answer(calls=[call])

    def _answer(self, question: Question, chance: random.Random) -> str:
        skill, values = self.bug.skill, question.values
        match question.purpose:
            case Purpose.HYPOTHESES:
                return self._ranked(question, chance)
            case Purpose.PATCHES:
                patches = [self._patch(question, chance)]
                for _ in range(1, values["count"]):
                    alike = chance.random() < skill.alike
                    patches.append(patches[0] if alike else self._patch(question, chance))
                return "".join(f"<attempt>{patch}</attempt>" for patch in patches)
            case Purpose.HYPOTHESIS:
                return f"<solution>{self._theory(question, 1.0, chance)}</solution>"
            case Purpose.REFLECTION:
                right = [text == str(_RIGHT) for text in values["hypotheses"]]
                return _choice(right, skill, chance)
            case Purpose.CONSISTENCY:
                right = [f"+P{values['report']} ok" in patch for patch in values["patches"]]
                return _choice(right, skill, chance)
            case Purpose.PATCH | Purpose.DIFF:
                return self._patch(question, chance)
            case Purpose.REPAIR:
                before = dict(_LINE.findall(values["files"][FILE]))
                after = dict(re.findall(r"P(\d) (\w+)\n(?:</patched>|<!)", values["answer"]))
                mended = chance.random() < skill.mends
                if mended:
                    after = {part: token.removeprefix("bad") for part, token in after.items()}
                return _edits(before, after, values["form"] == "diff", good=mended)
        return "<approved/> it failed"

    def _patch(self, question: Question, chance: random.Random) -> str:
        values, skill = question.values, self.bug.skill
        words = values["hypothesis"]
        theory = int(words) if words is not None else self._theory(question, skill.at_once, chance)
        before = dict(_LINE.findall(values["files"][FILE]))
        after = _patch(self.bug, before, int(values["report"]), theory, chance)
        return _written(before, after, question.purpose is Purpose.DIFF, skill, chance)

    def _ranked(self, question: Question, chance: random.Random) -> str:
        """List theories, and rank the right one first if it is seen; else another one by chance."""
        part, failed = int(question.values["report"]), self._failed(question)
        mind = self._thinks(question)
        theories = mind.theories(part, failed, question.values["count"], chance)
        best = chance.randrange(len(theories))
        if _RIGHT in theories and mind.sees(part):
            best = theories.index(_RIGHT)
        order = [best, *(at for at in range(len(theories)) if at != best)]
        ranking = ", ".join(str(at + 1) for at in order)
        solutions = "".join(f"<solution>{theory}</solution>\n" for theory in theories)
        return f"{solutions}<ranking>{ranking}</ranking>"

    def _theory(self, question: Question, share: float, chance: random.Random) -> int:
        """Think about the part that crashes, by what the question shows to have failed."""
        part, failed = int(question.values["report"]), self._failed(question)
        return self._thinks(question).theory(part, failed, share, chance)

    def _thinks(self, question: Question) -> Mind:
        """Return who thinks: a mind without the file that a fix is in sees nothing there."""
        return self._searching if FURTHER in question.values["files"] else self._mind

    def _failed(self, question: Question) -> list[tuple[int, float]]:
        """Return the theories that the question shows to have failed, and how clearly."""
        values, skill = question.values, self.bug.skill
        part = int(values["report"])
        failed = [
            (theory, _clearly(lesson, skill))
            for lesson in values["lessons"]
            if (theory := _theory_in(lesson["diff"], part)) is not None
        ]
        here = _theory_in(values["changed"], part)
        if here is not None and all(theory != here for theory, _ in failed):
            failed.append((here, skill.glances))
        return failed


class Talk:
    """A plain agent's side of a conversation."""

    def __init__(self, bug: Bug, mind: Mind) -> None:
        self._bug, self._mind = bug, mind
        self._code = {str(part): "bug" for part in range(bug.parts)}
        self._failed: dict[int, list[tuple[int, float]]] = {}
        self._part = 0
        self._plan: Iterator[ToolCall] | None = None
        self._numbers = count()

    def answer(self, question: Question, chance: random.Random) -> Answer:
        """Return the next call of a tool."""
        if self._plan is None:
            for lesson in question.values["lessons"]:
                for part in range(self._bug.parts):
                    theory = _theory_in(lesson["diff"], part)
                    if theory is not None:
                        self._failed.setdefault(part, []).append((theory, self._bug.skill.learns))
            self._plan = self._calls(chance)
        self._result = ""
        if question.turns and question.turns[-1].results:
            (self._result,) = question.turns[-1].results.values()
        self._chance = chance
        return Answer(calls=[next(self._plan)])

    def _calls(self, chance: random.Random) -> Iterator[ToolCall]:
        """Look around; then think, edit, check and run a kernel, until there are no more."""
        for _ in range(_looks(self._bug.skill, chance)):
            yield self._call("search", {"pattern": "P"})
        while True:
            failed = self._failed.setdefault(self._part, [])
            theory = self._mind.theory(self._part, failed, 1.0, self._chance)
            yield self._call("read_file", {"path": FILE})
            yield from self._edits(theory)
            yield from self._compiled()
            yield self._call("run_kernel", {})
            if "there is no tool" in self._result or "no further kernel" in self._result:
                break
            if "no verdict" in self._result:
                continue
            match = re.match(r"crash reproduced: crash in P(\d)", self._result)
            crashed = int(match[1]) if match else self._part
            if crashed == self._part:  # else the part that was worked on is mended
                failed.append((theory, self._bug.skill.learns))
            self._part = crashed
        yield self._call("done", {})

    def _edits(self, theory: int) -> Iterator[ToolCall]:
        after = _patch(self._bug, self._code, self._part, theory, self._chance)
        for part, token in after.items():
            applies = False
            while not applies and token != self._code[part]:
                applies = self._chance.random() < self._bug.skill.applies
                yield self._edit(part, token, applies=applies)
            self._code[part] = token

    def _compiled(self) -> Iterator[ToolCall]:
        yield self._call("check", {})
        while "does not compile" in self._result:
            part, token = next(item for item in self._code.items() if item[1][:3] == "bad")
            if self._chance.random() < self._bug.skill.mends:
                yield self._edit(part, token.removeprefix("bad"), applies=True)
                self._code[part] = token.removeprefix("bad")
            yield self._call("check", {})

    def _call(self, name: str, arguments: dict[str, str]) -> ToolCall:
        return ToolCall(id=str(next(self._numbers)), name=name, arguments=dict(arguments))

    def _edit(self, part: str, token: str, *, applies: bool) -> ToolCall:
        original = f"P{part} {self._code[part] if applies else 'wrong'}\n"
        replacement = f"P{part} {token}\n"
        return self._call("edit", {"file": FILE, "original": original, "replacement": replacement})


def _looks(skill: Skill, chance: random.Random) -> int:
    """Return how often an agent looks at the source before it has seen enough."""
    return 1 + int(chance.expovariate(1 / skill.looks))


def _patch(
    bug: Bug, code: dict[str, str], part: int, theory: int, chance: random.Random
) -> dict[str, str]:
    """Return the parts that a patch changes, by a theory about one of them."""
    skill = bug.skill
    skilled = skill.carries_out * (1.0 if code[str(part)] == "bug" else skill.entangled)
    token = f"w{theory}v{chance.randrange(3)}"
    if theory == _RIGHT:
        token = "ok" if chance.random() < skilled else f"w0v{chance.randrange(3)}"
    after = {str(part): token}
    if token == "ok" and part + 1 < bug.parts and chance.random() < 0.3:
        after[str(part + 1)] = "ok"
    if chance.random() >= skill.compiles:
        after[str(part)] = f"bad{token}"
    return after


def _written(
    before: dict[str, str], after: dict[str, str], diff: bool, skill: Skill, chance: random.Random
) -> str:
    good = chance.random() < (skill.applies_diff if diff else skill.applies)
    return _edits(before, after, diff, good=good)


def _edits(before: dict[str, str], after: dict[str, str], diff: bool, *, good: bool) -> str:
    """Return an answer that changes the parts; one that cannot be applied unless it is good."""
    if diff:
        lines = []
        for part, token in before.items():
            old = f"P{part} {token if good else 'wrong'}\n"
            lines += [f"-{old}+P{part} {after[part]}\n" if part in after else f" {old}"]
        head = f"--- a/{FILE}\n+++ b/{FILE}\n@@ -1,{len(before)} +1,{len(before)} @@\n"
        return head + "".join(lines)
    return "".join(
        f"<file>{FILE}</file><original>\nP{part} {before[part] if good else 'wrong'}\n</original>"
        f"<patched>\nP{part} {token}\n</patched>"
        for part, token in after.items()
    )


def _choice(right: list[bool], skill: Skill, chance: random.Random) -> str:
    best = chance.randrange(len(right))
    if any(right) and chance.random() < skill.reflects:
        best = right.index(True)
    return f"<choice>{best + 1}</choice>"


def _clearly(lesson: dict[str, str], skill: Skill) -> float:
    """Return how clearly a lesson shows that its theory is wrong."""
    shown = lesson["summary"] or (lesson["hypothesis"] and skill.supposition)
    return skill.learns if shown else skill.glances


def _theory_in(diff: str, part: int) -> int | None:
    """Return the theory that a diff follows in a part; None where it leaves the part alone."""
    for number, token in _PLUS.findall(diff):
        match = re.match(r"(?:bad)?w(\d+)v", token)
        if int(number) == part and match:
            return int(match[1])
    return None


def _tokens(bug: Bug, diff: str) -> list[tuple[int, str]]:
    """Return what each part reads with a diff."""
    changed = dict(_PLUS.findall(diff))
    return [(part, changed.get(str(part), "bug")) for part in range(bug.parts)]


def _checked(diff: str) -> PatchCheck:
    good = "+P" in diff and " bad" not in diff
    outcome = PatchOutcome.COMPILES if good else PatchOutcome.DOES_NOT_COMPILE
    return PatchCheck(name="p", outcome=outcome, reason="" if good else "an error", seconds=0.0)


def _tried(bug: Bug, diff: str, chance: random.Random) -> Tried:
    """Crash at the first part that is neither mended nor kept quiet."""
    skill = bug.skill
    if chance.random() < skill.inconclusive:
        return Tried(verdict=Verdict.INCONCLUSIVE, reason="a machine failed")
    obstacles = []
    for part, token in _tokens(bug, diff):
        theory = re.match(r"w(\d+)v", token)
        if token == "ok":
            continue
        if theory and (part, int(theory[1])) in bug.silent:
            if (part, int(theory[1])) in bug.noticed:
                obstacles = ["check_removed"]
        elif chance.random() >= skill.misses:
            crash = Crash(title=f"crash in P{part}", report=str(part))
            return Tried(verdict=Verdict.SAME_CRASH, crash=crash)
    return Tried(verdict=Verdict.NO_CRASH, obstacles=obstacles, confidence=0.95)
