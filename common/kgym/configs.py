"""Where data lies: what is shipped (kernels, bugs, backports, prompts), and what a user has."""

import os
from pathlib import Path

# Where a built package holds what is `configs/` in the checkout (pyproject.toml).
_PACKAGED = Path(__file__).with_name("data")
_CHECKOUT = Path(__file__).resolve().parents[2]
CONFIGS = _PACKAGED if _PACKAGED.is_dir() else _CHECKOUT / "configs"
TAPES = CONFIGS / "tapes"
PROMPTS = Path(__file__).with_name("prompts") if _PACKAGED.is_dir() else _CHECKOUT / "prompts"


def data_folder() -> Path:
    """Return where this machine's platform keeps its database, artifacts and caches: KGYM_DATA."""
    if named := os.environ.get("KGYM_DATA"):
        return Path(named)
    if (folder := checkout()) is not None:
        return folder / ".kgym"  # as `./run` says
    share = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(share) / "kgym"


def checkout() -> Path | None:
    """Return the checkout that this code runs from; None where a built package is installed."""
    here = all((_CHECKOUT / name).is_file() for name in ("run", "pyproject.toml"))
    return _CHECKOUT if here else None


def program_folder() -> Path | None:
    """Return where programs are that bundles name without holding them: KGYM_PROGRAMS."""
    named = os.environ.get("KGYM_PROGRAMS")
    return Path(named) if named else None
