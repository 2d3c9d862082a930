"""Every kind of steps has its models, a handler and a worker, on one host and in containers."""

from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from kgym.api.steps import BuildSpec, MinimizeSpec, StepKind, StepRef, StepResult, StepSpec
from kgym.errors import InfrastructureError
from kgym.transport.artifact_storage import LocalStorage
from kgym_cli.platforms.step_registry import (
    REGISTRY,
    Equipment,
    Service,
    handlers,
    kinds_named,
    looking,
    workers_of_one_host,
)
from tests.conftest import ANYWHERE, ROOT, NewRun

SERVICES: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
WORKERS = {
    name: service
    for name, service in SERVICES.items()
    if "kgym worker" in " ".join(service.get("entrypoint", ""))
}
# Which image holds the programs that a service's handlers start.
IMAGES = {
    Service.BUILDER: "kgym-builder",
    Service.VMMANAGER: "kgym-vmmanager",
    Service.TRACER: "kgym-vmmanager",
}


def models(union: object) -> dict[StepKind, type]:
    """The models of a union, by the kind that each is for."""
    variants = get_args(get_args(union)[0])
    return {variant.model_fields["kind"].default: variant for variant in variants}


@pytest.mark.anyio
@pytest.mark.parametrize("kind", StepKind)
async def test_a_kind_has_its_models_and_the_handler_of_these(
    kind: StepKind, new_run: NewRun, fake_build: BuildSpec, tmp_path: Path
) -> None:
    (handler,) = handlers([kind], Equipment(tmp_path / "cache", ANYWHERE)).values()
    ref = StepRef(step=0)
    others = (fake_build, MinimizeSpec(build=ref, reproduce=ref))
    other = next(spec for spec in others if spec.kind is not kind)
    with pytest.raises(InfrastructureError, match=f"not a {models(StepSpec)[kind].__name__}$"):
        await handler(new_run(other))
    assert kind in models(StepResult)


def test_one_host_has_a_worker_for_every_kind() -> None:
    kinds = [kind for shape in workers_of_one_host() for kind in shape.kinds]
    assert sorted(kinds) == sorted(REGISTRY) == sorted(StepKind)


def test_a_service_is_short_for_its_kinds() -> None:
    of_builder = [StepKind.BUILD, StepKind.CHECK, StepKind.SOURCE]
    of_builder += [StepKind.SYZKALLER, StepKind.HISTORY]
    assert kinds_named("builder") == of_builder
    assert kinds_named("tracer, check,tracer") == [StepKind.MINIMIZE, StepKind.CHECK]
    assert sorted(kinds_named(",".join(Service))) == sorted(StepKind)
    with pytest.raises(ValueError, match="'vm' is not a valid StepKind"):
        kinds_named("builder,vm")


@pytest.mark.anyio
@pytest.mark.thorough
async def test_only_workers_with_vms_try_the_accelerators(tmp_path: Path) -> None:
    has = Equipment(tmp_path / "cache", ANYWHERE)
    storage = LocalStorage(tmp_path / "artifacts")
    look = await looking(kinds_named("builder,tracer"), has, storage)
    assert (await look()).accelerator is None
    assert not (tmp_path / "cache").exists()


def test_the_containers_do_every_kind_once_where_its_programs_are() -> None:
    done: list[StepKind] = []
    for worker in WORKERS.values():
        words: list[str] = worker["command"]
        kinds = kinds_named(words[words.index("--kinds") + 1])
        assert {IMAGES[REGISTRY[kind].service] for kind in kinds} == {worker["image"]}
        done += kinds
    assert sorted(done) == sorted(StepKind)
