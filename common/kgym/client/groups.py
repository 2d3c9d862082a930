"""What is asked of the scheduler about groups of jobs."""

from collections.abc import AsyncIterator, Iterator

from kgym.api.bulk import Aborted
from kgym.api.groups import GroupFilter, GroupResult, GroupResultFilter, GroupView
from kgym.client import endpoints
from kgym.client.connection import AsyncConnection, Connection


class GroupCalls(Connection):
    """Groups, for `Client`."""

    def groups(self, wanted: GroupFilter | None = None) -> Iterator[GroupView]:
        """Yield the groups that the filter lets through, newest first; all without a filter."""
        wanted = wanted or GroupFilter()
        while True:
            page = self._do(endpoints.groups(wanted))
            yield from page.groups
            if page.next is None:
                return
            wanted = wanted.model_copy(update={"cursor": page.next})

    def group(self, name: str, submitter: str | None = None) -> GroupView:
        """Return a group: its jobs counted by state and by verdict.

        The counts of tens of thousands of jobs may be up to ten seconds old.

        Args:
            name: The group's name.
            submitter: Whose group it is; yours by default.

        Raises:
            Refused: There is no such group (`group_missing`).
        """
        return self._do(endpoints.group(name, submitter))

    def group_results(
        self, name: str, submitter: str | None = None, after: int = 0
    ) -> Iterator[GroupResult]:
        """Yield one row for each job of the group, in the order of submission.

        Args:
            name: The group's name.
            submitter: Whose group it is; yours by default.
            after: Only jobs with a number above this one; 0 for all.

        Raises:
            Refused: There is no such group (`group_missing`).
        """
        wanted = GroupResultFilter(submitter=submitter, cursor=str(after), limit=1000)
        while True:
            page = self._do(endpoints.group_results(name, wanted))
            yield from page.results
            if page.next is None:
                return
            wanted = wanted.model_copy(update={"cursor": page.next})

    def abort_group(self, name: str, submitter: str | None = None) -> Aborted:
        """End the group's unfinished jobs now, up to 1,000; `more` says whether some are left.

        Args:
            name: The group's name.
            submitter: Whose group it is; yours by default. Another's takes the scope `admin`.

        Raises:
            Refused: There is no such group (`group_missing`), or it is another's
                (`not_your_group`).
        """
        return self._do(endpoints.abort_group(name, submitter))


class AsyncGroupCalls(AsyncConnection):
    """Groups, for `AsyncClient`."""

    async def groups(self, wanted: GroupFilter | None = None) -> AsyncIterator[GroupView]:
        """Yield the groups that the filter lets through, newest first; all without a filter."""
        wanted = wanted or GroupFilter()
        while True:
            page = await self._do(endpoints.groups(wanted))
            for group in page.groups:
                yield group
            if page.next is None:
                return
            wanted = wanted.model_copy(update={"cursor": page.next})

    async def group(self, name: str, submitter: str | None = None) -> GroupView:
        """Return a group: its jobs counted by state and by verdict."""
        return await self._do(endpoints.group(name, submitter))

    async def group_results(
        self, name: str, submitter: str | None = None, after: int = 0
    ) -> AsyncIterator[GroupResult]:
        """Yield one row for each job of the group, in the order of submission."""
        wanted = GroupResultFilter(submitter=submitter, cursor=str(after), limit=1000)
        while True:
            page = await self._do(endpoints.group_results(name, wanted))
            for result in page.results:
                yield result
            if page.next is None:
                return
            wanted = wanted.model_copy(update={"cursor": page.next})

    async def abort_group(self, name: str, submitter: str | None = None) -> Aborted:
        """End the group's unfinished jobs now, up to 1,000; `more` says whether some are left."""
        return await self._do(endpoints.abort_group(name, submitter))
