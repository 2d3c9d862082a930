"""Strategy files: shipped ones and users' own."""

from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from kgym.api.agent.strategy import Strategy
from kgym.api.faults import faults_of
from kgym.configs import CONFIGS
from kgym.errors import UserError
from kgym.toml_text import parse_toml

_STRATEGY: TypeAdapter[Strategy] = TypeAdapter(Strategy)


def names(configs: Path = CONFIGS) -> list[str]:
    """Return the names of the shipped strategies."""
    return sorted(path.stem for path in (configs / "agent").glob("*.toml"))


def load(name: str, configs: Path = CONFIGS, *, deep: bool = False) -> Strategy:
    """Load a shipped strategy by name, or a file that ends in `.toml`; raise `bad_strategy`.

    A `deep` strategy is a phase of another one, and may have no phases itself.
    """
    path = Path(name) if name.endswith(".toml") else configs / "agent" / f"{name}.toml"
    try:
        table = parse_toml(path.read_text())
    except FileNotFoundError as error:
        known = ", ".join(names(configs))
        raise UserError(
            "bad_strategy", f"there is no strategy {name}; there are: {known}"
        ) from error
    except (OSError, ValueError) as error:
        raise UserError("bad_strategy", f"{path}: {error}") from error
    phases = table.get("phases")
    for phase in phases if isinstance(phases, list) else []:
        if isinstance(phase, dict) and isinstance(phase.get("strategy"), str):
            if deep:
                raise UserError("bad_strategy", f"{path}: phases cannot be nested")
            phase["strategy"] = load(phase["strategy"], configs, deep=True).model_dump()
    try:
        return _STRATEGY.validate_python({"name": path.stem, **table})
    except ValidationError as error:
        wrong = "; ".join(
            f"{'.'.join(map(str, place[1:]))}: {message}"
            for place, message in faults_of(error, Strategy, 10)
        )
        raise UserError("bad_strategy", f"{path}: {wrong}") from error
