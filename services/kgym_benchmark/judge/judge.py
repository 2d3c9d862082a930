"""Collection of votes on patches, within limits; an interrupted collection can be continued.

Each vote is written to a file at once. A patch shared by several attempts is judged once. A patch
that is too long to be shown whole is not the developers' change: all its votes are "no", and the
model is not asked.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import Field, computed_field

from kgym import tasks
from kgym.api.steps import Sha256, Strict
from kgym.bench import attempt_files
from kgym.bench.attempt_record import AttemptRecord, BugId, Cost, Votes
from kgym.bench.dataset import Dataset
from kgym.errors import UserError
from kgym_benchmark.judge.question import PATCH, Question, question, verdict

# As in Live-kBench section 5.1.
VOTES, MAJORITY = 9, 5
MOST_VOTES = 99
# Attempts at a vote whose answer cannot be read.
TRIES = 2
FILE = "votes.jsonl"


@dataclass(frozen=True, slots=True)
class Answer:
    """A model's answer; `dollars` is None if its price is unknown."""

    text: str
    dollars: float | None


# Asks a model; the second argument distinguishes equal questions. A UserError ends the judging.
Ask = Callable[[Question, str], Awaitable[Answer]]


class Vote(Strict):
    """A line of the file of votes: one answer about one patch on one bug."""

    bug: BugId
    question: Sha256
    judge: str = Field(max_length=1000, description="the model")
    vote: int = Field(ge=0, lt=1000)
    equivalent: bool | None = Field(description="null: none of the answers could be read")
    dollars: Cost | None


@dataclass(frozen=True, slots=True)
class JudgeOptions:
    """The options of a judge."""

    model: str
    votes: int = VOTES
    blind: bool = False
    unresolved: bool = False
    """Whether unresolved patches are judged too."""
    dollars: float | None = None
    """Limit of all answers, including earlier ones in this file."""
    at_once: int = 4


@dataclass(slots=True)
class Judged:
    """The result of judging."""

    attempts: list[AttemptRecord] = field(default_factory=list)
    """All attempts, with votes if they were judged."""
    patches: int = 0
    asked: int = 0
    """Answers paid for by this call."""
    dollars: float = 0.0
    """Cost of all votes in the file."""
    without_fix: int = 0
    """Attempts with a patch on bugs whose fix is unknown, which cannot be judged."""
    unfinished: int = 0
    """Patches without all votes, because a limit was reached."""


class _Spent(Exception):
    """No further answer may be paid for."""


class Judge:
    """Collector of votes in a folder."""

    def __init__(self, folder: Path, options: JudgeOptions, ask: Ask) -> None:
        self._path, self._options, self._ask = folder / FILE, options, ask
        self._votes: dict[tuple[str, str], dict[int, Vote]] = defaultdict(dict)
        self._asked, self._dollars, self._reserved = 0, 0.0, 0.0
        self._dearest = 0.0
        for vote in _read(self._path):
            self._dollars += vote.dollars or 0.0
            self._dearest = max(self._dearest, vote.dollars or 0.0)
            if vote.judge == options.model:
                self._votes[vote.bug, vote.question][vote.vote] = vote

    async def judge(self, dataset: Dataset, attempts: Sequence[AttemptRecord]) -> Judged:
        """Collect the missing votes on patches; return the attempts with their votes."""
        bugs = {bug.id: bug for bug in dataset.bugs}
        wanted: dict[tuple[str, str], list[Question]] = {}
        of: dict[int, tuple[str, str]] = {}
        too_long = set[int]()
        without_fix = 0
        for place, attempt in enumerate(attempts):
            bug = bugs.get(attempt.bug)
            if (
                bug is None
                or not attempt.diff
                or not (attempt.resolved or self._options.unresolved)
            ):
                continue
            if len(attempt.diff) > PATCH:
                too_long.add(place)
                continue
            asked = [
                question(bug, attempt.diff, vote=vote, blind=self._options.blind)
                for vote in range(self._options.votes)
            ]
            if (first := asked[0]) is not None:
                of[place] = key = (bug.id, first.digest)
                wanted[key] = [
                    asked_question for asked_question in asked if asked_question is not None
                ]
            else:
                without_fix += 1
        await self._collect(wanted)
        judged = Judged(patches=len(wanted), asked=self._asked, dollars=self._dollars)
        judged.without_fix = without_fix
        judged.unfinished = sum(self._counted(key) is None for key in wanted)
        for place, attempt in enumerate(attempts):
            votes = self._counted(of[place]) if place in of else None
            if place in too_long:
                votes = Votes(yes=0, no=self._options.votes)
            judged.attempts.append(
                attempt if votes is None else attempt.model_copy(update={"votes": votes})
            )
        return judged

    def _counted(self, key: tuple[str, str]) -> Votes | None:
        """Return the votes on a patch; None while some are missing."""
        votes = self._votes[key]
        if any(vote not in votes for vote in range(self._options.votes)):
            return None
        words = [votes[vote].equivalent for vote in range(self._options.votes)]
        return Votes(yes=words.count(True), no=words.count(False), failed=words.count(None))

    def _is_undecided(self, key: tuple[str, str]) -> bool:
        votes = self._counted(key)
        return votes is not None and votes.equivalent is None

    async def _collect(self, wanted: dict[tuple[str, str], list[Question]]) -> None:
        open_ = iter(
            [
                (key, vote, asked_question)
                for key, asked in wanted.items()
                for vote, asked_question in enumerate(asked)
                if vote not in (votes := self._votes[key])
                or (votes[vote].equivalent is None and self._is_undecided(key))
            ]
        )

        async def work() -> None:
            for key, vote, asked_question in open_:
                await self._vote(key, vote, asked_question)

        workers = [asyncio.create_task(work()) for _ in range(self._options.at_once)]
        try:
            await asyncio.gather(*workers)
        except _Spent:
            await asyncio.gather(*workers, return_exceptions=True)  # keep answers already paid for
        finally:
            await tasks.end(workers)

    async def _vote(self, key: tuple[str, str], vote: int, asked: Question) -> None:
        is_equivalent, dollars = None, 0.0
        for number in range(TRIES):
            limit = self._options.dollars
            # Each running question reserves the price of the dearest answer so far, so that
            # concurrent ones do not exceed the limit together.
            if limit is not None and self._dollars + self._reserved + self._dearest > limit:
                raise _Spent
            self._reserved += (reserved := self._dearest)
            try:
                answer = await self._ask(asked, f"vote {vote}, try {number}")
            finally:
                self._reserved -= reserved
            self._asked += 1
            if answer.dollars is None and limit is not None:
                raise UserError(
                    "price_unknown",
                    f"the price of {self._options.model} is unknown, so a limit in dollars cannot"
                    " be enforced: omit --dollars",
                )
            dollars += answer.dollars or 0.0
            self._dollars += answer.dollars or 0.0
            self._dearest = max(self._dearest, answer.dollars or 0.0)
            if (is_equivalent := verdict(answer.text)) is not None:
                break
        bug, digest = key
        line = Vote(
            bug=bug,
            question=digest,
            judge=self._options.model,
            vote=vote,
            equivalent=is_equivalent,
            dollars=dollars,
        )
        with self._path.open("a") as file:
            file.write(line.model_dump_json() + "\n")
        self._votes[key][vote] = line


def _read(path: Path) -> Iterable[Vote]:
    """Yield the votes of a file, if it exists; remove an incomplete last line."""
    if not path.exists():
        return
    # A killed process may have left half a line; its vote is asked for again.
    attempt_files.mend(path)
    yield from attempt_files.records(path, Vote)


class Agreement(Strict):
    """Agreement of a judge with people, whose labels count as true (Live-kBench Table 10)."""

    true_positive: int = Field(ge=0, description="both call the patch equivalent")
    true_negative: int = Field(ge=0)
    false_positive: int = Field(ge=0, description="only the judge does")
    false_negative: int = Field(ge=0)

    @classmethod
    def of(cls, pairs: Iterable[tuple[bool, bool]]) -> "Agreement":
        """Count pairs of the judge's label and the people's."""
        labels = list(pairs)
        return cls(
            true_positive=labels.count((True, True)),
            true_negative=labels.count((False, False)),
            false_positive=labels.count((True, False)),
            false_negative=labels.count((False, True)),
        )

    @computed_field  # type: ignore[prop-decorator]
    @property
    def accuracy(self) -> float | None:
        """Share of patches on which both agree; None if there are no patches."""
        right = self.true_positive + self.true_negative
        return _share(right, right + self.false_positive + self.false_negative)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def precision(self) -> float | None:
        """Share of equivalent patches among those that the judge calls equivalent."""
        return _share(self.true_positive, self.true_positive + self.false_positive)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def recall(self) -> float | None:
        """Share of the equivalent patches that the judge calls equivalent."""
        return _share(self.true_positive, self.true_positive + self.false_negative)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def f1(self) -> float | None:
        """Harmonic mean of precision and recall."""
        wrong = self.false_positive + self.false_negative
        return _share(2 * self.true_positive, 2 * self.true_positive + wrong)


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
