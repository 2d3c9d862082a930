"""`kgym gc`: retention, directly on this host's database, storage and caches."""

import asyncio
import time
from collections.abc import Collection
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
from pydantic import Field
from rich.markup import escape

from kgym.api.storage import OldEntry, OldFiles, OldLog
from kgym.host import folder_cache
from kgym_cli.output import json_option, print_table, printed_json, results
from kgym_cli.output.answer import Answer
from kgym_cli.platforms.scheduler_choice import open_database, storage
from kgym_cli.settings import Size, options_of, settings


class OldCacheAnswer(Answer):
    """A folder in this host's caches."""

    entry: str
    bytes: int
    used_at: float = Field(description="seconds since 1970")


class GcAnswer(Answer):
    """Removable or removed parts; null for parts left out by --only."""

    applied: bool
    artifacts: list[OldFiles] | None = None
    entries: list[OldEntry] | None = None
    logs: list[OldLog] | None = None
    caches: list[OldCacheAnswer] | None = None


PARTS = ("artifacts", "entries", "logs", "caches")
_days = click.FloatRange(0)


@click.command()
@click.option(
    "--apply", is_flag=True, help="Remove; without this option, only show what would be removed."
)
@click.option(
    "--only",
    "parts",
    multiple=True,
    type=click.Choice(PARTS),
    help="Only this part; may be repeated.",
)
@click.option("--artifact-age", type=_days, default=90, metavar="DAYS")
@click.option("--artifact-budget", type=Size(), default="200GiB")
@click.option("--entry-age", type=_days, default=90, metavar="DAYS")
@click.option("--entry-budget", type=Size(), default="100GiB")
@click.option("--log-age", type=_days, default=30, metavar="DAYS")
@click.option("--cache-age", type=_days, default=30, metavar="DAYS")
@click.option("--cache-budget", type=Size(), default="60GiB")
@options_of("gc")
@json_option(GcAnswer)
def gc(
    apply: bool,
    parts: tuple[str, ...],
    artifact_age: float,
    artifact_budget: int,
    entry_age: float,
    entry_budget: int,
    log_age: float,
    cache_age: float,
    cache_budget: int,
    as_json: bool,
) -> None:
    """Show what retention would remove, or remove it.

    Artifacts are removed by age, and the oldest also to keep to the budget, unless an
    unfinished job owns or needs them; artifacts of attempts whose result was refused are
    removed too. SuiteCache entries and memos in storage expire after their last fetch. Logs
    of old jobs are removed from the database but remain as artifacts. Cached sources, trees
    and guest images expire after their last use, and never while in use.
    """
    wanted = parts or PARTS
    report: dict[str, Any] = {}
    if set(wanted) & {"artifacts", "logs"}:
        from kgym_scheduler.retention.artifact_retention import ArtifactPolicy  # noqa: PLC0415 - as in `connect`

        policy = ArtifactPolicy(
            artifact_age=timedelta(days=artifact_age),
            artifact_budget=artifact_budget,
            log_age=timedelta(days=log_age),
        )
        report |= asyncio.run(_scheduler_parts(wanted, policy, apply=apply))
    if "entries" in wanted:
        age = timedelta(days=entry_age)
        report["entries"] = asyncio.run(_stored_entries(age, entry_budget, apply=apply))
    if "caches" in wanted:
        old = _old_entries(settings().cache, cache_age * 86400, cache_budget)
        # `remove` refuses an entry that a process has locked, so one in use never counts as
        # removed.
        gone = [entry for entry in old if not apply or entry.remove()]
        report["caches"] = [
            OldCacheAnswer(entry=str(e.root / e.key), bytes=e.size, used_at=e.used_at) for e in gone
        ]
    answer = GcAnswer(applied=apply, **report)
    if not printed_json(answer, as_json):
        _print(answer.model_dump(exclude_none=True))


async def _scheduler_parts(
    wanted: Collection[str], policy: Any, *, apply: bool
) -> dict[str, list[Any]]:
    from kgym_scheduler.retention import artifact_retention  # noqa: PLC0415

    report: dict[str, list[Any]] = {}
    async with open_database() as database:
        if "artifacts" in wanted:
            store = storage()
            files = await artifact_retention.old_files(database, store, policy)
            if apply:
                files = await artifact_retention.remove_files(database, store, files)
            report["artifacts"] = files
        if "logs" in wanted:
            report["logs"] = await artifact_retention.old_logs(database, policy)
            if apply:
                await artifact_retention.remove_logs(database, report["logs"])
    return report


async def _stored_entries(age: timedelta, budget: int, *, apply: bool) -> list[OldEntry]:
    from kgym_scheduler.retention import cache_retention  # noqa: PLC0415

    policy = cache_retention.CachePolicy(age=age, budget=budget)
    entries = await cache_retention.old_entries(storage(), policy)
    if apply:
        await cache_retention.remove_entries(storage(), entries)
    return entries


def _old_entries(folder: Path, age: float, budget: int) -> list[folder_cache.CachedFolder]:
    """Return entries unused for `age` seconds, and the least recently used ones over budget."""
    # Least recently used first, so that the loop removes these until the rest fits the budget.
    entries = sorted(folder_cache.entries(folder), key=lambda entry: entry.used_at)
    total = sum(entry.size for entry in entries)
    old = []
    for entry in entries:
        if entry.used_at < time.time() - age or total > budget:
            old.append(entry)
            total -= entry.size
    return old


def _print(report: dict[str, Any]) -> None:
    rows = [_row(part, entry) for part in PARTS for entry in report.get(part, [])]
    print_table("part", "what", "MiB", "why", rows=rows)
    total = sum(entry["bytes"] for part in PARTS for entry in report.get(part, []))
    word = "removed" if report["applied"] else "can be removed with --apply"
    results.print(f"{total / (1 << 20):,.1f} MiB {word}")


def _row(part: str, row: dict[str, Any]) -> tuple[str, ...]:
    place = f"job {row['job']}, step {row['step']}" if "job" in row else None
    place = place or row.get("entry") or row["prefix"]
    why = row.get("why") or ("age" if part == "logs" else "unused")
    return part, escape(place), f"{row['bytes'] / (1 << 20):.1f}", why
