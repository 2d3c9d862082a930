"""One attempt at a step: run the handler, extend the lease, deliver the result."""

import asyncio
import contextlib
import errno
import os
import traceback
from collections.abc import Iterator
from pathlib import Path

import structlog

from kgym import tasks
from kgym.api.states import retry_delay
from kgym.api.steps import Failure
from kgym.api.worker_calls import AttemptEnding, WorkerCalls
from kgym.errors import InfrastructureError, KgymError, UserError
from kgym.host import sandbox
from kgym.host.folder_cache import size_of
from kgym.host.sandbox_limits import mib
from kgym.worker.context import Handler, StepContext

# Interval of reports while there is no news. A report extends the lease, and is refused if the
# lease is lost.
HEARTBEAT_SECONDS = 1.5
REPORT_SECONDS = 0.25
# The longest pause between two attempts to deliver a result.
DELIVER_SECONDS = 5.0
# How long a stopping worker tries to release a step. If it fails, the lease expires anyway.
RELEASE_SECONDS = 5.0

_log = structlog.get_logger()


async def attempt(run: StepContext, handler: Handler, dispatch: WorkerCalls) -> None:
    """Run the step in its folder and deliver its result; release the step if cancelled."""
    lease = run.assignment.lease
    run.folder.mkdir()
    _log.info("attempt begins", kind=run.assignment.spec.kind)
    # Held during a report: a result sent meanwhile would end the lease before its log arrives.
    turn = asyncio.Lock()
    work = asyncio.create_task(_work(run, handler))
    beat = asyncio.create_task(_beat(run, dispatch, turn))
    try:
        await asyncio.wait({work, beat}, return_when=asyncio.FIRST_COMPLETED)
        if work.done() and not work.cancelled():
            # The folder is removed first: it may have filled the disk that the result needs.
            await _remove(run.folder)
            await _deliver(run, work.result(), dispatch, turn)
    except asyncio.CancelledError:
        # The job was aborted, or this worker stops. If the lease is lost, both calls do nothing.
        await tasks.end([work, beat])
        with contextlib.suppress(KgymError, TimeoutError):
            async with asyncio.timeout(RELEASE_SECONDS):
                # A failure may come from the signal that stops this worker: a batch system sends
                # it to compilers and VMs, too.
                if work.cancelled() or work.result().failure is not None:
                    await dispatch.release(lease)
                else:
                    await dispatch.finish(lease, work.result())
        raise
    finally:
        await tasks.end([work, beat])
        await _remove(run.folder)


async def _work(run: StepContext, handler: Handler) -> AttemptEnding:
    result, failure = None, None
    try:
        with run.held:
            result = await handler(run)
        failure = run.assignment.spec.unmet(result)
    except Exception as error:  # noqa: BLE001 - any error ends the step
        failure = await asyncio.to_thread(_disk_full, error, run.folder) or _failure(error)
        if failure.reason == "internal_error":
            run.log(traceback.format_exc())
    if failure is not None:
        run.log(f"failed: {failure.message}")
    if (run.folder / "step.log").exists():
        with contextlib.suppress(InfrastructureError):  # a full disk must not hide the ending
            await run.keep(run.folder / "step.log")
    return AttemptEnding(result=result, failure=failure, artifacts=run.artifacts)


async def _beat(run: StepContext, dispatch: WorkerCalls, turn: asyncio.Lock) -> None:
    """Report news, or a heartbeat without any, until the lease is lost."""
    quiet = 0.0
    while True:
        await asyncio.sleep(REPORT_SECONDS)
        quiet += REPORT_SECONDS
        async with turn:
            log, progress = run.take_news()
            if not (log or progress or quiet >= HEARTBEAT_SECONDS):
                continue
            quiet = 0.0
            try:
                if not await dispatch.report(run.assignment.lease, log, progress):
                    return
            except InfrastructureError as error:
                _log.warning("report not delivered, trying again", error=str(error))
                run.return_news(log, progress)
            except UserError as error:  # retrying this report cannot help; the next may be valid
                _log.warning("report refused", error=str(error))


async def _deliver(
    run: StepContext, ending: AttemptEnding, dispatch: WorkerCalls, turn: asyncio.Lock
) -> None:
    """Deliver the result; retry for as long as the scheduler is unreachable."""
    attempt = 0
    while True:
        async with turn:
            log, progress = run.take_news()
            try:
                while log:
                    await dispatch.report(run.assignment.lease, log, None)
                    log, _ = run.take_news()
                taken = await dispatch.finish(run.assignment.lease, ending)
                failure = ending.failure and ending.failure.reason
                _log.info("attempt ended", failure=failure, taken=taken)
                return
            except InfrastructureError as error:
                run.return_news(log, progress)
                _log.warning("result not delivered, trying again", error=str(error))
            except UserError as error:  # retrying this result cannot help: report that instead
                message = f"the scheduler refused the result: {error.message}"
                ending = AttemptEnding(
                    failure=Failure(
                        cause="infrastructure", reason="result_refused", message=message
                    )
                )
                continue
        attempt += 1
        await asyncio.sleep(min(DELIVER_SECONDS, retry_delay(attempt)))


async def _remove(folder: Path) -> None:
    """Remove an attempt's folder."""
    # Most are empty by now, and need neither `rm` nor a thread.
    try:
        folder.rmdir()  # noqa: ASYNC240 - faster than waking a thread
    except FileNotFoundError:
        return
    except OSError:
        await asyncio.to_thread(sandbox.remove, folder)


def _failure(error: Exception) -> Failure:
    if isinstance(error, KgymError):
        return Failure(
            cause=error.cause, reason=error.reason, message=error.message, details=error.details
        )
    return Failure(cause="infrastructure", reason="internal_error", message=repr(error))


def _disk_full(error: BaseException, folder: Path) -> Failure | None:
    """Return the failure of an attempt in `folder` whose disk was full; None for other errors."""
    full = next(filter(_is_full, _chain(error)), None)
    if full is None:
        return None
    named = getattr(full, "filename", None)  # may be a descriptor
    place = Path(named) if isinstance(named, str) else folder
    place = next(each for each in (place, *place.parents, folder) if os.path.exists(each))
    seen = os.statvfs(place)
    free = seen.f_bavail * seen.f_frsize
    return Failure(
        cause="infrastructure",
        reason="disk_full",
        message=f"no space left on {place}: over {mib(size_of(folder) + free)} needed, {mib(free)}"
        f" and {seen.f_favail:,} files free; free some space, then restart the job ({full})",
    )


def _is_full(error: BaseException) -> bool:
    # A message that already gives sizes says more.
    if isinstance(error, KgymError):
        return error.reason == "disk_full" and "MiB" not in error.message
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and its causes; stop before the first UserError."""
    while error is not None and not isinstance(error, UserError):
        yield error
        error = error.__cause__
