"""Additions to --help: examples of each command, and environment variables."""

import click

from kgym_cli.settings import ALL

# All variables, except those of `scheduler` or `worker` alone, which their own --help shows.
ENVIRONMENT = {
    setting.variable: setting.words
    for setting in ALL
    if len(setting.commands) != 1 or setting.commands[0] not in {"scheduler", "worker"}
}
# Examples by the command's path. A test parses each of them.
EXAMPLES: dict[str, tuple[str, ...]] = {
    "agent": ("kgym agent", "kgym agent --host 0.0.0.0 --agent-models openai:gpt-5"),
    "bench door": (
        "kgym bench door watch-queue-filter --feedback",
        "kgym bench door ./my-bug --host 172.17.0.1 --port 8430 --json",
    ),
    "bench export": (
        "kgym bench export bugs after-2025 --cutoff 2025-01-31",
        "kgym bench export bugs published --form live-kbench --status fixed",
    ),
    "bench import": (
        "kgym bench import kbenchsyz kBenchSyz --into bugs",
        "kgym bench import bundles configs/bugs --into shipped",
        "kgym bench import karena karena.db --dataset lkbench-2512 --into bugs --attempts a.jsonl",
    ),
    "bench judge": (
        "kgym bench judge bugs --model google:gemini-3-flash --dollars 5 --record tape.jsonl",
        "kgym bench judge bugs --model replay:tape.jsonl --labels people.jsonl --json",
    ),
    "bench list": (
        "kgym bench list bugs --class 'KASAN use-after-free' --lines-to 20",
        "kgym bench list bugs --touches net --reproducer both --json",
    ),
    "bench publish": (
        "kgym bench publish bugs --attempts attempts.jsonl",
        "kgym bench publish bugs --attempts a.jsonl --attempts b.jsonl --name lkbench-2512",
    ),
    "bench report": ("kgym bench report results", "kgym bench report results --compare 1 2 --json"),
    "bench run": (
        "kgym bench run campaign.toml --into results --dry-run",
        "kgym bench run campaign.toml --into results --json",
    ),
    "bench site": (
        "kgym bench site demo-bench public",
        "kgym bench site bugs public --attempts a.jsonl",
    ),
    "bench show": ("kgym bench show bugs", "kgym bench show bugs 0a1b2c --part report"),
    "bench validate": (
        "kgym bench validate bugs --into validated",
        "kgym bench validate bugs --into ported --kernel campaign-6.1 --reproducer both",
    ),
    "bench watch": (
        "kgym bench watch syzbot --status fixed --most 100",
        "kgym bench watch syzbot --weekly",
    ),
    "bug list": ("kgym bug list",),
    "bug show": ("kgym bug show watch-queue-filter", "kgym bug show ./my-bug --json"),
    "bug reproduce": (
        "kgym bug reproduce watch-queue-filter",
        "kgym bug reproduce watch-queue-filter --fix my.patch --json",
        "kgym bug reproduce ./my-bug --no-fix --trace",
        "kgym bug reproduce watch-queue-filter --kernel linux-5.10",
        "kgym bug reproduce watch-queue-filter --compiler bullseye/gcc-10",
    ),
    "bug port": (
        "kgym bug port kbenchsyz --repros kbenchsyz_repros --dry-run",
        "kgym bug port kbenchsyz --repros kbenchsyz_repros --kernel campaign-6.1 --write ported",
    ),
    "bug source": ("kgym bug source watch-queue-filter linux",),
    "bug new": (
        "kgym bug new my-bug",
        "kgym bug new my-bug --kernel linux-6.1 --title 'KASAN: use-after-free in f' --no-run",
    ),
    "bisect": (
        "kgym bisect ./my-bug --good v6.1 --bad v6.2-rc1 --dry-run",
        "kgym bisect watch-queue-filter --repo linux.git --good v5.16 --bad v5.17-rc7",
        "kgym bisect ./my-bug --fix --good v6.6 --json",
    ),
    "bug calibrate": ("kgym bug calibrate watch-queue-filter --runs 20",),
    "cache list": ("kgym cache list", "kgym cache list --text linux-source-6.1 --json"),
    "cache show": ("kgym cache show 2d876637f14f0f8e13572962fcd97795994de775",),
    "cache warm": (
        "kgym cache warm linux-6.1 watch-queue-filter@linux-5.10",
        "kgym cache warm ./my-bug --make-seconds 7200 --no-wait",
    ),
    "cache drop": ("kgym cache drop 2d876637f14f0f8e13572962fcd97795994de775",),
    "check": (
        "kgym check watch-queue-filter a.patch b.patch.xz",
        "git diff | kgym check watch-queue-filter - --json",
    ),
    "completion": ("kgym completion", "kgym completion zsh --print"),
    "db upgrade": ("kgym db upgrade",),
    "demo": ("kgym demo", "kgym demo --fix my.patch --server http://127.0.0.1:8420"),
    "du": ("kgym du", "kgym du --json --server https://kgym.example.org"),
    "fix": (
        "kgym fix watch-queue-filter --model anthropic:claude-sonnet-4-5 --budget-dollars 5",
        "kgym fix ./my-bug --strategy tool --model openai-chat:qwen3@http://127.0.0.1:8000/v1",
        "kgym fix watch-queue-filter --model replay:tape.jsonl --out fix.patch --json",
    ),
    "gc": ("kgym gc", "kgym gc --apply --artifact-age 30 --cache-budget 40GB"),
    "gcp up": (
        "kgym gcp up farm.toml --ssh-key ~/.ssh/id_ed25519.pub",
        "kgym gcp up farm.toml --emulated",
    ),
    "gcp down": ("kgym gcp down farm.toml", "kgym gcp down farm.toml --emulated"),
    "gcp status": ("kgym gcp status farm.toml --json",),
    "gcp cost": ("kgym gcp cost farm.toml",),
    "gcp scale": (
        "kgym gcp scale farm.toml --token TOKEN",
        "kgym gcp scale farm.toml --once --json",
    ),
    "gcp simulate": ("kgym gcp simulate farm.toml --hours 168 --server https://kgym.example.org",),
    "group list": ("kgym group list --mine",),
    "group show": ("kgym group show night", "kgym group show night --submitter alice --json"),
    "group patches": ("kgym group patches night", "kgym group patches night --csv"),
    "group abort": ("kgym group abort night",),
    "job submit": (
        "kgym job submit job.json --wait --json",
        "kgym job submit night/1.json night/2.json --key night",
    ),
    "job list": (
        "kgym job list --state running --state queued",
        "kgym job list --outcome not_resolved --group night",
        "kgym job list --tag bug=epoll-loop --since 2026-01-31",
    ),
    "job show": ("kgym job show 7 --json",),
    "job log": ("kgym job log 7 --step 0",),
    "job wait": ("kgym job wait 7", "kgym job wait 7 8 9 --json"),
    "job abort": ("kgym job abort 7 8", "kgym job abort --tag night"),
    "job restart": ("kgym job restart 7 8 --wait", "kgym job restart 7 --from-step 2"),
    "job fetch": ("kgym job fetch 7", "kgym job fetch 7 vmlinux 'report-*' --output here"),
    "mcp": (
        "kgym mcp --bug watch-queue-filter",
        "kgym mcp --tree linux --server https://kgym.example.org",
    ),
    "mirror": (
        "kgym mirror https://git.kernel.org/pub/scm/linux/kernel/git/torvalds/linux.git",
        "kgym mirror",
    ),
    "monitor": ("kgym monitor", "kgym monitor --server http://127.0.0.1:8420 --monitor-port 0"),
    "monitor shoot": ("kgym monitor shoot pictures --theme dark --width 390",),
    "report parse": (
        "kgym report parse console.log.xz --vmlinux vmlinux",
        "dmesg | kgym report parse - --json",
    ),
    "report corpus": ("kgym report corpus syzkaller/pkg/report/testdata",),
    "run-kernel": (
        "kgym run-kernel",
        "kgym run-kernel --bug watch-queue-filter --patch my.patch --json",
        "git diff | kgym run-kernel --bug watch-queue-filter --patch -",
    ),
    "run list": ("kgym run list --state interrupted",),
    "run show": ("kgym run show 7 --json",),
    "run stop": ("kgym run stop 7",),
    "run resume": ("kgym run resume 7", "kgym run resume 7 --budget-dollars 20"),
    "run calls": ("kgym run calls 7 --node t0.0",),
    "run patch": ("kgym run patch 7", "kgym run patch 7 --number 2"),
    "run report": ("kgym run report 7",),
    "scheduler": ("kgym scheduler --host 0.0.0.0 --storage /shared/artifacts",),
    "source read": ("kgym source read watch-queue-filter kernel/watch_queue.c --lines 300-360",),
    "source ls": ("kgym source ls watch-queue-filter kernel/trace",),
    "source search": (
        "kgym source search watch-queue-filter 'WATCH_TYPE__NR' --glob '*.[ch]'",
        "kgym source search 12 'kfree\\(' --glob 'mm/**' --limit 20 --json",
    ),
    "source symbol": ("kgym source symbol watch-queue-filter watch_queue_set_filter",),
    "sweep": (
        "kgym sweep watch-queue-filter epoll-loop --patches patches --csv table.csv",
        "kgym sweep ./my-bug --patches night-1 --patches night-2 --name nights --json",
    ),
    "syzkaller build": (
        "kgym syzkaller build 1d849ab4d892af13a249f75628790b47e42b7c74",
        "kgym syzkaller build https://github.com/google/syzkaller@master --output binaries",
        "kgym syzkaller build syzkaller.tar.xz --commit 1d849ab4d892af13a249f75628790b47e42b7c74",
    ),
    "token create": (
        "kgym token create alice --scope submit",
        "kgym token create farm --scope worker",
    ),
    "token list": ("kgym token list",),
    "token forget": ("kgym token forget",),
    "token revoke": ("kgym token revoke alice",),
    "trace extract": ("kgym trace extract dump-0.elf.zst --vmlinux vmlinux --output here",),
    "trace minimize": ("kgym trace minimize trace.npz --report console.log --files fs/namei.c",),
    "trace show": ("kgym trace show minimal.json", "kgym trace show trace.npz --last 20"),
    "trace score": ("kgym trace score one.json two.json",),
    "up": ("kgym up", "kgym up --distributed"),
    "worker": (
        "kgym worker --server http://scheduler:8420 --kinds build,check --slots 2",
        "kgym worker --server http://scheduler:8420 --kinds reproduce --provider gce"
        " --gce-project P --gce-zones us-central1-a --gce-address 10.128.0.2",
    ),
    "worker list": ("kgym worker list",),
    "worker drain": ("kgym worker drain host:4711:a1b2c3",),
}
OF_ALL = (
    "kgym demo",
    "kgym bug reproduce watch-queue-filter --fix my.patch --json",
    "kgym job list --state failed --since 2026-01-31",
    "kgym job fetch 7 'report-*'",
)
_FORM = "\b\n"  # click's mark: do not rewrap the following paragraph


def of_all() -> str:
    """Return the epilog of the list of commands."""
    names = max(map(len, ENVIRONMENT))
    variables = "\n".join(f"  {name:{names}}  {summary}" for name, summary in ENVIRONMENT.items())
    return f"{_FORM}Environment:\n{variables}\n\n{_examples(OF_ALL)}"


def complete(command: click.Command, path: str) -> None:
    """Add examples to the help of a command and its subcommands."""
    if path in EXAMPLES:
        command.epilog = _examples(EXAMPLES[path])
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            complete(below, f"{path} {name}")


def _examples(lines: tuple[str, ...]) -> str:
    return f"{_FORM}Examples:\n" + "\n".join(f"  {line}" for line in lines)
