"""`kgym bench trajectories`."""

from collections.abc import Iterator
from pathlib import Path

import click
from pydantic import ValidationError

from kgym.api.faults import first_fault
from kgym_cli import extras
from kgym_cli.agents.training_data import print_conversations, training_options
from kgym_cli.inputs.parameters import FOLDER
from kgym_cli.output import people

# Bytes of a trajectory: ten times as many as any agent has left.
_LARGEST = 256 << 20


@click.command()
@click.argument("folder", metavar="DIR", type=FOLDER)
@training_options
def trajectories(folder: Path, form: str, resolved: bool) -> None:
    """Print the agents' conversations of a campaign in DIR, as JSON Lines for training.

    Each attempt with a record and a readable trajectory is a line. The reward of an episode is
    that of the attempt's patch, as the campaign has verified it.
    """
    extras.require("bench")
    from kgym.bench import attempt_files, training  # noqa: PLC0415 - need the extra `bench`
    from kgym.bench.atif import Trajectory  # noqa: PLC0415
    from kgym_benchmark.campaign.attempt import ATIF  # noqa: PLC0415
    from kgym_benchmark.campaign.runner import attempt_folder  # noqa: PLC0415

    def talks() -> Iterator[training.Conversation]:
        for record in attempt_files.read(folder / attempt_files.NAME):
            path = folder / attempt_folder(record.bug, record.setup, record.run) / ATIF
            try:
                with path.open("rb") as file:
                    trajectory = Trajectory.model_validate_json(file.read(_LARGEST))
                yield training.of_attempt(record, trajectory)
            except (OSError, ValidationError) as error:
                why = error.strerror if isinstance(error, OSError) else first_fault(error)
                people.print(f"left out: {path}: {why}")

    print_conversations(talks(), form, resolved)
