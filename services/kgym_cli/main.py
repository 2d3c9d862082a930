"""The `kgym` command."""

import signal
import sys
import traceback
from types import FrameType
from typing import Any

import click

from kgym.errors import KgymError
from kgym_cli.commands.bug import bug, demo
from kgym_cli.commands.check import check
from kgym_cli.commands.db import db
from kgym_cli.commands.gc import gc
from kgym_cli.commands.job import job
from kgym_cli.commands.report import report
from kgym_cli.commands.scheduler import scheduler
from kgym_cli.commands.token import token
from kgym_cli.commands.trace import trace
from kgym_cli.commands.up import up
from kgym_cli.commands.worker import worker
from kgym_cli.output import Exit, people, status_of


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--server",
    envvar="KGYM_SERVER",
    help="URL of a scheduler; otherwise the platform of this machine is used, or started.",
)
@click.option("--token", envvar="KGYM_TOKEN", help="What `kgym token create` printed.")
@click.version_option(package_name="kgymsuite")
def cli(server: str | None, token: str | None) -> None:
    """Try patches on real Linux kernels: build, boot, reproduce the crash, tell whether it is gone.

    Exit status: 0 success; 1 a verdict says no; 2 bad input; 3 the platform
    failed or came to no verdict; 130 interrupted.
    """


for command in (bug, check, db, demo, gc, job, report, scheduler, token, trace, up, worker):
    cli.add_command(command)


def main() -> None:
    """Run the command line; the exit status tells whose error it was."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        status: Any = cli.main(standalone_mode=False)
    except KgymError as error:
        people.print(f"kgym: {error.message}", markup=False, style="red")
        status = status_of(error)
    except click.ClickException as error:
        error.show()
        status = error.exit_code
    except (KeyboardInterrupt, click.Abort):
        status = Exit.INTERRUPTED
    except Exception:  # noqa: BLE001 - Python's own status, 1, would be taken for a verdict
        people.print(traceback.format_exc(), markup=False)
        status = Exit.INFRASTRUCTURE
    sys.exit(status if isinstance(status, int) else 0)


def _interrupt(_: int, __: FrameType | None) -> None:
    raise KeyboardInterrupt
