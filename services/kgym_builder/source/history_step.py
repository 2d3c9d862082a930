"""The `history` step: the commits between two of a Git repository, or a look at its past."""

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

        Raises UserError `not_an_ancestor`, `history_too_long`, `no_mirror`, `not_in_history`, and
        what sources raise.
        """
        spec = run.spec(HistorySpec)

        def report(stage: str, done: float, total: float | None) -> None:
            run.progress(f"{stage} history", done, total, "bytes")

        since = None
        with run.stage("history"):
            if spec.since is not None:
                between = await self._sources.history(spec.source, spec.since, report)
                name, commit, since = HistoryArtifact.COMMITS, between.commit, between.since
                text = between.text
            else:
                assert spec.look is not None
                name = HistoryArtifact.LOOK
                commit, text = await self._sources.look(spec.source, spec.look, report)
        path = run.folder / name
        with run.stage("store"):
            await asyncio.to_thread(path.write_text, text, "utf-8")
            await run.keep(path, move=True)
        return HistoryResult(
            commit=commit,
            since=since,
            commits=text.count("\n") if since else 0,
            seconds=run.seconds,
        )
