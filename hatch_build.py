"""Puts the files that pages use of npm packages into the built package."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LIST = "services/kgym_monitor/packaged_files.txt"


class PackagedFiles(BuildHookInterface):
    """Copies what LIST names out of `node_modules`; an editable install reads it there.

    Without `node_modules`, as in a fresh clone that pip builds, the package has everything but
    the web pages, and `kgym monitor` says how to get them.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add all of the files, or none."""
        if version == "editable":
            return
        folder = "node_modules" if self.target_name == "sdist" else "kgym_monitor/packages"
        names = Path(self.root, LIST).read_text().split()
        paths = {name: Path(self.root, "node_modules", name) for name in names}
        if missing := [str(path) for path in paths.values() if not path.is_file()]:
            self.app.display_warning(f"built without the web pages: {missing[0]} is missing")
            return
        for name, path in paths.items():
            build_data["force_include"][str(path)] = f"{folder}/{name}"
