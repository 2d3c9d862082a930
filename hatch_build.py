"""Puts the files that pages use of npm packages into the built package."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LIST = "services/kgym_monitor/packaged_files.txt"


class PackagedFiles(BuildHookInterface):
    """Copies what LIST names out of `node_modules`; an editable install reads it there."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the files; raise FileNotFoundError if the packages are not installed."""
        if version == "editable":
            return
        folder = "node_modules" if self.target_name == "sdist" else "kgym_monitor/packages"
        for name in Path(self.root, LIST).read_text().split():
            path = Path(self.root, "node_modules", name)
            if not path.is_file():
                raise FileNotFoundError(f"{path}: `./run` or `npm ci --ignore-scripts` installs it")
            build_data["force_include"][str(path)] = f"{folder}/{name}"
