"""The deployment of a `kgym gcp` command, on Google Cloud or on an emulated project."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kgym.errors import UserError
from kgym_cli import extras
from kgym_cli.gcp import emulated_project
from kgym_cli.gcp.emulated_project import EmulatedProject
from kgym_cli.inputs.parameters import PATH, parameters
from kgym_cli.output import people
from kgym_cli.platforms.scheduler_choice import usable_data_folder
from kgym_cli.settings import settings
from kgym_hosts.deployment import Deployment, read_deployment

if TYPE_CHECKING:
    from kgym.client import Client
    from kgym_hosts.gcp.platform import CloudPlatform


@dataclass(frozen=True)
class Farm:
    """A deployment and its location."""

    deployment: Deployment
    endpoint: str | None
    """URL of a server that emulates the cloud."""
    project: EmulatedProject | None
    """The emulated project of that server."""

    @property
    def emulated(self) -> bool:
        """Whether no real cloud is involved."""
        return self.endpoint is not None

    @property
    def server(self) -> str | None:
        """URL of the scheduler, if known."""
        return self.project.scheduler if self.project else self.deployment.server

    def platform(self, ssh_key: str = "") -> "CloudPlatform":
        """Return the platform on the cloud."""
        extras.require("gcp")
        # Imported late: Google's libraries take seconds.
        from kgym_hosts.gcp.connection import Cloud  # noqa: PLC0415
        from kgym_hosts.gcp.platform import CloudPlatform  # noqa: PLC0415

        cloud = Cloud(self.deployment.project, self.endpoint)
        return CloudPlatform(cloud, self.deployment, ssh_key, self.server)

    @contextmanager
    def scheduler(self) -> "Iterator[Client]":
        """Connect to its scheduler; raise UserError `no_server` if none is known."""
        from kgym.client import Client  # noqa: PLC0415 - as above

        # An emulated project's scheduler wins over --server: its hosts work for no other.
        server = self.project.scheduler if self.project else settings().server or self.server
        if server is None:
            message = (
                "give the scheduler's URL with --server or KGYM_SERVER, or `domain` in the file"
            )
            raise UserError("no_server", message)
        with Client(server, settings().token) as client:
            yield client


# The deployment, and an emulation of the cloud.
farm_options = parameters(
    click.argument("deployment", type=PATH),
    click.option(
        "--endpoint",
        metavar="URL",
        help="Server that emulates the cloud: `tests.google.cloud_project` in a checkout.",
    ),
    click.option(
        "--emulated",
        is_flag=True,
        help="Emulate the cloud on this machine, with processes as hosts; needs no account.",
    ),
)


def farm(file: Path, endpoint: str | None, emulated: bool, *, start: bool = False) -> Farm:
    """Return the farm for the options; with `start`, start an emulated project if necessary.

    Raises UserError `bad_deployment`, `bad_option`, or `not_emulated` if no such project runs.
    """
    deployment = read_deployment(file)
    if not emulated:
        return Farm(deployment, endpoint, None)
    if endpoint is not None:
        raise UserError("bad_option", "--emulated excludes --endpoint: it has a server of its own")
    people.print("emulated: cloud and hosts are processes of this machine", style="dim")
    data, name = usable_data_folder(), deployment.project
    project = emulated_project.find(data, name)
    if project is None and start:
        project = emulated_project.start(data, name)
    if project is None:
        raise UserError(
            "not_emulated",
            f"no emulated project {name} is running: start it with `kgym gcp up --emulated`",
        )
    # Emulated hosts are this machine: there is nothing to install and no secret to protect.
    here = {"program": emulated_project.PROGRAM, "setup": "", "secret": None}
    return Farm(deployment.model_copy(update=here), project.url, project)
