"""Whether the parts that the scheduler needs answer."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from kgym.errors import InfrastructureError

ANSWER_SECONDS = 3.0


async def check(parts: Mapping[str, Callable[[], Awaitable[None]]]) -> None:
    """Ask all parts at once; raise InfrastructureError `not_ready`, which lists each, if one fails.

    `dependencies` in its details: for each `name`, whether it is `ready`, and a `detail` if not.
    """
    complaints = await asyncio.gather(*(_complaint(ask) for ask in parts.values()))
    missing = [name for name, complaint in zip(parts, complaints, strict=True) if complaint]
    if missing:
        raise InfrastructureError(
            "not_ready",
            f"these do not answer: {', '.join(missing)}",
            dependencies=[
                {"name": name, "ready": complaint is None, "detail": complaint}
                for name, complaint in zip(parts, complaints, strict=True)
            ],
        )


async def _complaint(ask: Callable[[], Awaitable[None]]) -> str | None:
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            await ask()
    except InfrastructureError as error:
        return error.message
    except TimeoutError:
        return f"no answer within {ANSWER_SECONDS:g} s"
    return None
