"""The job that the API's documentation shows: prove the fix of CVE-2022-0995."""

_BUILD = {
    "kind": "build",
    "source": {"kind": "package", "names": ["linux-source-6.1"]},
    "config": {"base": "defconfig", "fragments": ["CONFIG_KASAN=y\nCONFIG_WATCH_QUEUE=y\n"]},
    "compiler": "gcc",
}
_EDIT = {
    "file": "kernel/watch_queue.c",
    "original": "if (tf[i].type >= WATCH_TYPE__NR)\n\t\t\tcontinue;",
    "replacement": "if (tf[i].type >= sizeof(wfilter->type_filter) * 8)\n\t\t\tcontinue;",
}
_REPRODUCER = """\
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>
int main(void) { int p[2]; return pipe2(p, O_EXCL) || ioctl(p[0], 0x5760, 1); }
"""
_REPRODUCE = {
    "kind": "reproduce",
    "reproducer": {"kind": "c", "text": _REPRODUCER},
    "titles": ["KASAN: slab-out-of-bounds Write in watch_queue_set_filter"],
    "vm": {"cpus": 2, "memory": 1024},
    "instances": 2,
    "time": 60,
}

JOB = {
    "steps": [
        _BUILD | {"name": "build_before", "patches": [{"name": "the bug", "edits": [_EDIT]}]},
        _REPRODUCE | {"name": "before", "build": {"step": "build_before"}},
        _BUILD | {"name": "build_after"},
        _REPRODUCE
        | {"name": "after", "build": {"step": "build_after"}, "baseline": {"step": "before"}},
    ],
    "tags": ["bug:watch-queue-filter"],
    "priority": 0,
}
