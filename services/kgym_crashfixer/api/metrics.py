"""Metrics for Prometheus.

Gauges are read from the stored runs when they are asked for, at most every few seconds: all
processes with the same folder show the same. Counters are of this process; their sum over the
processes is right, as each change is stored by one of them.
"""

from prometheus_client import Counter, Gauge

from kgym.api.agent.runs import RunState
from kgym.web import metrics
from kgym_crashfixer.runs.agent import Agent
from kgym_crashfixer.runs.run_store import Answered, Batch


class Metrics(metrics.Metrics):
    """The metrics of one agent, which calls `stored` with all that it stores."""

    def __init__(self, agent: Agent) -> None:
        super().__init__()
        self._agent = agent
        agent.observers.append(self.stored)
        own = self.registry
        self._runs = Gauge("kgym_agent_runs", "Runs there are", ["state"], registry=own)
        self._open = Gauge(
            "kgym_agent_open_questions",
            "Questions of runs under way that the model has not answered yet",
            registry=own,
        )
        self._ended = Counter(
            "kgym_agent_ended_runs", "Runs that ended, or were interrupted", ["state"], registry=own
        )
        self._calls = Counter(
            "kgym_agent_model_calls",
            "Questions to models: answered, failed, or dropped by the search",
            ["outcome"],
            registry=own,
        )
        self._tokens = Counter(
            "kgym_agent_tokens",
            "Tokens of answers; cached ones are input, too",
            ["kind"],
            registry=own,
        )
        self._dollars = Counter(
            "kgym_agent_dollars", "US dollars for answers whose price is known", registry=own
        )
        self._unpriced = Counter(
            "kgym_agent_unpriced_calls", "Answers whose price is not known", registry=own
        )

    def stored(self, batch: Batch) -> None:
        """Count what became of questions and of the run."""
        for answered in batch.answered:
            self._answered(answered)
        if batch.ended is not None:
            self._ended.labels(str(batch.ended[0])).inc()

    def _answered(self, answered: Answered) -> None:
        reply = answered.reply
        if reply is None:
            self._calls.labels("dropped" if answered.dropped else "failed").inc()
            return
        self._calls.labels("answered").inc()
        self._tokens.labels("input").inc(reply.input_tokens)
        self._tokens.labels("cached").inc(reply.cached_tokens)
        self._tokens.labels("output").inc(reply.output_tokens)
        if reply.price is None:
            self._unpriced.inc()
        else:
            self._dollars.inc(reply.price)

    async def read(self) -> None:
        """Set the gauges by the stored runs."""
        runs, questions = await self._agent.counts()
        for state in RunState:
            self._runs.labels(str(state)).set(runs.get(state, 0))
        self._open.set(questions)
