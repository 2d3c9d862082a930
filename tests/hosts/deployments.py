"""Deployment files for tests."""

from pathlib import Path

from kgym_hosts.deployment import Deployment, read_deployment

TEXT = Path(__file__).with_name("farm.toml").read_text()


def deployment(folder: Path, text: str = TEXT) -> Deployment:
    """Write a deployment file, and read it."""
    file = folder / "farm.toml"
    file.write_text(text)
    return read_deployment(file)
