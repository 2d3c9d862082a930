"""The command that runs an agent in an environment: a campaign's own, or a shipped adapter's.

An adapter is a file of `configs/adapters/`. It gives the command that makes an agent work on
/root/task.txt in /linux, and the places of its trajectory and cost.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, ValidationError

from kgym.api.steps import Strict
from kgym.bench.attempt_record import Words
from kgym.bench.campaign import AgentEntry, Variables
from kgym.configs import CONFIGS
from kgym.errors import NotFound, UserError

ADAPTERS = CONFIGS / "adapters"


class Adapter(Strict):
    """How an agent is run; `cost` and `tokens` are paths in its trajectory (`info.cost`)."""

    description: Words
    version: Words = Field(description="agent version for which this was written")
    command: list[Words] = Field(min_length=1, max_length=100)
    environment: Variables = {}
    trajectory: Words = Field(description="format of traj.json: `mini-swe-agent`, …")
    cost: Words | None = None
    tokens: Words | None = None


@dataclass(frozen=True, slots=True)
class Command:
    """A command in an environment."""

    words: tuple[str, ...]
    environment: Mapping[str, str]
    folders: Mapping[str, Path]
    agent_config: Path | None
    model_config: Path | None
    form: str
    """Format of its trajectory."""
    cost: str | None
    tokens: str | None
    free: bool
    """Whether it uses no model."""


def command(entry: AgentEntry, home: Path) -> Command:
    """Return the command of an agent; paths are relative to `home`, the campaign's folder.

    Raises UserError `bad_campaign`, NotFound `no_such_adapter`.
    """
    adapter = _adapter(entry.adapter) if entry.adapter is not None else None
    folders = {str(path): path for path in (_folder(folder, home) for folder in entry.programs)}
    if entry.folder is not None:
        folders["/agent"] = _folder(entry.folder, home)
    return Command(
        words=tuple(entry.command or (adapter.command if adapter else ())),
        environment={**(adapter.environment if adapter else {}), **entry.environment},
        folders=folders,
        agent_config=_there(entry.agent_config, home),
        model_config=_there(entry.model_config_file, home),
        form=adapter.trajectory if adapter else "",
        cost=adapter.cost if adapter else None,
        tokens=adapter.tokens if adapter else None,
        free=adapter is None and entry.models == [""],
    )


def names() -> list[str]:
    """Return the names of the shipped adapters, sorted."""
    return sorted(path.stem for path in ADAPTERS.glob("*.toml"))


def _adapter(name: str) -> Adapter:
    path = ADAPTERS / f"{name}.toml"
    if not path.is_file():
        raise NotFound("no_such_adapter", f"no adapter {name}; there are: {', '.join(names())}")
    try:
        return Adapter.model_validate(tomllib.loads(path.read_text()))
    except (tomllib.TOMLDecodeError, ValidationError) as error:
        raise UserError("bad_campaign", f"{path}: {error}") from error


def _folder(name: str, home: Path) -> Path:
    path = _there(name, home)
    if path is None or not path.is_dir():
        raise UserError("bad_campaign", f"{home / name} is not a folder")
    return path


def _there(name: str | None, home: Path) -> Path | None:
    if name is None:
        return None
    path = (home / name).resolve()
    # Checked before the campaign begins: an attempt must not fail after an hour for a typo.
    if not path.exists():
        raise UserError("bad_campaign", f"there is no {path}")
    return path
