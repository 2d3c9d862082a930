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
OURS = {name: service for name, service in SERVICES.items() if service["image"].startswith("kgym-")}
SETTINGS = {setting.variable for setting in vars(Settings).values() if isinstance(setting, Setting)}
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
        subcommand = cli.get_command(click.Context(cli), command)
        assert subcommand is not None
        subcommand.make_context(command, options)


@pytest.mark.parametrize("name", OURS)
def test_a_service_is_given_settings_that_there_are(name: str) -> None:
    given = SERVICES[name].get("environment", {})
    ours = {variable for variable in given if variable.startswith("KGYM_")}
    assert ours
    assert ours <= SETTINGS
    chosen = Settings({variable: _filled(str(given[variable])) for variable in ours})
    for variable in ours:
        getattr(chosen, variable.removeprefix("KGYM_").lower())  # raises what cannot be read


def test_what_the_files_take_from_the_environment_is_in_the_example() -> None:
    example = (ROOT / ".env.example").read_text()
    variables = set(re.findall(r"^(\w+)=", example, re.M))
    asked = set(re.findall(r"\$\{(\w+)", FILES[0].read_text()))
    assert asked == variables


def test_volumes_networks_and_services_that_are_named_are_there() -> None:
    for service in SERVICES.values():
        volumes = {volume.split(":")[0] for volume in service.get("volumes", [])}
        assert volumes <= set(COMPOSE["volumes"])
        assert set(service.get("networks", [])) <= set(COMPOSE["networks"])
        assert set(service.get("depends_on", [])) <= set(SERVICES)


def test_each_service_has_an_image_of_its_own_and_the_token_that_setup_makes() -> None:
    made = set(re.findall(r"^token (\w+) ", (ROOT / "docker/setup.sh").read_text(), re.M))
    targets = set(re.findall(r"^FROM \S+ AS (\S+)", (ROOT / "docker/Dockerfile").read_text(), re.M))
    for name in STARTED:
        service = SERVICES[name]
        assert service["build"]["target"] in targets
        assert service["image"] == f"kgym-{service['build']['target']}"
        assert words(service)[0] in COMMANDS
        read = re.findall(r"/tokens/(\w+)/token", " ".join(service.get("entrypoint", [])))
        assert set(read) <= made
        mounted = {volume.split(":")[1] for volume in service["volumes"]}
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
