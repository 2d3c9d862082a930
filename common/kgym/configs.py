"""Where the data of the platform is: kernels, bugs, backports, lists."""

from pathlib import Path

_PACKAGED = Path(__file__).with_name("data")
"""Where a built package holds what is `configs/` in the checkout (pyproject.toml)."""
CONFIGS = _PACKAGED if _PACKAGED.is_dir() else Path(__file__).resolve().parents[2] / "configs"
