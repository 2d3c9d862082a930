"""Metrics for Prometheus.

Gauges are read from the database on request, at most every few seconds: all schedulers report the
same. Counters and histograms are those of this process; their sum over all schedulers is exact, as
each change is committed by one of them.
"""

from collections import Counter as Counts

from prometheus_client import Counter, Gauge, Histogram

from kgym.web import metrics
from kgym_scheduler.queue.job_change import EndedAttempt
from kgym_scheduler.retention.upkeep import Upkeep
from kgym_scheduler.scheduler import Scheduler

_SECONDS = (0.1, 0.3, 1, 3, 10, 30, 60, 120, 300, 600, 1200, 3600, 7200, 14400)


class Metrics(metrics.Metrics):
    """The metrics of one scheduler."""

    def __init__(self, scheduler: Scheduler, upkeep: Upkeep | None = None) -> None:
        super().__init__()
        self._store = scheduler.store
        self._upkeep = upkeep
        own = self.registry
        kind = ["kind"]
        self._queued = Gauge("kgym_queued_steps", "Queued steps", kind, registry=own)
        self._age = Gauge(
            "kgym_queue_age_seconds", "Age of the oldest queued step", kind, registry=own
        )
        self._running = Gauge("kgym_running_steps", "Running steps", kind, registry=own)
        self._stored = Gauge(
            "kgym_stored_bytes", "Bytes in storage and database", kind, registry=own
        )
        self._warned = Gauge(
            "kgym_storage_warning",
            "1 if the budget is reached or the disk nearly full",
            registry=own,
        )
        self._workers = Gauge("kgym_workers", "Live workers", ["state"], registry=own)
        self._seconds = Histogram(
            "kgym_attempt_seconds",
            "Duration of attempts",
            ["kind", "outcome"],
            buckets=_SECONDS,
            registry=own,
        )
        self._expired = Counter(
            "kgym_lease_expiries", "Attempts whose worker was lost", kind, registry=own
        )
        self._retried = Counter("kgym_retries", "Attempts that are retried", kind, registry=own)
        self._trees = Counter(
            "kgym_build_trees", "Builds, by whether the tree was cached", ["cached"], registry=own
        )

    def ended(self, ended: EndedAttempt) -> None:
        """Count an attempt that has ended."""
        self._seconds.labels(ended.kind, ended.outcome).observe(ended.seconds)
        if ended.outcome == "expired":
            self._expired.labels(ended.kind).inc()
        if ended.again and ended.outcome != "released":  # a released attempt did not fail
            self._retried.labels(ended.kind).inc()
        if ended.cached is not None:
            self._trees.labels(str(ended.cached).lower()).inc()

    async def read(self) -> None:
        """Set the gauges from database and storage."""
        for queue in await self._store.queues():
            self._queued.labels(queue.kind).set(queue.queued)
            self._age.labels(queue.kind).set(queue.oldest_seconds or 0)
            self._running.labels(queue.kind).set(queue.running)
        if self._upkeep is not None:
            use = await self._upkeep.use()
            for kept in use.kinds:
                self._stored.labels(kept.kind).set(kept.bytes)
            self._warned.set(use.warning is not None)
        states = Counts(worker.state for worker in await self._store.workers())
        for state in ("live", "draining"):
            self._workers.labels(state).set(states[state])
