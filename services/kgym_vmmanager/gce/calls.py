"""Calls to the service: in threads, at a bounded rate, with retries of temporary errors."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from kgym.errors import InfrastructureError
from kgym_vmmanager.cloud.labels import DEADLINE
from kgym_vmmanager.cloud.sweeper import Labelled, Resources
from kgym_vmmanager.gce.options import GceOptions

T = TypeVar("T")

# Limit of the retries of a call that is not answered, or throttled.
PATIENCE_SECONDS = 90.0
_CALL_SECONDS = 60.0
_THREADS = 32
_PAUSES = (0.2, 10.0)
_PASSING = frozenset({408, 429, 500, 502, 503, 504})
_BUSY = _PASSING | {409}
_OPERATION_SECONDS = 300.0


class NoRoom(InfrastructureError):
    """A zone has no capacity, or the project's quota there is used up."""


class Gone(InfrastructureError):
    """The resource does not exist."""


class Taken(InfrastructureError):
    """A resource of this name exists, or another operation on it is running."""


class NotReady(InfrastructureError):
    """The instance exists, but does not run."""


@dataclass(frozen=True, slots=True)
class ConsoleChunk:
    """Output of a serial port from byte `start` up to `next`; earlier bytes may be lost."""

    data: bytes
    start: int
    next: int


class RateGate:
    """Limits the rate of calls: first come, first served, at least 1 / `per_second` apart."""

    def __init__(self, per_second: float) -> None:
        self._apart = 1 / per_second
        self._next = 0.0
        self.calls = 0

    async def turn(self) -> None:
        """Wait until the next call is due."""
        now = time.monotonic()
        at = max(now, self._next)
        self._next = at + self._apart
        self.calls += 1
        if at > now:
            await asyncio.sleep(at - now)

    def hold(self, seconds: float) -> None:
        """Pause all calls for `seconds`, after the service has throttled us."""
        self._next = max(self._next, time.monotonic() + seconds)


class Compute:
    """The service's client; its library is imported on creation, as that takes 2 s."""

    def __init__(self, options: GceOptions, patience: float = PATIENCE_SECONDS) -> None:
        from google.api_core.client_options import ClientOptions  # noqa: PLC0415 - slow
        from google.auth.credentials import AnonymousCredentials  # noqa: PLC0415
        from google.auth.exceptions import GoogleAuthError  # noqa: PLC0415
        from google.cloud import compute_v1  # noqa: PLC0415

        given: dict[str, Any] = {}
        if options.endpoint is not None:
            given["client_options"] = ClientOptions(api_endpoint=options.endpoint)
            given["credentials"] = AnonymousCredentials()
        self._v1 = compute_v1
        self._options = options
        self._project = options.project
        self._patience = patience
        try:
            self._instances = compute_v1.InstancesClient(**given)
            self._operations = compute_v1.ZoneOperationsClient(**given)
            self._images = compute_v1.ImagesClient(**given)
            self._image_operations = compute_v1.GlobalOperationsClient(**given)
        except GoogleAuthError as error:
            raise _unknown_here(error) from error
        self._threads = ThreadPoolExecutor(_THREADS, "gce")
        self.console_gate = RateGate(options.calls_per_second)
        self._gate = RateGate(options.calls_per_second)

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    # --- instances -------------------------------------------------------------------------------

    async def insert(self, zone: str, wanted: Mapping[str, Any], request: str) -> None:
        """Create an instance and wait for it. Raises NoRoom, Taken, and InfrastructureError."""
        # `insert(...).result()` would poll the service itself, whatever endpoint was configured:
        # hence `insert_unary`, and a client for operations with the same options.
        begin = self._instances.insert_unary
        body = dict(wanted)
        operation = await self._ask(begin, zone=zone, instance_resource=body, request_id=request)
        await self._finish(operation, self._operations, zone=zone)

    async def delete(self, zone: str, name: str) -> None:
        """Start to delete an instance; do nothing if there is none.

        While another operation on it runs (409), the call is retried.
        """
        with contextlib.suppress(Gone, NotReady):
            delete = self._instances.delete_unary
            await self._ask(delete, passing=_BUSY, zone=zone, instance=name)

    async def get(self, zone: str, name: str) -> Any:
        """Return an instance; raises Gone."""
        return await self._ask(self._instances.get, zone=zone, instance=name)

    async def labelled(self, zone: str, owner: str) -> list[Any]:
        """Return the owner's instances in a zone, by their label."""
        return await self._list(self._instances.list, f"labels.kgym={owner}", zone=zone)

    async def serial_port(self, zone: str, name: str, start: int) -> ConsoleChunk:
        """Return the console from byte `start` on; raises Gone and NotReady."""
        read = self._instances.get_serial_port_output
        output = await self._ask(
            read, self.console_gate, zone=zone, instance=name, port=1, start=start
        )
        return ConsoleChunk(output.contents.encode(errors="replace"), output.start, output.next_)

    async def what_happened(self, zone: str, number: int) -> set[str]:
        """Return the kinds of operations on the instance with this number (`id`)."""
        operations = await self._list(self._operations.list, f"targetId={number}", zone=zone)
        return {
            operation.operation_type for operation in operations if operation.target_id == number
        }

    # --- images ----------------------------------------------------------------------------------

    async def image_status(self, name: str) -> str | None:
        """Return an image's status (READY, PENDING, FAILED), or None if there is none."""
        try:
            return str((await self._ask(self._images.get, image=name)).status)
        except Gone:
            return None

    async def make_image(self, name: str, source: str, marks: Mapping[str, str]) -> None:
        """Start to create an image of the packed disk at this address.

        Do nothing if one of this name exists: another worker creates it.
        """
        body = {"name": name, "raw_disk": {"source": source}, "labels": dict(marks)}
        with contextlib.suppress(Taken):
            operation = await self._ask(self._images.insert_unary, image_resource=body)
            await self._finish(operation, self._image_operations)

    async def delete_image(self, name: str) -> None:
        """Start to delete an image; do nothing if there is none."""
        with contextlib.suppress(Gone, NotReady):
            await self._ask(self._images.delete_unary, passing=_BUSY, image=name)

    async def labelled_images(self, owner: str) -> list[Any]:
        """Return the owner's images, by their label."""
        return await self._list(self._images.list, f"labels.kgym={owner}")

    def owned(self) -> list[Resources]:
        """Return the resources for the sweeper: the owner's VMs by zone, and its images."""
        owner = self._options.owner

        async def kernel_images() -> list[Labelled]:
            images = await self.labelled_images(owner)
            # The helper image has no deadline: all workers use it.
            return [image for image in images if DEADLINE in image.labels]

        vms = [
            Resources(partial(self.labelled, zone, owner), partial(self.delete, zone))
            for zone in self._options.zones
        ]
        return [*vms, Resources(kernel_images, self.delete_image)]

    # --- calls with retries ----------------------------------------------------------------------

    async def _finish(self, operation: Any, operations: Any, **scope: Any) -> None:
        begin = time.monotonic()
        while operation.status != self._v1.Operation.Status.DONE:
            if time.monotonic() - begin > _OPERATION_SECONDS:
                message = f"{operation.name} is not done after {_OPERATION_SECONDS:g} s"
                raise InfrastructureError("gce_failed", message)
            operation = await self._ask(operations.wait, operation=operation.name, **scope)
        if errors := list(operation.error.errors):
            raise _refused((error.code for error in errors), errors[0].message)

    async def _list(
        self, method: Callable[..., Iterable[Any]], chosen: str, **of: Any
    ) -> list[Any]:
        """Return the resources that a filter chooses; their pages are read in the same thread."""
        return await self._ask(lambda **call: list(method(**call)), filter=chosen, **of)

    async def _ask(
        self,
        method: Callable[..., T],
        gate: RateGate | None = None,
        passing: Collection[int] = _PASSING,
        **request: Any,
    ) -> T:
        """Call a method of a client, with this request to our project."""
        from google.api_core.exceptions import GoogleAPICallError  # noqa: PLC0415 - as above
        from google.auth.exceptions import GoogleAuthError  # noqa: PLC0415
        from requests import RequestException  # noqa: PLC0415

        asked = {"project": self._project, **request}
        function = partial(method, request=asked, retry=None, timeout=_CALL_SECONDS)
        lost: Exception
        gate, begin, pause = gate or self._gate, time.monotonic(), _PAUSES[0]
        while True:
            await gate.turn()
            try:
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._threads, function)
            except GoogleAPICallError as error:
                code, reasons = error.code or 0, _reasons(error)
                throttled = code == 429 or "rateLimitExceeded" in reasons
                if code not in passing and not throttled:
                    raise _translated(int(code), reasons, error.message) from error
                why, lost = f"{int(code)} {error.message}", error
                reason = "gce_rate_limit" if throttled else "gce_unreachable"
                if throttled:
                    gate.hold(pause)
            except (RequestException, ConnectionError, TimeoutError) as error:
                why, lost, reason = str(error) or type(error).__name__, error, "gce_unreachable"
            except GoogleAuthError as error:
                raise _unknown_here(error) from error
            if time.monotonic() - begin > self._patience:
                message = f"the call has failed for {self._patience:g} s: {why}"
                raise InfrastructureError(reason, message) from lost
            await asyncio.sleep(pause)
            pause = min(2 * pause, _PAUSES[1])


def _unknown_here(error: Exception) -> InfrastructureError:
    message = f"this worker has no credentials for the service: {error}"
    return InfrastructureError("gce_refused", message)


def _reasons(error: Any) -> set[str]:
    return {
        str(entry.get("reason", "")) for entry in error.errors or () if isinstance(entry, Mapping)
    }


def _translated(code: int, reasons: set[str], message: str) -> InfrastructureError:
    if code == 404:
        return Gone("gce_failed", f"not found: {message}")
    if code == 409:
        return Taken("gce_failed", f"exists already, or is busy: {message}")
    if "resourceNotReady" in reasons:
        return NotReady("gce_failed", f"not running: {message}")
    if reasons & {"quotaExceeded", "QUOTA_EXCEEDED"}:
        return NoRoom("gce_quota", f"the project's quota is used up: {message}")
    if code in {401, 403}:
        return InfrastructureError("gce_refused", f"permission denied: {message}")
    return InfrastructureError("gce_failed", f"the service refuses: {code} {message}")


def _refused(codes: Iterable[str], message: str) -> InfrastructureError:
    """Return the exception for an operation's error codes."""
    words = " ".join(codes)
    if "QUOTA" in words:
        return NoRoom("gce_quota", f"the project's quota is used up: {message}")
    if "EXHAUSTED" in words or "STOCKOUT" in words:
        return NoRoom("gce_stockout", f"the zone has no room: {message}")
    if "PERMISSION" in words or "FORBIDDEN" in words:
        return InfrastructureError("gce_refused", f"permission denied: {message}")
    return InfrastructureError("gce_failed", f"the operation failed: {words}: {message}")
