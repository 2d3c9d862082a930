"""Imports go one way: services import `kgym` and never each other; only the CLI joins them."""

import ast
from pathlib import Path

from tests.conftest import ROOT

SERVICES = {path.name for path in (ROOT / "services").iterdir() if (path / "__init__.py").exists()}


def imported(file: Path) -> set[str]:
    packages = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            packages |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            packages.add(node.module.split(".")[0])
    return packages


def test_common_imports_no_service() -> None:
    files = list((ROOT / "common").rglob("*.py"))
    assert files
    for file in files:
        assert not imported(file) & SERVICES, file


def test_services_do_not_import_each_other() -> None:
    assert {"kgym_builder", "kgym_cli", "kgym_scheduler", "kgym_vmmanager"} <= SERVICES
    for service in SERVICES - {"kgym_cli"}:
        for file in (ROOT / "services" / service).rglob("*.py"):
            assert not imported(file) & (SERVICES - {service}), file
