"""`kgym up` and `kgym monitor`, as processes."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from kgym_cli.platforms.embedded_platform import Platform

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(240)]


@contextmanager
def started(data: Path, *words: str) -> Iterator[str]:
    """Run a command until it has said where its monitor is; yield that, and end it well."""
    with subprocess.Popen(
        [sys.executable, "-m", "kgym_cli", *words],
        env={**os.environ, "KGYM_DATA": str(data)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        lines = []
        try:
            for line in process.stdout:
                lines.append(line)
                if match := re.match(r"monitor: (http://\S+)", line):
                    yield match[1]
                    break
            else:
                raise AssertionError("".join(lines))
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                rest, _ = process.communicate(timeout=60)
            finally:
                process.kill()
            assert process.returncode in {0, 130}, rest
            assert "Traceback" not in rest


def test_up_serves_the_monitor_beside_the_scheduler(tmp_path: Path) -> None:
    with started(tmp_path, "up", "--port", "0", "--monitor-port", "0") as url:
        page = httpx.get(f"{url}/jobs", trust_env=False, timeout=60)
        assert page.status_code == 200
        assert "There are no jobs yet" in page.text


def test_a_monitor_of_a_scheduler_elsewhere(tmp_path: Path) -> None:
    with Platform(tmp_path / "there", work=False) as platform:
        words = ("monitor", "--server", platform.url, "--monitor-port", "0")
        with started(tmp_path / "here", *words) as url:
            assert httpx.get(f"{url}/", trust_env=False, timeout=60).status_code == 200
