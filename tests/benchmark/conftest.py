"""The command line, as tests of commands have it."""

from tests.cli.conftest import data, kgym

__all__ = ["data", "kgym"]
