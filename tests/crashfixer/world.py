"""A kernel of one file, a model that guesses at random, and a platform: all made up, and quick.

The bug is gone when `LIMIT` reads 16. What else is written there may not compile (a word), not
build (88), crash as before (another number), or keep the kernel quiet (0).
"""

import random
import re
from collections.abc import Callable

from pydantic import JsonValue

from kgym.api.agent.conversation import ToolCall, Turn
from kgym.api.agent.nodes import Crash, Tried
from kgym.api.steps import PatchCheck, PatchOutcome, Verdict
from kgym_crashfixer.search import work
from kgym_crashfixer.search.code import Code
from kgym_crashfixer.search.cycle import State
from kgym_crashfixer.search.engine import Asked
from kgym_crashfixer.search.search import Search

FILE, FURTHER = "kernel/watch.c", "kernel/further.c"
TEXT = "#define OTHER 1\n#define LIMIT 99\nint f(int n) { return n < LIMIT; }\n"
FIRST = State(Code({FILE: TEXT}), Crash(title="KASAN: out-of-bounds in f", report="BUG: f"))
# Answers of whole functions: one that changes nothing, and such as cannot be used.
WHOLE = (
    f"<file>{FILE}</file><function>int f(int n) {{ return n < LIMIT; }}</function>",
    f"<file>{FILE}</file><function>int g(int n) {{ return n; }}</function>",
    "<function>int f(int n) {</function>",
    "<function>",
)


def edit(old: str, new: str) -> str:
    return (
        f"<reason>it is wrong</reason><file>{FILE}</file>\n"
        f"<original>\n#define LIMIT {old}\n</original>\n<patched>\n#define LIMIT {new}\n</patched>"
    )


def limit(text: str) -> str:
    match = re.search(r"#define LIMIT (\w+)", text)
    assert match is not None
    return match[1]


class World:
    """Answers a search's questions by chance; the same seed gives the same answers."""

    def __init__(
        self, seed: int, guesses: list[str], flaky: float = 0.0, away: float = 0.0
    ) -> None:
        self.seed, self.guesses, self.flaky, self.away = seed, guesses, flaky, away
        self.done: list[tuple[Asked, work.Result]] = []

    def result(self, asked: Asked) -> work.Result:
        """Do the work; what it comes to depends on its name alone."""
        result = self._result(asked)
        self.done.append((asked, result))
        return result

    def questions(
        self, purpose: work.Purpose | None = None, node: str | None = None
    ) -> list[work.Question]:
        """Return the questions that were answered, optionally of a purpose or a node."""
        asked = [asked.work for asked, _ in self.done if isinstance(asked.work, work.Question)]
        wanted = [question for question in asked if purpose in {None, question.purpose}]
        return [question for question in wanted if node in {None, question.node}]

    def _result(self, asked: Asked) -> work.Result:
        chance = random.Random(f"{self.seed} {asked.name}")
        if chance.random() < self.away:
            return work.Unanswered(reason="the platform is away")
        match asked.work:
            case work.Question() as question:
                return self._answer(question, chance)
            case work.Source(tool="definition"):
                return work.Seen(text=TEXT, paths=[chance.choice([FILE, FURTHER])])
            case work.Source():
                return work.Seen(text=TEXT)
            case work.Check(patches=patches):
                return work.Checked(patches=[_checked(patch.diff or "") for patch in patches])
            case work.Try(diff=diff):
                return self._tried(diff, chance)
        return work.Unanswered(reason="nobody does it")

    def _answer(self, question: work.Question, chance: random.Random) -> work.Result:
        match question.purpose:
            case work.Purpose.HYPOTHESIS:
                return work.Answer(text=f"<solution>It is {chance.choice(self.guesses)}</solution>")
            case work.Purpose.HYPOTHESES:
                return self._ranked(question.values["count"], chance)
            case work.Purpose.PATCHES:
                attempts = [self._patch(question, chance) for _ in range(question.values["count"])]
                return work.Answer(
                    text="".join(f"<attempt>{attempt}</attempt>" for attempt in attempts)
                )
            case work.Purpose.FILES | work.Purpose.DEFINITIONS:
                call = (_look if question.purpose is work.Purpose.FILES else _exploration)(chance)
                return work.Answer(text="I think", calls=[call] if chance.random() < 0.8 else [])
            case work.Purpose.PATCH | work.Purpose.FUNCTIONS | work.Purpose.REPAIR:
                return work.Answer(text=self._patch(question, chance))
            case work.Purpose.TOOL:
                name = chance.choice(["edit", "edit", "run_kernel", "check", "reset", "nonsense"])
                if chance.random() < 0.05:
                    name = "done"
                new = chance.choice(self.guesses)
                arguments = _replaced(question.turns, new) if name == "edit" else {}
                call = ToolCall(id="1", name=name, arguments=arguments)
                return work.Answer(text="I think", calls=[call] if chance.random() < 0.9 else [])
            case work.Purpose.REFLECTION | work.Purpose.CONSISTENCY:
                return work.Answer(text=f"<choice>{chance.randrange(1, 4)}</choice>")
            case _:
                return work.Answer(text=self._last_words(question, chance))

    def _last_words(self, question: work.Question, chance: random.Random) -> str:
        if question.purpose is work.Purpose.MESSAGE:
            return "<subject>mend it</subject><body>It was wrong.</body>"
        if question.purpose is work.Purpose.REVIEW:
            return "<approved/>" if chance.random() < 0.3 else self._patch(question, chance)
        return "it failed"

    def _patch(self, question: work.Question, chance: random.Random) -> str:
        if chance.random() < 0.1:
            return chance.choice(["", "<file>", edit("1000", "2"), "no idea"])
        if question.purpose is work.Purpose.FUNCTIONS and chance.random() < 0.2:
            return chance.choice(WHOLE)
        old = limit(question.values["files"].get(FILE, TEXT))
        return edit(old, chance.choice(self.guesses))

    def _ranked(self, count: int, chance: random.Random) -> work.Answer:
        if chance.random() < 0.1:
            return work.Answer(text=chance.choice(["", "no idea", "<ranking>1</ranking>"]))
        guesses = [chance.choice(self.guesses) for _ in range(count)]
        solutions = "".join(f"<solution>It is {guess}</solution>" for guess in guesses)
        ranking = ", ".join(str(chance.randrange(1, 6)) for _ in guesses)
        return work.Answer(text=f"{solutions}<ranking>{ranking}</ranking>")

    def _tried(self, diff: str, chance: random.Random) -> Tried:
        if chance.random() < self.flaky:
            return Tried(verdict=Verdict.INCONCLUSIVE, reason="the host went away")
        new = re.findall(r"^\+#define LIMIT (\w+)", diff, re.MULTILINE)[-1]
        if new == "16":
            return Tried(verdict=Verdict.NO_CRASH, confidence=0.95)
        if new == "88":
            return Tried(verdict="does_not_build", reason="ld: no")
        if new == "7" and chance.random() < 0.3:
            other = Crash(title="unrelated", report="net")
            return Tried(verdict=Verdict.OTHER_CRASH, crash=other, noise=True)
        if new == "0":
            return Tried(verdict=Verdict.NO_CRASH, obstacles=["early_return"])
        return Tried(verdict=Verdict.SAME_CRASH, crash=Crash(title=FIRST.crash.title, report=new))


def _look(chance: random.Random) -> ToolCall:
    """Return a look at the source, or the end of looking."""
    if chance.random() < 0.3:
        named: list[JsonValue] = [FURTHER, FILE, 3, FURTHER]
        arguments: dict[str, JsonValue] = {"files": named, "explanation": "it is there"}
        return ToolCall(id="1", name="name_files", arguments=arguments)
    name = chance.choice(["search", "read_file", "edit", "nonsense"])
    given: dict[str, dict[str, JsonValue]] = {"search": {"pattern": "LIMIT"}}
    return ToolCall(id="1", name=name, arguments=given.get(name, {"path": FILE}))


def _exploration(chance: random.Random) -> ToolCall:
    """Return what a model asks for that may see definitions; nothing ends it."""
    name = chance.choice(["definition", "definition", "enough", "nonsense"])
    arguments: dict[str, JsonValue] = {"name": chance.choice(["f", "struct", "g"])}
    if name == "enough":
        arguments = {"explanation": "the limit"}
    return ToolCall(id="1", name=name, arguments=arguments)


def _replaced(turns: list[Turn], new: str) -> dict[str, JsonValue]:
    """Return the arguments of an edit, after those that were made before."""
    old = "99"
    for turn in turns:
        for call in turn.calls:
            if call.name == "reset":
                old = "99"
            elif turn.results.get(call.id) == "edited" and isinstance(call.arguments, dict):
                old = limit(str(call.arguments["replacement"]))
    line = "#define LIMIT "
    return {"file": FILE, "original": line + old, "replacement": line + new}


def _checked(diff: str) -> PatchCheck:
    word = re.findall(r"^\+#define LIMIT (\w+)", diff, re.MULTILINE)[-1]
    good = word.isdigit()
    outcome = PatchOutcome.COMPILES if good else PatchOutcome.DOES_NOT_COMPILE
    return PatchCheck(
        name="p", outcome=outcome, reason="" if good else f"'{word}' undeclared", seconds=0
    )


Pick = Callable[[list[Asked]], int]


def run(search: Search, world: World, pick: Pick = lambda _: 0) -> list[tuple[str, work.Result]]:
    """Do the search's work, in the order that `pick` chooses; return what it was told."""
    results, ready = [], search.ask()
    while ready:
        asked = ready.pop(pick(ready))
        result = world.result(asked)
        search.tell(asked.name, result)
        results.append((asked.name, result))
        gone = set(search.dropped())
        ready = [asked for asked in ready if asked.name not in gone] + search.ask()
    return results
