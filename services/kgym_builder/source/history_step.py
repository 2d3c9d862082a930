"""The `history` step: the commits between two of a Git repository, or a look at its past."""

import asyncio
from pathlib import Path

from kgym.api.steps import HistoryArtifact, HistoryResult, HistorySpec
from kgym.worker.context import StepContext
from kgym_builder.kernel_source.allowed_origins import Origins
from kgym_builder.kernel_source.git_repositories import Repositories
from kgym_builder.kernel_source.source_limits import SourceLimits


class HistoryLister:
    """Lists histories of repositories from allowed `origins`; fetched objects go to `cache`."""

    def __init__(self, cache: Path, origins: Origins) -> None:
        folder = cache / "sources" / "repositories"
        self._repositories = Repositories(folder, origins, SourceLimits())

    async def __call__(self, run: StepContext) -> HistoryResult:
        """Perform a history step.

        Raises UserError `not_an_ancestor`, `history_too_long`, `no_mirror`, `not_in_history`, and
        what sources raise.
        """
        spec = run.spec(HistorySpec)
        repositories, url = self._repositories, spec.source.url

        def report(stage: str, done: float, total: float | None) -> None:
            run.progress(f"{stage} history", done, total, "bytes")

        since = None
        with run.stage("history"):
            commit = await repositories.commit(url, spec.source.commit, report)
            if spec.since is not None:
                name = HistoryArtifact.COMMITS
                since = await repositories.commit(url, spec.since, report)
                text = await repositories.history(url, since, commit, report)
            else:
                assert spec.look is not None
                name = HistoryArtifact.LOOK
                text = await repositories.look(url, commit, spec.look, report)
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
