"""Bus and storage of a process of the distributed platform, by their URLs."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from kgym.errors import UserError
from kgym.transport.artifact_storage import LocalStorage, Storage
from kgym.transport.bus import Bus, InProcessBus
from kgym_cli import extras
from kgym_cli.settings import Settings, settings

# The bucket's name follows the service's rules; the prefix is limited to what needs no escaping.
_BUCKET = re.compile(r"gs://([a-z0-9][\w.-]{1,221})/?((?:[\w][\w.+-]*/?)*)", re.ASCII)


@asynccontextmanager
async def open_bus(url: str | None) -> AsyncIterator[Bus]:
    """Context manager: the bus at `amqp://…`. Without a URL, workers poll every second."""
    # Without a broker there are no notices; workers poll, which is enough for a few of them.
    if url is None:
        yield InProcessBus()
        return
    if urlsplit(url).scheme not in {"amqp", "amqps"}:
        raise UserError("unsupported_bus", f"cannot use the bus {url!r}: give an amqp:// URL")
    from kgym.transport.rabbitmq import RabbitBus  # noqa: PLC0415 - only services use a broker

    async with RabbitBus(url) as bus:
        yield bus


def open_storage(url: str, cache: Path) -> Storage:
    """Return the storage in a folder, given as a path or `file://…`, or at `gs://…`.

    Storage in a bucket keeps bases of deltas in `cache`, where `kgym gc` finds them.
    """
    if match := _BUCKET.fullmatch(url):
        extras.require("gcp")
        from kgym.transport.gcs.storage import GcsStorage  # noqa: PLC0415 - it takes 2 s

        return GcsStorage(match[1], match[2].rstrip("/"), cache / "storage")
    parts = urlsplit(url)
    if parts.scheme == "file" and not parts.netloc:
        return LocalStorage(Path(unquote(parts.path)))
    if parts.scheme:
        raise UserError(
            "unsupported_storage",
            f"cannot use the storage {url!r}: give a folder that scheduler and workers share, "
            "or gs://BUCKET/PREFIX",
        )
    return LocalStorage(Path(url))


def open_benchmarks() -> tuple[str, Storage]:
    """Return the URL or path of published benchmarks, and their storage.

    Raises UserError `bad_setting`.
    """
    chosen = settings()
    try:
        return chosen.benchmarks, open_storage(chosen.benchmarks, chosen.cache)
    except OSError as error:
        raise UserError("bad_setting", f"{Settings.benchmarks.variable}: {error}") from error
