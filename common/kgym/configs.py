"""Where the data of the platform is: kernels, bugs, backports, lists."""

from pathlib import Path

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
