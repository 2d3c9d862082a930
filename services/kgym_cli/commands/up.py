"""`kgym up`."""

import click

from kgym_cli.connect import data_folder
from kgym_cli.output import people

PORT = 8420


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True)
def up(port: int) -> None:
    """Start scheduler and workers on this machine; Ctrl-C stops them, jobs are kept."""
    # Its imports take longer than a command that needs no platform of its own.
    from kgym_cli.platform import Platform  # noqa: PLC0415

    with Platform(data_folder(), port=port) as platform:
        people.print(f"scheduler: {platform.url}  API: {platform.url}/docs")
        people.print(f"data: {data_folder()}", style="dim", markup=False)
        platform.wait()
