"""`kgym mirror`: copies of Git repositories on this host."""

import asyncio
import time

import click
from rich.markup import escape

from kgym_cli.output import json_option, people, print_table, printed_json
from kgym_cli.output.answer import Answer
from kgym_cli.settings import options_of, settings

_REPORT_SECONDS = 10.0


class MirrorAnswer(Answer):
    """A mirror; `url` is written without a final `.git`."""

    url: str
    path: str


@click.command()
@click.argument("url", required=False)
@options_of("mirror")
@json_option(list[MirrorAnswer])
def mirror(url: str | None, as_json: bool) -> None:
    """Copy the Git repository at URL for this host's workers, or update the copy.

    Workers then look for commits in the copy before they ask the URL. It has the whole history,
    several GB for Linux. Without URL, list the mirrors.
    """
    from kgym_builder.kernel_source import git_copying  # noqa: PLC0415
    from kgym_builder.kernel_source.allowed_origins import Origins  # noqa: PLC0415

    chosen = settings()
    folder = chosen.mirrors.absolute()
    # Created even without URL, so that workers can be pointed at it before the first copy.
    folder.mkdir(parents=True, exist_ok=True)
    origins = Origins.named(chosen.sources, chosen.source_networks, mirrors=folder)
    if url is not None:
        asyncio.run(git_copying.copy(url, origins, _Progress()))
    mirrors = sorted(origins.mirrors.table().items())
    if printed_json(
        [MirrorAnswer(url=address, path=str(path)) for address, path in mirrors], as_json
    ):
        return
    print_table(
        "url", "path", rows=([escape(address), escape(str(path))] for address, path in mirrors)
    )


class _Progress:
    """Prints the transferred size every few seconds."""

    def __init__(self) -> None:
        self._next = time.monotonic() + _REPORT_SECONDS

    def __call__(self, _stage: str, done: float, _total: float | None) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _REPORT_SECONDS
            people.print(f"{done / 1e6:.0f} MB")
