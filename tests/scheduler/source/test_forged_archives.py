"""Attacks by a worker under a valid lease: a forged source archive, and forged names of it."""

import sqlite3
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from pydantic import ValidationError

from kgym.api.source import FileLook, Look, SearchLook, SymbolLook
from kgym.api.steps import SourceResult, SourceSpec, StepKind
from kgym.api.worker_calls import AttemptEnding
from kgym.errors import InfrastructureError, UserError
from kgym.source import source_archive
from kgym.transport.artifact_storage import ArtifactMissing, LocalStorage
from kgym_builder.source import archive_writer
from kgym_scheduler.job_store import JobStore
from kgym_scheduler.source import archive
from kgym_scheduler.source.search import look_up, search
from kgym_scheduler.source.sources import Sources
from kgym_scheduler.source.view import View
from tests.scheduler.parts import BUILD, claim_of, job
from tests.tables import json_rows

pytestmark = [pytest.mark.anyio, pytest.mark.attack]

NAME = "a" * 40
LOOKS: list[Callable[[View], object]] = [
    lambda view: view.read(FileLook(path="lib/f.c")),
    lambda view: view.folder("lib"),
    lambda view: search(view, SearchLook(pattern="needle")),
    lambda view: look_up(view, SymbolLook(name="needle")),
]


def result(name: str) -> SourceResult:
    return SourceResult(
        source_identity="x", backports=[], source_tree=name, made=True, files=1, bytes=1, seconds={}
    )


def endless(table: str, columns: str) -> str:
    """Return SQL that replaces a table by a view whose rows never end."""
    return (
        f"ALTER TABLE {table} RENAME TO old; CREATE VIEW {table} AS WITH RECURSIVE n(i) AS (SELECT"
        f" 1 UNION ALL SELECT i + 1 FROM n WHERE i > 0) SELECT {columns} FROM n WHERE i < 0"
    )


@cache
def bomb() -> bytes:
    """Zeros, compressed to a thousandth; made by the first test that needs them."""
    return source_archive.compressed(bytes(8 * source_archive.KEPT))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "sql", json_rows(__file__, "forged_archives.jsonl"), ids=lambda sql: sql[:50]
)
async def test_a_forged_archive_is_an_error_of_its_own_job(
    store: JobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sql: str
) -> None:
    monkeypatch.setattr(archive, "READ_SECONDS", 0.05)
    path = tmp_path / source_archive.FILE
    (tmp_path / "tree" / "lib").mkdir(parents=True)
    (tmp_path / "tree" / "lib" / "f.c").write_text("int needle;\nint f(void)\n{\n\treturn 1;\n}\n")
    archive_writer.write(tmp_path / "tree", [], "x", path)
    with sqlite3.connect(path) as database:
        for statement in sql.split("; "):
            database.execute(statement, {"bomb": bomb()} if ":bomb" in statement else {})
    storage = LocalStorage(tmp_path / "storage")
    await storage.put(source_archive.key_of(NAME), path)
    await store.submit(job(SourceSpec(source=BUILD.source)))
    claimed = await store.claim(claim_of(kinds=[StepKind.SOURCE]))
    lease = claimed[0].assignments[0].lease
    assert await store.finish(lease, AttemptEnding(result=result(NAME)))
    async with Sources(storage, tmp_path / "sources") as sources:
        begin = time.process_time()
        for look in LOOKS:
            try:
                await sources.look(store.get, 1, Look(), look)
            except InfrastructureError as error:
                assert error.reason == "source_damaged"  # noqa: PT017 - others may succeed
            except UserError:
                pass  # there is no such file or symbol
        assert time.process_time() - begin < 20  # the attacks would take hours


@pytest.mark.parametrize(
    "name", ["..", "/../../x", "/etc", "a/b", "*", "a\0b", "A" * 40, "a" * 41, f"{NAME}\n"]
)
def test_a_forged_name_of_an_archive_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="source_tree"):
        result(name)


@pytest.mark.parametrize("link", ["file", "folder", "dangling", "loop"])
async def test_a_link_in_the_shared_storage_shows_no_file_of_the_scheduler(
    tmp_path: Path, link: str
) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "step.log").write_text("token")
    storage = LocalStorage(tmp_path / "storage")
    place = storage.root / "steps" / "1" / "lease"
    place.parent.mkdir(parents=True)
    if link == "folder":
        place.symlink_to(tmp_path / "secret")
    else:
        place.mkdir()
        target = {"file": tmp_path / "secret/step.log", "dangling": tmp_path / "no"}
        (place / "step.log").symlink_to(target.get(link, "step.log"))
    with pytest.raises(ArtifactMissing):
        await storage.get("steps/1/lease/step.log", tmp_path / "got")
    with pytest.raises(ArtifactMissing):
        await anext(storage.read("steps/1/lease/step.log", 0, 5))
    with pytest.raises(ArtifactMissing):
        await storage.copy("steps/1/lease/step.log", "steps/2/lease/step.log")
