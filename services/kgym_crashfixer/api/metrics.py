"""Metrics for Prometheus.

Gauges are read from the stored runs on request, at most every few seconds: all processes with the
same folder show the same values. Counters belong to this process. Their sum over all processes is
exact, since exactly one process stores each change.
"""

from prometheus_client import Counter, Gauge

from kgym.api.agent.runs import RunState
from kgym.web import metrics
from kgym_crashfixer.runs.agent import Agent
from kgym_crashfixer.runs.run_store import Answered, Batch


class Metrics(metrics.Metrics):
    """The metrics of one agent, which calls `stored` with each batch."""

    def __init__(self, agent: Agent) -> None:
        super().__init__()
        self._agent = agent
        agent.observers.append(self.stored)
        own = self.registry
        self._runs = Gauge("kgym_agent_runs", "Runs by state", ["state"], registry=own)
        self._open = Gauge(
            "kgym_agent_open_questions", "Questions of running runs without an answer", registry=own
        )
        self._ended = Counter(
            "kgym_agent_ended_runs", "Runs that ended or were interrupted", ["state"], registry=own
        )
        self._calls = Counter(
            "kgym_agent_model_calls",
            "Questions to models: answered, failed, or dropped by the search",
            ["outcome"],
            registry=own,
        )
        self._tokens = Counter(
            "kgym_agent_tokens",
            "Tokens of answers; `input` includes cached ones",
            ["kind"],
            registry=own,
        )
        self._dollars = Counter(
            "kgym_agent_dollars", "US dollars for answers with a known price", registry=own
        )
        self._unpriced = Counter(
            "kgym_agent_unpriced_calls", "Answers without a known price", registry=own
        )

    def stored(self, batch: Batch) -> None:
        """Count answered questions and the end of the run."""
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
        """Set the gauges from the stored runs."""
        runs, questions = await self._agent.counts()
        for state in RunState:
            self._runs.labels(str(state)).set(runs.get(state, 0))
        self._open.set(questions)
