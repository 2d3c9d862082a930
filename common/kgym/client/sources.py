"""What is asked of the scheduler about kernels' sources."""

from kgym.api.source import (
    FileLook,
    FileText,
    FolderList,
    FolderLook,
    SearchLook,
    SearchResult,
    SymbolLook,
    SymbolResult,
)
from kgym.client import endpoints
from kgym.client.connection import AsyncConnection, Connection


class SourceCalls(Connection):
    """Sources, for `Client`."""

    def read_source(self, job_id: int, wanted: FileLook) -> FileText:
        """Return lines of a file, as the build of a job's step sees it.

        Args:
            job_id: A job with a step of kind source, build or check that has succeeded;
                `kgym.bugs.bug.Bug.source` makes the one that takes least.
            wanted: Which file and lines; which step; patches to apply for this look.

        Raises:
            Refused: There is no such file (`file_not_found`), it is none (`not_a_file`,
                `binary_file`), the patches do not apply (`patch_does_not_apply`), the job has no
                such tree (`no_source`, `step_unfinished`), or it has to be made first
                (`source_not_made`: `details["step"]` is the step to submit).
        """
        return self._do(endpoints.read_source(job_id, wanted))

    def list_source(self, job_id: int, wanted: FolderLook) -> FolderList:
        """Return what is in a folder of that tree; raises as `read_source`."""
        return self._do(endpoints.list_source(job_id, wanted))

    def search_source(self, job_id: int, wanted: SearchLook) -> SearchResult:
        """Return lines of that tree that match a regular expression.

        Raises:
            Refused: It is none (`bad_pattern`); or as `read_source`.
        """
        return self._do(endpoints.search_source(job_id, wanted))

    def find_symbol(self, job_id: int, wanted: SymbolLook) -> SymbolResult:
        """Return where a name is defined and used in that tree; raises as `read_source`."""
        return self._do(endpoints.find_symbol(job_id, wanted))


class AsyncSourceCalls(AsyncConnection):
    """Sources, for `AsyncClient`."""

    async def read_source(self, job_id: int, wanted: FileLook) -> FileText:
        """Return lines of a file, as the build of a job's step sees it."""
        return await self._do(endpoints.read_source(job_id, wanted))

    async def list_source(self, job_id: int, wanted: FolderLook) -> FolderList:
        """Return what is in a folder of that tree."""
        return await self._do(endpoints.list_source(job_id, wanted))

    async def search_source(self, job_id: int, wanted: SearchLook) -> SearchResult:
        """Return lines of that tree that match a regular expression."""
        return await self._do(endpoints.search_source(job_id, wanted))

    async def find_symbol(self, job_id: int, wanted: SymbolLook) -> SymbolResult:
        """Return where a name is defined and used in that tree."""
        return await self._do(endpoints.find_symbol(job_id, wanted))
