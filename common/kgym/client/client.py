"""A client of the scheduler: `Client` blocks, `AsyncClient` awaits; they have the same methods.

Errors::

    KgymError
    ├── ApiError                  the scheduler answered with a problem document
    │   ├── Refused               … 4xx: the request has to change (also a UserError)
    │   └── ServerFailed          … 5xx: it may be repeated (also an InfrastructureError)
    └── InfrastructureError
        ├── `scheduler_unreachable`   nobody answers at the base URL
        └── `artifact_corrupt`        what was downloaded is not what was stored

What they can be asked stands by its noun: `jobs`, `groups`, `artifacts`, `sources`, `platform`.
"""

from kgym.client.artifacts import ArtifactCalls, AsyncArtifactCalls
from kgym.client.groups import AsyncGroupCalls, GroupCalls
from kgym.client.jobs import AsyncJobCalls, JobCalls
from kgym.client.platform import AsyncPlatformCalls, PlatformCalls
from kgym.client.sources import AsyncSourceCalls, SourceCalls


class Client(JobCalls, GroupCalls, ArtifactCalls, SourceCalls, PlatformCalls):
    """A connection to the scheduler at `base_url`, such as `http://127.0.0.1:8420`.

    Use it as a context manager, or call `close`. It may be used by several threads.

    Requests that come too soon (429) are repeated when the scheduler says so, for up to a minute;
    those that it cannot serve just now (503) for up to 20 s. Every method raises:

    - `Refused` if the request is wrong, or not allowed: repeating it cannot help;
    - `ServerFailed` if the scheduler failed;
    - `InfrastructureError` with the reason `scheduler_unreachable` if nobody answers.

    Args:
        base_url: Where the scheduler listens.
        token: What `kgym token create` printed; None where no token is needed.
    """


class AsyncClient(
    AsyncJobCalls,
    AsyncGroupCalls,
    AsyncArtifactCalls,
    AsyncSourceCalls,
    AsyncPlatformCalls,
):
    """The same as `Client`, for coroutines: await its methods, iterate with `async for`.

    What the methods take and raise is said at those of `Client`.
    """
