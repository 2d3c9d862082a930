"""The command line, as tests of commands have it."""

from tests.cli.conftest import data, idle, kgym

__all__ = ["data", "idle", "kgym"]
