"""Locations of data: what is shipped (kernels, bugs, backports, prompts), and the user's."""

import os
from pathlib import Path

# The place of `configs/` in a built package (pyproject.toml).
_PACKAGED = Path(__file__).with_name("data")
_CHECKOUT = Path(__file__).resolve().parents[2]
CONFIGS = _PACKAGED if _PACKAGED.is_dir() else _CHECKOUT / "configs"
TAPES = CONFIGS / "tapes"
PROMPTS = Path(__file__).with_name("prompts") if _PACKAGED.is_dir() else _CHECKOUT / "prompts"


def data_folder() -> Path:
    """Return the folder of this machine's database, artifacts and caches: KGYM_DATA."""
    if named := os.environ.get("KGYM_DATA"):
        return Path(named)
    if (folder := checkout()) is not None:
        return folder / ".kgym"  # as in `./run`
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "kgym"


def checkout() -> Path | None:
    """Return the checkout that this code runs from; None for an installed package."""
    here = all((_CHECKOUT / name).is_file() for name in ("run", "pyproject.toml"))
    return _CHECKOUT if here else None


def program_folder() -> Path | None:
    """Return the folder of programs that bundles name but do not contain: KGYM_PROGRAMS."""
    named = os.environ.get("KGYM_PROGRAMS")
    return Path(named) if named else None
