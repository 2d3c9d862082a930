"""`kgym bench trajectories`."""

from collections.abc import Iterator
from pathlib import Path

import click
from pydantic import ValidationError

from kgym.api.faults import first_fault
from kgym_cli import extras
from kgym_cli.agents.training_data import print_conversations, training_options
from kgym_cli.output import people

# Bytes of a trajectory: ten times as many as any agent has left.
_LARGEST = 256 << 20


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
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
                if path.stat().st_size > _LARGEST:
                    people.print(f"left out: {path} is too large", markup=False)
                    continue
                trajectory = Trajectory.model_validate_json(path.read_bytes())
            except ValidationError as error:
                people.print(f"left out: {path}: {first_fault(error)}", markup=False)
            except OSError as error:
                people.print(f"left out: {path}: {error.strerror}", markup=False)
            else:
                yield training.of_attempt(record, trajectory)

    print_conversations(talks(), form, resolved)
