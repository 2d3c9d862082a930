"""All settings: their names, units and defaults, and the one place that reads them.

A setting is what the command line says (`--port`), else what the environment says (`KGYM_PORT`),
else its default. It is read when it is asked for, so that a bad value ends only the commands that
use it. Where the data folder is, libraries ask as well: `kgym.configs.data_folder`.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, Literal, Self, TypeVar, overload
from urllib.parse import urlsplit

import click
from click.core import ParameterSource

from kgym.configs import data_folder, program_folder
from kgym.errors import UserError

T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., Any])

_FOLDER = click.Path(path_type=Path)
_EXISTING_FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)


class Size(click.ParamType[int]):
    """Bytes, as pydantic reads them: 200GB are 200 * 10^9, 200GiB are 200 * 2^30."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes."""
        from pydantic import ByteSize, TypeAdapter, ValidationError  # noqa: PLC0415 - 0.1 s

        try:
            return TypeAdapter(ByteSize).validate_python(value)
        except ValidationError:
            self.fail(f"{value!r} is no size; write e.g. 500MB or 200GiB", param, ctx)


class Url(click.ParamType[str]):
    """The address of a service, over HTTP."""

    name = "url"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the address as it was given."""
        try:
            parts = urlsplit(str(value))
            good = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
        except ValueError:
            good = False
        if not good:
            self.fail(f"{value!r} is no address; write e.g. http://127.0.0.1:8420", param, ctx)
        return str(value)


class HostName(click.ParamType[str]):
    """The name of a host, as the scheduler takes it."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return it as it was given."""
        if not re.fullmatch(r"[\w.+-]{1,120}", str(value), re.ASCII):
            self.fail(f"{value!r} is no name of a host", param, ctx)
        return str(value)


class Setting(Generic[T]):
    """A setting: an attribute of `Settings`, an option of `commands`, a variable KGYM_…."""

    def __init__(
        self,
        words: str,
        default: T | Callable[["Settings"], T],
        kind: click.ParamType[Any] = click.STRING,
        *,
        commands: tuple[str, ...] = (),
        shown: str = "",
    ) -> None:
        self.name = ""
        # What it is, with its unit.
        self.words = words
        self.default = default
        self.kind = kind
        # Which commands take it as an option; the others that use it know the variable alone.
        self.commands = commands
        # The default, where it depends on others.
        self.default_words = shown

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @property
    def option(self) -> str:
        """How it is called on the command line."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def variable(self) -> str:
        """How it is called in the environment."""
        return f"KGYM_{self.name.upper()}"

    @property
    def default_shown(self) -> str:
        """The default, in words where it depends on others; empty if there is none."""
        return self.default_words or ("" if self.default is None else str(self.default))

    @overload
    def __get__(self, settings: None, owner: type) -> Self: ...
    @overload
    def __get__(self, settings: "Settings", owner: type) -> T: ...
    def __get__(self, settings: "Settings | None", owner: type) -> Self | T:
        """Return what it is set to. Raises UserError `bad_setting`."""
        if settings is None:
            return self
        if (given := settings.given.get(self.name)) is not None:
            return self._read(given, self.option)
        if text := settings.environment.get(self.variable):
            return self._read(text, self.variable)
        return self.default(settings) if callable(self.default) else self.default

    def _read(self, value: object, name: str) -> T:
        try:
            read: T = self.kind.convert(value, None, None)
        except click.BadParameter as error:
            raise UserError("bad_setting", f"{name}: {error.message}", setting=self.name) from error
        return read


# The commands of `kgym run`.
RUNS = ("calls", "list", "patch", "report", "resume", "show", "stop")


# The commands that can be tried against an emulated cloud.
TRIED = ("bug reproduce", "demo")


class Settings:
    """What a command goes by: options, else variables, else defaults. See `settings`."""

    server = Setting[str | None](
        "URL of a scheduler; otherwise the platform of this machine is used, or started.",
        None,
        Url(),
        commands=("kgym", "worker"),
    )
    token = Setting[str | None](
        "What a scheduler asks for; `kgym token create` printed it.", None, commands=("kgym",)
    )
    data = Setting[Path](
        "Folder of this machine's database, artifacts and caches.",
        lambda _: data_folder(),
        _FOLDER,
        shown=".kgym of kgym's checkout, or else ~/.local/share/kgym",
    )
    programs = Setting[Path | None](
        "Folder of the programs that bundles name without holding them.",
        lambda _: program_folder(),
        _FOLDER,
    )
    database = Setting[str | None](
        "URL of the database: postgresql+asyncpg://… or sqlite+aiosqlite:///….",
        None,
        commands=("db upgrade", "scheduler"),
        shown="this machine's, in the data folder",
    )
    bus = Setting[str | None](
        "URL of the message broker: amqp://…; without, workers ask every second.",
        None,
        commands=("scheduler", "worker"),
    )
    storage = Setting[str](
        "Folder of the artifacts, which scheduler and workers share; or gs://BUCKET/PREFIX.",
        lambda settings: str(settings.data / "artifacts"),
        commands=("scheduler", "worker"),
        shown="artifacts in the data folder",
    )
    benchmarks = Setting[str](
        "Folder of published benchmarks, which the monitor shows; or gs://BUCKET/PREFIX.",
        lambda settings: str(settings.data / "benchmarks"),
        commands=("bench publish", "bench site", "monitor", "up"),
        shown="benchmarks in the data folder",
    )
    disk_budget = Setting[int](
        "Most bytes of storage and database, e.g. 500GB; above, finished jobs' artifacts go.",
        200 << 30,
        Size(),
        commands=("scheduler", "up"),
        shown="200GiB",
    )
    artifact_days = Setting[float](
        "How long the artifacts of finished jobs are kept, in days.",
        30.0,
        click.FloatRange(0),
        commands=("scheduler", "up"),
    )
    agent = Setting[str | None](
        "URL of an agent service (`kgym agent`); otherwise the one of this machine, if it runs.",
        None,
        Url(),
        commands=("fix", "bench run", *(f"run {verb}" for verb in RUNS), "monitor", "up"),
    )
    agent_port = Setting[int](
        "Port that the agent listens on; 0 takes any that is free.",
        8421,
        click.IntRange(0, 65535),
        commands=("agent",),
    )
    agent_runs = Setting[Path | None](
        "Folder in which the agent stores its runs.",
        None,
        _FOLDER,
        commands=("agent",),
        shown="runs in the data folder",
    )
    agent_models = Setting[str | None](
        "Models (PROVIDER:MODEL,…) that the agent's callers may use, other endpoints included.",
        None,
        commands=("agent",),
        shown="all of providers",
    )
    model = Setting[str | None](
        "PROVIDER:MODEL, such as anthropic:claude-sonnet-4-5; openai-chat:NAME@URL for any endpoint"
        " that speaks as OpenAI's; or replay:FILE for a tape.",
        None,
        commands=("fix",),
    )
    model_key_file = Setting[Path | None](
        "File with the key for the model.",
        None,
        _FOLDER,
        commands=("fix", "run resume", "agent", "bench judge"),
        shown="OPENAI_API_KEY, ANTHROPIC_API_KEY or GOOGLE_API_KEY",
    )
    monitor_port = Setting[int](
        "Port that the web monitor listens on; 0 takes any that is free.",
        8422,
        click.IntRange(0, 65535),
        commands=("monitor", "up"),
    )
    host = Setting[str](
        "Address to listen on.", "127.0.0.1", commands=("scheduler", "agent", "monitor")
    )
    port = Setting[int](
        "Port to listen on; 0 takes any that is free.",
        8420,
        click.IntRange(0, 65535),
        commands=("scheduler", "up"),
    )
    lease = Setting[float](
        "Seconds after which a worker that is not heard of has lost its steps.",
        60.0,
        click.FloatRange(min=3.0),
        commands=("scheduler",),
    )
    requests_per_second = Setting[float](
        "Of one caller: a token, or an address; twice as many at once after a pause.",
        3000.0,
        click.FloatRange(min=0.1),
        commands=("scheduler", "agent"),
    )
    streams = Setting[int](
        "Event streams that one caller can have open.",
        200,
        click.IntRange(1),
        commands=("scheduler", "agent"),
    )
    unfinished_jobs = Setting[int](
        "Jobs of one submitter that have not finished.",
        100_000,
        click.IntRange(1),
        commands=("scheduler",),
    )
    bytes_per_second = Setting[float](
        "Of one submitter's jobs, in the long run; 4096 times as many at once after a pause.",
        float(256 << 10),
        click.FloatRange(min=1),
        commands=("scheduler",),
    )
    owner_token = Setting[str | None](
        "A token that allows everything; `kgym up --distributed` makes one for its scheduler.", None
    )
    kinds = Setting[str | None](
        "Kinds of steps to do, or services (builder, vmmanager, tracer) for those of each.",
        None,
        commands=("worker",),
        shown="all",
    )
    slots = Setting[int](
        "Steps to do at the same time.", 1, click.IntRange(1, 1000), commands=("worker",)
    )
    host_name = Setting[str | None](
        "What the scheduler calls the host of a worker.",
        None,
        HostName(),
        commands=("worker",),
        shown="the host's own name",
    )
    folder = Setting[Path](
        "Folder for a worker's files of the steps that it does.",
        lambda settings: settings.data / "work" / "workers",
        _FOLDER,
        commands=("worker",),
        shown="work/workers in the data folder",
    )
    cache = Setting[Path](
        "Folder of the caches of this host's workers, and of its scheduler.",
        lambda settings: settings.data / "cache",
        _FOLDER,
        commands=("gc", "scheduler", "worker"),
        shown="cache in the data folder",
    )
    syzkaller = Setting[Path](
        "Folder with syz-execprog and syz-executor, or with such folders named by commit.",
        lambda settings: settings.data / "syzkaller",
        _EXISTING_FOLDER,
        commands=("up", "worker"),
        shown="syzkaller in the data folder",
    )
    provider = Setting[str](
        "What runs VMs: QEMU on this host, or Google Compute Engine.",
        "qemu",
        click.Choice(["qemu", "gce"]),
        commands=("worker", *TRIED),
    )
    emulated = Setting[bool](
        "With --provider gce: against servers on this machine that answer as the cloud does.",
        False,
        click.BOOL,
        commands=("worker", *TRIED),
        shown="off",
    )
    gce_project = Setting[str | None](
        "Project of Google Cloud in which VMs are made.", None, commands=("worker",)
    )
    gce_zones = Setting[str | None](
        "Zones for VMs (us-central1-a,us-central1-b), tried in this order.",
        None,
        commands=("worker",),
    )
    gce_address = Setting[str | None](
        "Address of this worker in the VMs' network, where they fetch kernels.",
        None,
        commands=("worker",),
    )
    gce_port = Setting[int](
        "Port for that; 0 takes any that is free.",
        0,
        click.IntRange(0, 65535),
        commands=("worker",),
    )
    gce_machine = Setting[str](
        "Family of custom machine types for VMs.", "n2-custom", commands=("worker",)
    )
    gce_network = Setting[str](
        "Network of the VMs.", "global/networks/default", commands=("worker",)
    )
    gce_subnet = Setting[str | None]("Its subnet, if it has several.", None, commands=("worker",))
    gce_image = Setting[str | None](
        "Helper image that VMs boot.", None, commands=("worker",), shown="made, and put there"
    )
    gce_image_per_kernel = Setting[bool](
        "Whether each kernel gets an image of its own, where the helper cannot start them.",
        False,
        click.BOOL,
        commands=("worker", *TRIED),
        shown="for those that it refuses",
    )
    gce_owner = Setting[str](
        "Label of this platform's VMs; what has it and is too old is deleted.",
        "kgym",
        commands=("worker",),
    )
    gce_spot = Setting[bool](
        "Whether VMs are tried at the lower price first.",
        True,
        click.BOOL,
        commands=("worker",),
    )
    gce_vms = Setting[int](
        "VMs of this worker at the same time.", 50, click.IntRange(1, 10_000), commands=("worker",)
    )
    sources = Setting[str | None](
        "Folders (DIR:DIR) with tarballs and Git repositories that any job may use.",
        None,
        commands=("up", "worker"),
    )
    source_networks = Setting[str | None](
        "Private networks (10.1.0.0/16,…) from which any job may take kernel sources.",
        None,
        commands=("up", "worker"),
    )
    mirrors = Setting[Path](
        "Folder of Git mirrors, with a table map.json: an object from URL to path.",
        lambda settings: settings.data / "mirrors",
        _FOLDER,
        commands=("bench watch", "mirror", "up", "worker"),
        shown="mirrors in the data folder",
    )
    make_seconds = Setting[float](
        "Most that one run of make may take, in seconds; jobs may ask for less.",
        14400.0,
        click.FloatRange(min=1),
        commands=("up", "worker"),
    )
    near_entries = Setting[Literal["any", "packages", "none"] | None](
        "From which entries of SuiteCache others are made: any; packages, those of distributions'"
        " sources alone; or none.",
        None,
        click.Choice(("any", "packages", "none")),
        commands=("up", "worker"),
        shown="any where nobody else can submit, else packages",
    )
    near_rehearsals = Setting[float](
        "Share of the entries made from others that are made from scratch as well, and compared.",
        0.05,
        click.FloatRange(0, 1),
        commands=("up", "worker"),
    )
    archives = Setting[str | None](
        "Where Debian's suites are (buster=http://…;*=http://…), for toolchain images; or `none`.",
        None,
        commands=("up", "worker"),
        shown="the archive of this host's apt",
    )

    syzbot = Setting[str](
        "URL of syzbot's dashboard.",
        "https://syzkaller.appspot.com",
        Url(),
        commands=("bench watch",),
    )
    syzbot_namespace = Setting[str](
        "Which kernel's bugs, as the dashboard names it in its addresses.",
        "upstream",
        commands=("bench watch",),
    )
    lore = Setting[str](
        "URL of the archive of mailing lists, in place of lore.kernel.org.",
        "https://lore.kernel.org",
        Url(),
        commands=("bench watch",),
    )
    git_site = Setting[str](
        "URL of the web pages of Git repositories (cgit), for what no mirror has.",
        "https://git.kernel.org",
        Url(),
        commands=("bench watch",),
    )
    crawl_pause = Setting[float](
        "Seconds between two requests to one site.",
        1.0,
        click.FloatRange(0, 3600),
        commands=("bench watch",),
    )
    bug = Setting[str | None](
        "A shipped bug, or the folder of a bundle.",
        None,
        commands=("mcp", "run-kernel"),
        shown="as `bug source` noted in the tree",
    )

    def __init__(
        self, environment: Mapping[str, str], given: Mapping[str, object] | None = None
    ) -> None:
        self.environment = environment
        # What the command line says, by the names of settings.
        self.given = dict(given or {})


ALL: tuple[Setting[Any], ...] = tuple(
    setting for setting in vars(Settings).values() if isinstance(setting, Setting)
)
_in_use: Settings | None = None


def settings() -> Settings:
    """Return the settings of the command that runs, or, of none, those of the environment."""
    return _in_use or Settings(os.environ)


@contextmanager
def in_use(chosen: Settings) -> Iterator[None]:
    """Let these be the settings while the context lasts."""
    global _in_use  # noqa: PLW0603 - threads that a command starts go by the same settings
    before, _in_use = _in_use, chosen
    try:
        yield
    finally:
        _in_use = before


class SettingOption(click.Option):
    """The option of a setting: shown with its variable and default, kept by the settings."""

    def __init__(self, setting: Setting[Any]) -> None:
        fixed = None if callable(setting.default) or setting.default_words else setting.default
        super().__init__(
            [setting.option],
            type=setting.kind,
            help=setting.words,
            envvar=setting.variable,
            show_envvar=True,
            default=fixed,
            show_default=setting.default_words or fixed is not None,
            is_flag=setting.kind is click.BOOL and setting.default is False,
            expose_value=False,
            callback=_keep,
        )

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Leave the environment to the settings."""
        return None


def options_of(command: str) -> Callable[[Command], Command]:
    """Return the decorator that lets a command take its settings as options."""

    def decorate(function: Command) -> Command:
        own = [SettingOption(setting) for setting in ALL if command in setting.commands]
        function.__dict__.setdefault("__click_params__", []).extend(reversed(own))
        return function

    return decorate


def _keep(context: click.Context, parameter: click.Parameter, value: object) -> None:
    source = context.get_parameter_source(str(parameter.name))
    if source is ParameterSource.COMMANDLINE and _in_use is not None:
        _in_use.given[str(parameter.name)] = value
