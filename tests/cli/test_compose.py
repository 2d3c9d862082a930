"""docker-compose.yml says to kgym only what kgym understands, and starts what it has."""

import re
from typing import Any

import click
import pytest
import yaml

from kgym_cli.program import COMMANDS, cli
from kgym_cli.settings import Setting, Settings, in_use
from tests.conftest import ROOT

FILES = [ROOT / "docker-compose.yml", *sorted((ROOT / "docker").glob("*.yml"))]
COMPOSE: dict[str, Any] = yaml.safe_load(FILES[0].read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: one for name, one in SERVICES.items() if one["image"].startswith("kgym-")}
SETTINGS = {one.variable for one in vars(Settings).values() if isinstance(one, Setting)}
STARTED = [name for name in OURS if name != "setup"]


def words(service: dict[str, Any]) -> list[str]:
    """What a service says to `kgym`: behind it in a shell's entrypoint, else the command alone."""
    shell = " ".join(service.get("entrypoint", []))
    before = re.findall(r"exec kgym (\w+)", shell)
    return [*before, *(_filled(str(word)) for word in service["command"])]


def _filled(text: str) -> str:
    """A text as it is where nobody has set a variable."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


@pytest.mark.parametrize("name", STARTED)
def test_a_service_is_a_command_with_options_that_there_are(name: str) -> None:
    command, *options = words(SERVICES[name])
    with in_use(Settings({})):
        found = cli.get_command(click.Context(cli), command)
        assert found is not None
        found.make_context(command, options)


@pytest.mark.parametrize("name", OURS)
def test_a_service_is_given_settings_that_there_are(name: str) -> None:
    given = SERVICES[name].get("environment", {})
    ours = {one for one in given if one.startswith("KGYM_")}
    assert ours
    assert ours <= SETTINGS
    chosen = Settings({one: _filled(str(given[one])) for one in ours})
    for one in ours:
        getattr(chosen, one.removeprefix("KGYM_").lower())  # raises what cannot be read


def test_what_the_files_take_from_the_environment_is_in_the_example() -> None:
    example = (ROOT / ".env.example").read_text()
    told = set(re.findall(r"^(\w+)=", example, re.M))
    asked = set(re.findall(r"\$\{(\w+)", FILES[0].read_text()))
    assert asked == told


def test_volumes_networks_and_services_that_are_named_are_there() -> None:
    for one in SERVICES.values():
        volumes = {volume.split(":")[0] for volume in one.get("volumes", [])}
        assert volumes <= set(COMPOSE["volumes"])
        assert set(one.get("networks", [])) <= set(COMPOSE["networks"])
        assert set(one.get("depends_on", [])) <= set(SERVICES)


def test_each_service_has_an_image_of_its_own_and_the_token_that_setup_makes() -> None:
    made = set(re.findall(r"^token (\w+) ", (ROOT / "docker/setup.sh").read_text(), re.M))
    targets = set(re.findall(r"^FROM \S+ AS (\S+)", (ROOT / "docker/Dockerfile").read_text(), re.M))
    for name in STARTED:
        one = SERVICES[name]
        assert one["build"]["target"] in targets
        assert one["image"] == f"kgym-{one['build']['target']}"
        assert words(one)[0] in COMMANDS
        read = re.findall(r"/tokens/(\w+)/token", " ".join(one.get("entrypoint", [])))
        assert set(read) <= made
        mounted = {volume.split(":")[1] for volume in one["volumes"]}
        assert {f"/tokens/{token}" for token in read} <= mounted


def test_the_agent_is_reached_by_its_port_and_keeps_its_database() -> None:
    agent = SERVICES["agent"]
    command = words(agent)
    port = command[command.index("--agent-port") + 1]
    assert _filled(agent["ports"][0]) == f"127.0.0.1:{port}:{port}"
    assert f":{port}/healthz" in agent["healthcheck"]["test"][-1]
    assert "agent:/data" in agent["volumes"]
    assert agent["environment"]["KGYM_SERVER"] == "http://scheduler:8420"
    assert agent["networks"] == SERVICES["builder"]["networks"]
