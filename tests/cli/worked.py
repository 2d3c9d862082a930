"""Steps whose results the test gives, on an embedded platform."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from kgym.api.steps import StepKind
from kgym.worker.context import Handler
from kgym_cli.platforms.embedded_platform import Platform
from tests.demo import given_steps
from tests.demo.given_steps import Answer


def working(
    platform: Platform,
    data: Path,
    answers: Mapping[StepKind, Answer],
    real: Mapping[StepKind, Handler] | None = None,
) -> AbstractContextManager[None]:
    """Let a worker do steps of these kinds for the platform on `data`, which does none itself."""
    return given_steps.working(platform.url, data, answers, real)
