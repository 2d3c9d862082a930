"""All settings: their names, units and defaults, and the one place that reads them.

A setting comes from the command line (`--port`), else from the environment (`KGYM_PORT`), else it
has its default. It is read on access, so that a bad value only affects commands that use it. The
data folder is also read by libraries: `kgym.configs.data_folder`.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
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
    """Bytes in pydantic's notation: 200GB are 200 * 10^9, 200GiB are 200 * 2^30."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes."""
        from pydantic import ByteSize, TypeAdapter, ValidationError  # noqa: PLC0415 - 0.1 s

        try:
            return TypeAdapter(ByteSize).validate_python(value)
        except ValidationError:
            self.fail(f"{value!r} is not a size such as 500MB or 200GiB", param, ctx)


class Url(click.ParamType[str]):
    """HTTP URL of a service."""

    name = "url"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the URL unchanged."""
        try:
            parts = urlsplit(str(value))
            good = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
        except ValueError:
            good = False
        if not good:
            self.fail(f"{value!r} is not a URL such as http://127.0.0.1:8420", param, ctx)
        return str(value)


class HostName(click.ParamType[str]):
    """Host name that the scheduler accepts."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name unchanged."""
        if not re.fullmatch(r"[\w.+-]{1,120}", str(value), re.ASCII):
            self.fail(f"{value!r} is not a host name", param, ctx)
        return str(value)


@dataclass(eq=False)
class Setting(Generic[T]):
    """A setting: an attribute of `Settings`, an option of `commands`, and a variable KGYM_…."""

    # Description, with its unit.
    words: str
    default: T | Callable[["Settings"], T]
    kind: click.ParamType[Any] = click.STRING
    _: KW_ONLY
    # Commands that take it as an option; others that use it only read the variable.
    commands: tuple[str, ...] = ()
    # Text for a default that depends on other settings.
    shown: str = ""
    name: str = field(default="", init=False)

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @property
    def option(self) -> str:
        """Name of the option."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def variable(self) -> str:
        """Name of the environment variable."""
        return f"KGYM_{self.name.upper()}"

    @property
    def default_shown(self) -> str:
        """Text of the default; empty if there is none."""
        return self.shown or ("" if self.default is None else str(self.default))

    @overload
    def __get__(self, settings: None, owner: type) -> Self: ...
    @overload
    def __get__(self, settings: "Settings", owner: type) -> T: ...
    def __get__(self, settings: "Settings | None", owner: type) -> Self | T:
        """Return the value; raise UserError `bad_setting`."""
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


def _text(words: str, *commands: str, shown: str = "") -> Setting[str | None]:
    """Return a setting of any text; None if it is not given."""
    return Setting(words, None, commands=commands, shown=shown)


def _port(words: str, default: int, *commands: str) -> Setting[int]:
    """Return a setting of a TCP port."""
    return Setting(words, default, click.IntRange(0, 65535), commands=commands)


def _flag(words: str, *commands: str, shown: str) -> Setting[bool]:
    """Return a setting that is off by default."""
    return Setting(words, False, click.BOOL, commands=commands, shown=shown)


# Subcommands of `kgym run`.
RUNS = ("calls", "export", "list", "patch", "report", "resume", "show", "stop")
# Commands that can use an emulated cloud.
TRIED = ("bug reproduce", "demo")


class Settings:
    """Settings of a command: options, else variables, else defaults. See `settings`."""

    server = Setting[str | None](
        "URL of a scheduler; by default, this machine's platform is used, or started.",
        None,
        Url(),
        commands=("kgym", "worker"),
    )
    token = _text("Token for the scheduler, from `kgym token create`.", "kgym")
    data = Setting[Path](
        "Folder of this machine's database, artifacts and caches.",
        lambda _: data_folder(),
        _FOLDER,
        shown=".kgym of kgym's checkout, or else ~/.local/share/kgym",
    )
    programs = Setting[Path | None](
        "Folder of programs that bundles name but do not contain.",
        lambda _: program_folder(),
        _FOLDER,
        shown="none",
    )
    database = _text(
        "URL of the database: postgresql+asyncpg://… or sqlite+aiosqlite:///….",
        "db upgrade",
        "scheduler",
        shown="this machine's, in the data folder",
    )
    bus = _text(
        "URL of the message broker: amqp://…; without it, workers poll every second.",
        "scheduler",
        "worker",
    )
    storage = Setting[str](
        "Folder of artifacts, shared by scheduler and workers; or gs://BUCKET/PREFIX.",
        lambda settings: str(settings.data / "artifacts"),
        commands=("scheduler", "worker"),
        shown="artifacts in the data folder",
    )
    benchmarks = Setting[str](
        "Folder of published benchmarks for the monitor; or gs://BUCKET/PREFIX.",
        lambda settings: str(settings.data / "benchmarks"),
        commands=("bench publish", "bench site", "monitor", "up"),
        shown="benchmarks in the data folder",
    )
    disk_budget = Setting[int](
        "Most bytes of storage and database, e.g. 500GB; beyond it, old artifacts are removed.",
        200 << 30,
        Size(),
        commands=("scheduler", "up"),
        shown="200GiB",
    )
    artifact_days = Setting[float](
        "Days for which artifacts of finished jobs are kept.",
        30.0,
        click.FloatRange(0),
        commands=("scheduler", "up"),
    )
    agent = Setting[str | None](
        "URL of an agent service (`kgym agent`); by default, this machine's, if it runs.",
        None,
        Url(),
        commands=("fix", "bench run", *(f"run {verb}" for verb in RUNS), "monitor", "up"),
    )
    agent_port = _port("Port of the agent; 0: any free port.", 8421, "agent")
    agent_runs = Setting[Path | None](
        "Folder of the agent's runs.",
        None,
        _FOLDER,
        commands=("agent",),
        shown="runs in the data folder",
    )
    agent_models = _text(
        "Models (PROVIDER:MODEL,…) for the agent's callers, including other endpoints.",
        "agent",
        shown="all models of OpenAI, Anthropic and Google",
    )
    model = _text(
        "PROVIDER:MODEL, such as anthropic:claude-sonnet-4-5; openai-chat:NAME@URL for an endpoint"
        " with OpenAI's interface; or replay:FILE for a tape.",
        "fix",
    )
    model_key_file = Setting[Path | None](
        "File with the model's API key.",
        None,
        _FOLDER,
        commands=("fix", "run resume", "agent", "bench judge"),
        shown="OPENAI_API_KEY, ANTHROPIC_API_KEY or GOOGLE_API_KEY",
    )
    monitor_port = _port("Port of the web monitor; 0: any free port.", 8422, "monitor", "up")
    host = Setting[str](
        "Address to listen on.", "127.0.0.1", commands=("scheduler", "agent", "monitor")
    )
    port = _port("Port to listen on; 0: any free port.", 8420, "scheduler", "up")
    lease = Setting[float](
        "Seconds after which a silent worker loses its steps.",
        60.0,
        click.FloatRange(min=3.0),
        commands=("scheduler",),
    )
    requests_per_second = Setting[float](
        "Requests per second of one caller (token or address); bursts of twice as many.",
        3000.0,
        click.FloatRange(min=0.1),
        commands=("scheduler", "agent"),
    )
    streams = Setting[int](
        "Most open event streams of one caller.",
        200,
        click.IntRange(1),
        commands=("scheduler", "agent"),
    )
    unfinished_jobs = Setting[int](
        "Most unfinished jobs of one submitter.",
        100_000,
        click.IntRange(1),
        commands=("scheduler",),
    )
    bytes_per_second = Setting[float](
        "Sustained bytes per second of a submitter's jobs; bursts of 4096 times as many.",
        float(256 << 10),
        click.FloatRange(min=1),
        commands=("scheduler",),
    )
    owner_token = _text(
        "Token with all permissions; `kgym up --distributed` makes one for its scheduler."
    )
    kinds = _text(
        "Kinds of steps to run, or services (builder, vmmanager, tracer).", "worker", shown="all"
    )
    slots = Setting[int]("Parallel steps.", 1, click.IntRange(1, 1000), commands=("worker",))
    host_name = Setting[str | None](
        "Name of the worker's host for the scheduler.",
        None,
        HostName(),
        commands=("worker",),
        shown="the host's own name",
    )
    folder = Setting[Path](
        "Folder for the files of running steps.",
        lambda settings: settings.data / "work" / "workers",
        _FOLDER,
        commands=("worker",),
        shown="work/workers in the data folder",
    )
    cache = Setting[Path](
        "Folder of caches of this host's workers and scheduler.",
        lambda settings: settings.data / "cache",
        _FOLDER,
        commands=("gc", "scheduler", "worker"),
        shown="cache in the data folder",
    )
    syzkaller = Setting[Path](
        "Folder with syz-execprog and syz-executor, or with subfolders of these, by commit.",
        lambda settings: settings.data / "syzkaller",
        _EXISTING_FOLDER,
        commands=("up", "worker"),
        shown="syzkaller in the data folder",
    )
    provider = Setting[str](
        "Provider of VMs: QEMU on this host, or Google Compute Engine.",
        "qemu",
        click.Choice(["qemu", "gce"]),
        commands=("worker", *TRIED),
    )
    emulated = _flag(
        "With --provider gce: use servers on this machine that emulate the cloud.",
        "worker",
        *TRIED,
        shown="off",
    )
    gce_project = _text("Google Cloud project of the VMs.", "worker")
    gce_zones = _text(
        "Zones of the VMs (us-central1-a,us-central1-b), in order of preference.", "worker"
    )
    gce_address = _text(
        "Address of this worker in the VMs' network, from which they fetch kernels.", "worker"
    )
    gce_port = _port("Port for fetching kernels; 0: any free port.", 0, "worker")
    gce_machine = Setting[str](
        "Family of custom machine types of the VMs.", "n2-custom", commands=("worker",)
    )
    gce_network = Setting[str](
        "Network of the VMs.", "global/networks/default", commands=("worker",)
    )
    gce_subnet = _text("Its subnet, if it has several.", "worker")
    gce_image = _text("Helper image that VMs boot.", "worker", shown="built and uploaded")
    gce_image_per_kernel = _flag(
        "Whether each kernel gets its own image, for kernels that the helper cannot start.",
        "worker",
        *TRIED,
        shown="for kernels that it refuses",
    )
    gce_owner = Setting[str](
        "Label of this platform's VMs; VMs with it that are too old are deleted.",
        "kgym",
        commands=("worker",),
    )
    gce_spot = Setting[bool](
        "Whether to try spot VMs first.", True, click.BOOL, commands=("worker",)
    )
    gce_vms = Setting[int](
        "Most parallel VMs of this worker.", 50, click.IntRange(1, 10_000), commands=("worker",)
    )
    sources = _text(
        "Folders (DIR:DIR) with tarballs and Git repositories that all jobs may use.",
        "up",
        "worker",
    )
    source_networks = _text(
        "Private networks (10.1.0.0/16,…) from which jobs may fetch kernel sources.", "up", "worker"
    )
    drop_binaries = _flag(
        "Whether to leave out binary files of patches, instead of refusing these.",
        "bug reproduce",
        "check",
        "run-kernel",
        "sweep",
        shown="off",
    )
    patch_hosts = _text(
        "Hosts (lore.kernel.org,…) from which jobs may fetch the patches of mails.", "up", "worker"
    )
    mirrors = Setting[Path](
        "Folder of Git mirrors, with map.json: an object of paths by URL.",
        lambda settings: settings.data / "mirrors",
        _FOLDER,
        commands=("bench watch", "mirror", "up", "worker"),
        shown="mirrors in the data folder",
    )
    make_seconds = Setting[float](
        "Most seconds for one run of make; jobs may request less.",
        14400.0,
        click.FloatRange(min=1),
        commands=("up", "worker"),
    )
    near_entries = Setting[Literal["any", "packages", "none"] | None](
        "SuiteCache entries from which others are made: any; packages (only distributions'"
        " sources); or none.",
        None,
        click.Choice(("any", "packages", "none")),
        commands=("up", "worker"),
        shown="any if nobody else can submit, else packages",
    )
    near_rehearsals = Setting[float](
        "Share of entries made from others that are also made from scratch and compared.",
        0.05,
        click.FloatRange(0, 1),
        commands=("up", "worker"),
    )
    archives = _text(
        "Archives of Debian suites for toolchain images (buster=http://…;*=http://…); or `none`.",
        "up",
        "worker",
        shown="this host's apt archive",
    )

    syzbot = Setting[str](
        "URL of syzbot's dashboard.",
        "https://syzkaller.appspot.com",
        Url(),
        commands=("bench watch",),
    )
    syzbot_namespace = Setting[str](
        "Namespace of bugs on the dashboard, as in its URLs.", "upstream", commands=("bench watch",)
    )
    lore = Setting[str](
        "URL of the mailing list archive.",
        "https://lore.kernel.org",
        Url(),
        commands=("bench watch",),
    )
    git_site = Setting[str](
        "URL of cgit, for commits that no mirror has.",
        "https://git.kernel.org",
        Url(),
        commands=("bench watch",),
    )
    crawl_pause = Setting[float](
        "Seconds between requests to one site.",
        1.0,
        click.FloatRange(0, 3600),
        commands=("bench watch",),
    )
    hub = Setting[str](
        "URL of the hub for datasets and results.",
        "https://huggingface.co",
        Url(),
        commands=("bench pull", "bench push"),
    )
    bug = _text(
        "A shipped bug, or the folder of a bundle.",
        "mcp",
        "run-kernel",
        shown="the one recorded in the tree by `bug source`",
    )

    def __init__(
        self, environment: Mapping[str, str], given: Mapping[str, object] | None = None
    ) -> None:
        self.environment = environment
        # Options of the command line, by name of the setting.
        self.given = dict(given or {})


ALL: tuple[Setting[Any], ...] = tuple(
    setting for setting in vars(Settings).values() if isinstance(setting, Setting)
)
_in_use: Settings | None = None


def settings() -> Settings:
    """Return the running command's settings; without a command, those of the environment."""
    return _in_use or Settings(os.environ)


@contextmanager
def in_use(chosen: Settings) -> Iterator[None]:
    """Context manager: use these settings."""
    global _in_use  # noqa: PLW0603 - shared with the command's threads
    before, _in_use = _in_use, chosen
    try:
        yield
    finally:
        _in_use = before


class SettingOption(click.Option):
    """Option of a setting: shown with variable and default, its value stored in the settings."""

    def __init__(self, setting: Setting[Any]) -> None:
        # A default that depends on other settings is only known after all options are read.
        fixed = None if callable(setting.default) or setting.shown else setting.default
        super().__init__(
            [setting.option],
            type=setting.kind,
            help=setting.words,
            envvar=setting.variable,
            show_envvar=True,
            default=fixed,
            show_default=setting.shown or fixed is not None,
            is_flag=setting.kind is click.BOOL and setting.default is False,
            expose_value=False,
            callback=_keep,
        )

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Return None: the settings read the environment."""
        return None


def options_of(command: str) -> Callable[[Command], Command]:
    """Return a decorator that adds a command's settings as options."""

    def decorate(function: Command) -> Command:
        own = [SettingOption(setting) for setting in ALL if command in setting.commands]
        function.__dict__.setdefault("__click_params__", []).extend(reversed(own))
        return function

    return decorate


def _keep(context: click.Context, parameter: click.Parameter, value: object) -> None:
    source = context.get_parameter_source(str(parameter.name))
    if source is ParameterSource.COMMANDLINE and _in_use is not None:
        _in_use.given[str(parameter.name)] = value
