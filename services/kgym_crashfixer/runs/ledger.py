"""The ledger of a run: what it has used, and what its limits still allow."""

from collections.abc import Sequence

from kgym.api.agent.conversation import Reply
from kgym.api.agent.nodes import Tried
from kgym.api.agent.runs import Limits, Spent
from kgym_crashfixer.search.work import Check, Checked, Question, Result, Try


class Ledger:
    """Counters of a run. Running work counts as much as the most expensive of its kind so far.

    A limit forbids new work of its kind and lets other work finish: a kernel that is being built
    when the money is spent may be the fix. A time limit ends all work at once.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.spent = Spent()
        self._dearest = 0.0
        self._longest = 0
        # Message of the limit that forbade the last piece of work.
        self.reached = ""
        self.over_time = f"the limit of {limits.seconds:g} seconds is reached"

    def passed(self, seconds: float) -> None:
        """Count elapsed time."""
        self._add(seconds=self.spent.seconds + seconds)

    def paid(self, reply: Reply | None) -> None:
        """Count the cost of a question; None means that it failed."""
        if reply is None:
            self._add(failed_calls=self.spent.failed_calls + 1)
            return
        spent = self.spent
        self._dearest = max(self._dearest, reply.price or 0.0)
        self._longest = max(self._longest, reply.input_tokens + reply.output_tokens)
        self._add(
            known_dollars=spent.known_dollars + (reply.price or 0.0),
            unpriced_calls=spent.unpriced_calls + (reply.price is None),
            calls=spent.calls + 1,
            input_tokens=spent.input_tokens + reply.input_tokens,
            cached_tokens=spent.cached_tokens + reply.cached_tokens,
            output_tokens=spent.output_tokens + reply.output_tokens,
            seconds_of_model=spent.seconds_of_model + reply.seconds,
        )

    def count_result(self, result: Result) -> None:
        """Count the platform's work for a result."""
        if isinstance(result, Checked):
            self._add(checks=self.spent.checks + 1)
        elif isinstance(result, Tried):
            self._add(builds=self.spent.builds + 1)

    def allows(self, work: object, running: Sequence[object]) -> bool:
        """Return whether work may begin beside the running work; if never, set `reached`."""
        if isinstance(work, Question):
            return self._question(sum(isinstance(other, Question) for other in running))
        if isinstance(work, Check | Try):
            if sum(isinstance(other, Check | Try) for other in running) >= self._limits.jobs:
                return False
            builds = self.spent.builds + sum(isinstance(other, Try) for other in running)
            if isinstance(work, Try) and builds >= self._limits.builds:
                return self._over(f"the limit of {self._limits.builds} builds is reached")
        return True

    def _question(self, asking: int) -> bool:
        limits, spent = self._limits, self.spent
        if asking >= limits.concurrency:
            return False
        # Questions in flight have no price yet: count each as the largest so far, or many at once
        # could exceed the limit together.
        tokens = spent.input_tokens + spent.output_tokens + asking * self._longest
        if tokens >= limits.tokens:
            return self._over(f"the limit of {limits.tokens} tokens is reached")
        if limits.dollars is None:
            return True
        # An unknown price is not 0: a run with a budget in dollars ends.
        if spent.unpriced_calls:
            return self._over(
                "price_unknown: the price of this model is unknown, so a limit in dollars cannot be"
                " enforced; set one in tokens"
            )
        if spent.known_dollars + asking * self._dearest >= limits.dollars:
            return self._over(f"the limit of {limits.dollars:g} dollars is reached")
        return True

    def _over(self, reason: str) -> bool:
        self.reached = reason
        return False

    def _add(self, **new: float) -> None:
        self.spent = self.spent.model_copy(update=new)
