"""Logs: JSON lines for programs, words for people, each with what it is about."""

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from kgym.host import process_logs

pytestmark = pytest.mark.anyio


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    before = list(root.handlers), root.level
    yield
    root.handlers[:], root.level = before
    structlog.reset_defaults()


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


async def test_each_line_tells_job_step_and_attempt() -> None:
    stream = io.StringIO()
    process_logs.configure(stream)
    log = structlog.get_logger()

    async def work(job: int) -> None:
        with process_logs.attempt(job=job, step=1, attempt=2):
            await asyncio.sleep(0)
            await asyncio.create_task(asyncio.to_thread(log.info, "compiling", unit="sched"))

    await asyncio.gather(work(7), work(8))
    log.info("idle")
    entries = sorted(lines(stream)[:2], key=lambda line: line["job"])
    assert [(t["job"], t["step"], t["attempt"], t["event"]) for t in entries] == [
        (7, 1, 2, "compiling"),
        (8, 1, 2, "compiling"),
    ]
    assert entries[0]["level"] == "info"
    assert entries[0]["timestamp"].endswith("Z")
    assert "job" not in lines(stream)[2]


def test_libraries_warn_in_the_same_form() -> None:
    stream = io.StringIO()
    process_logs.configure(stream)
    with process_logs.attempt(job=7, step=0, attempt=1):
        logging.getLogger("library.part").warning("lost %s", "it")
        logging.getLogger("library.part").info("not told")
    [line] = lines(stream)
    assert (line["event"], line["logger"], line["job"]) == ("lost it", "library.part", 7)


def test_an_error_is_one_line_with_its_traceback() -> None:
    stream = io.StringIO()
    process_logs.configure(stream)
    try:
        raise ValueError("a\nb")
    except ValueError:
        structlog.get_logger().exception("failed")
    [line] = lines(stream)
    assert "ValueError: a\nb" in line["exception"]


def test_a_terminal_gets_words() -> None:
    stream = Terminal()
    process_logs.configure(stream)
    structlog.get_logger().warning("report not delivered", error="gone")
    assert "report not delivered" in stream.getvalue()
    assert not stream.getvalue().startswith("{")
