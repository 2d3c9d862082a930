"""The jobs of the demo data: every state and verdict there is, on three of the shipped bugs."""

from collections.abc import Mapping

from kgym.api.jobs import JobRequest
from kgym.api.steps import MinimizeSpec, Patch, StepRef
from kgym.bugs import bundle
from kgym.client import Client
from tests.demo import checked_patches
from tests.demo.showcase import BUG, trial

_FILE = bundle.load("fsconfig-source-fd")
_KEY = bundle.load("key-read-negative")
GROUP = "sweep-11"
_UNFIT = """\
--- a/kernel/watch_queue.c
+++ b/kernel/watch_queue.c
@@ -360,1 +360,1 @@
-	if (tf[i].type > WATCH_TYPE__NR)
+	if (tf[i].type >= WATCH_TYPE__NR)
"""


def ended() -> dict[str, JobRequest]:
    """Return jobs that come to an end, by the names that `monitor_pages` knows them by."""
    return {
        "unfixed": trial("SAME", tags=("night:2",), group=GROUP),
        "lost": trial("AWAY", bug=_FILE, group=GROUP),
        "other": trial("OTHER", bug=_FILE, group=GROUP),
        "unsure": trial("UNSURE", bug=_KEY, group=GROUP),
        "file": trial(bug=_FILE, tags=("night:2",)),
        "key": trial(bug=_KEY, tags=("night:2",)),
        "check": BUG.check(_candidates()).model_copy(update={"group": GROUP}),
        "hides": trial("HIDES", group=GROUP),
        "broken": trial("BROKEN"),
        "fixed": trial(tags=("night:3",), group=GROUP),
    }


def traced() -> JobRequest:
    """Return a job with a trace; its `minimize` step has to be done by a real worker."""
    build, run, *_ = trial("TRACED").steps
    minimize = MinimizeSpec(build=StepRef(step=0), reproduce=StepRef(step=1))
    return JobRequest(steps=[build, run, minimize], tags=[f"bug={BUG.name}"])


def unfinished() -> dict[str, JobRequest]:
    """Return jobs that keep two workers busy as long as the showcase holds them, and one more.

    That one is of a kind that no worker of the demo does.
    """
    return {
        "held": trial("HELD", bug=_KEY, tags=("night:4",)),
        "running": trial("HELD", tags=("night:4",)),
        "waiting": BUG.source(),
    }


def put(client: Client) -> dict[str, int]:
    """Submit the demo's jobs to a platform of two workers; return their numbers by name.

    Takes some ten seconds: until all have ended that do.
    """
    jobs = submit(client, ended())
    for number in jobs.values():
        client.wait(number)
    jobs |= submit(client, unfinished())
    aborted = client.submit(trial(tags=("night:4",))).id
    client.abort(aborted)
    return jobs | {"aborted": aborted}


def submit(client: Client, requests: Mapping[str, JobRequest]) -> dict[str, int]:
    """Submit jobs; return their numbers by name."""
    return {name: client.submit(request).id for name, request in requests.items()}


def _candidates() -> list[Patch]:
    assert BUG.fix is not None
    fix = BUG.fix.model_copy(update={"name": "fix"})
    return [fix, checked_patches.patches()[0], Patch(name="night-3/UNFIT", diff=_UNFIT)]
