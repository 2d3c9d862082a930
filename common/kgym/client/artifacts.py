"""What is asked of the scheduler about files that steps left."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx

from kgym.api.jobs import Artifact
from kgym.client import endpoints, protocol
from kgym.client.connection import AsyncConnection, Connection
from kgym.client.download import CHUNK, Download
from kgym.client.protocol import ApiError


class ArtifactCalls(Connection):
    """Artifacts, for `Client`."""

    def artifacts(self, job_id: int, step: int) -> list[Artifact]:
        """Return the files that the step's last attempt left: names, sizes in bytes, SHA-256.

        Names are constants in `kgym.api.steps`, such as `BuildArtifact.VMLINUX`. A file may be
        gone by now: `StepView.artifacts_gone_at` says when retention removed them.

        Raises:
            Refused: There is no such job (`job_not_found`) or step (`step_not_found`).
        """
        return self._do(endpoints.artifacts(job_id, step))

    def read_artifact(self, job_id: int, step: int, name: str) -> Iterator[bytes]:
        """Yield an artifact part by part, unchecked; `download` checks what it writes.

        Raises:
            Refused: The step left no such file (`artifact_not_found`), or it was removed since
                (`artifact_gone`).
        """
        yield from self._read(endpoints.artifact(job_id, step, name))

    def download(self, job_id: int, step: int, name: str, path: Path) -> Artifact:
        """Write an artifact to `path`: whole, with the right SHA-256, or not at all.

        The next call goes on where an interrupted download ended.

        Raises:
            UserError: The step left no such file (`artifact_not_found`).
            Refused: The file was removed since (`artifact_gone`).
            InfrastructureError: Other bytes came than were stored (`artifact_corrupt`).
        """
        download = Download.of(self.artifacts(job_id, step), job_id, step, name, path)
        while not download.complete:
            try:
                if (link := self._fetch(download)) is not None:
                    self._fetch_from_storage(download, link)
            except httpx.TransportError as error:
                time.sleep(download.retries.pause(self._http.base_url, error))
            except ApiError as error:
                time.sleep(download.retries.told(error))
        download.finish()
        return download.artifact

    def _fetch(self, download: Download) -> str | None:
        """Take what comes; return where the storage gives out the file, if that is the answer."""
        with self._streams.stream(
            "GET", download.url, params=download.query, headers=download.headers
        ) as response:
            if response.is_redirect:
                return response.headers["Location"]
            if response.is_error:
                response.read()
            download.begin(protocol.checked(response))
            for chunk in response.iter_raw(CHUNK):
                download.take(chunk)
        return None

    def _fetch_from_storage(self, download: Download, link: str) -> None:
        """Take what comes from there, without our token; what does not, the scheduler has."""
        download.direct = False
        with (
            contextlib.suppress(httpx.TransportError),
            httpx.Client(**protocol.options(link, None, streams=True)) as http,
            http.stream("GET", link, headers=download.part) as response,
        ):
            if response.is_success:
                download.begin(response)
                for chunk in response.iter_raw(CHUNK):
                    download.take(chunk)
                    if download.complete:
                        break


class AsyncArtifactCalls(AsyncConnection):
    """Artifacts, for `AsyncClient`."""

    async def artifacts(self, job_id: int, step: int) -> list[Artifact]:
        """Return the files that the step's last attempt left: names, sizes in bytes, SHA-256."""
        return await self._do(endpoints.artifacts(job_id, step))

    async def read_artifact(self, job_id: int, step: int, name: str) -> AsyncIterator[bytes]:
        """Yield an artifact part by part, unchecked; `download` checks what it writes."""
        async for part in self._read(endpoints.artifact(job_id, step, name)):
            yield part

    async def download(self, job_id: int, step: int, name: str, path: Path) -> Artifact:
        """Write an artifact to `path`: whole, with the right SHA-256, or not at all."""
        artifacts = await self.artifacts(job_id, step)
        download = await asyncio.to_thread(Download.of, artifacts, job_id, step, name, path)
        while not download.complete:
            try:
                if (link := await self._fetch(download)) is not None:
                    await self._fetch_from_storage(download, link)
            except httpx.TransportError as error:
                await asyncio.sleep(download.retries.pause(self._http.base_url, error))
            except ApiError as error:
                await asyncio.sleep(download.retries.told(error))
        await asyncio.to_thread(download.finish)
        return download.artifact

    async def _fetch(self, download: Download) -> str | None:
        """Take what comes; return where the storage gives out the file, if that is the answer."""
        async with self._streams.stream(
            "GET", download.url, params=download.query, headers=download.headers
        ) as response:
            if response.is_redirect:
                return response.headers["Location"]
            if response.is_error:
                await response.aread()
            download.begin(protocol.checked(response))
            async for chunk in response.aiter_raw(CHUNK):
                await asyncio.to_thread(download.take, chunk)
        return None

    async def _fetch_from_storage(self, download: Download, link: str) -> None:
        """Take what comes from there, without our token; what does not, the scheduler has."""
        download.direct = False
        with contextlib.suppress(httpx.TransportError):
            async with (
                httpx.AsyncClient(**protocol.options(link, None, streams=True)) as http,
                http.stream("GET", link, headers=download.part) as response,
            ):
                if response.is_success:
                    download.begin(response)
                    async for chunk in response.aiter_raw(CHUNK):
                        await asyncio.to_thread(download.take, chunk)
                        if download.complete:
                            break
