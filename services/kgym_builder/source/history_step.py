"""The `history` step: the commits between two of a Git repository."""

import asyncio
from pathlib import Path

from kgym.api.steps import HistoryArtifact, HistoryResult, HistorySpec
from kgym.worker.context import StepContext
from kgym_builder.kernel_source.allowed_origins import Origins
from kgym_builder.kernel_source.kernel_sources import KernelSources


class HistoryLister:
    """Lists histories of repositories from allowed `origins`; fetched objects go to `cache`."""

    def __init__(self, cache: Path, origins: Origins) -> None:
        self._sources = KernelSources(cache / "sources", origins)

    async def __call__(self, run: StepContext) -> HistoryResult:
        """Perform a history step.

        Raises UserError `not_an_ancestor`, `history_too_long`, and what sources raise.
        """
        spec = run.spec(HistorySpec)

        def report(stage: str, done: float, total: float | None) -> None:
            run.progress(f"{stage} history", done, total, "bytes")

        with run.stage("history"):
            between = await self._sources.history(spec.source, spec.since, report)
        path = run.folder / HistoryArtifact.COMMITS
        with run.stage("store"):
            await asyncio.to_thread(path.write_text, between.text, "utf-8")
            await run.keep(path, move=True)
        return HistoryResult(
            commit=between.commit,
            since=between.since,
            commits=between.text.count("\n"),
            seconds=run.seconds,
        )
