"""Deployment files for tests."""

from pathlib import Path

from kgym_hosts.deployment import Deployment, read_deployment

TEXT = """
name = "farm"
project = "kgym-test"
zones = ["us-central1-a", "us-central1-b"]
bucket = "kgym-test-farm"
clients = ["203.0.113.0/24"]

[scheduler]
machine_type = "e2-standard-4"

[pools.build]
machine_type = "n2-standard-8"
kinds = ["build", "check"]
slots = 2
least = 1
most = 4
spot = true
dollars_per_hour = 0.2

[pools.vms]
machine_type = "n2-standard-8"
kinds = ["reproduce"]
nested = true
"""


def deployment(folder: Path, text: str = TEXT) -> Deployment:
    """Write a deployment file, and read it."""
    file = folder / "farm.toml"
    file.write_text(text)
    return read_deployment(file)
