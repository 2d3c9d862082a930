"""Rendering of templates to pages and fragments; all values are escaped and visible."""

import secrets
from collections.abc import Callable, Hashable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2.runtime import Macro

from kgym.api.jobs import JobView
from kgym.api.key_value_tags import as_written
from kgym.api.outcomes import Outcome
from kgym.bugs.conclusion import check_outcome
from kgym.bugs.equivalence import BehaviouralEquivalence
from kgym.web.scopes import Scope
from kgym_monitor.assets import assets
from kgym_monitor.pages import check_results, group_page, plan_words, run_page, wording
from kgym_monitor.sessions import Session

_TEMPLATES = Path(__file__).parents[1] / "templates"


def took(job: JobView) -> float | None:
    """Return the seconds from the job's submission to its end."""
    ends = [step.finished_at for step in job.steps if step.finished_at is not None]
    return (max(ends) - job.created_at).total_seconds() if ends else None


def _environment() -> jinja2.Environment:
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        # A missing variable must fail in a test, not leave a gap on a page.
        undefined=jinja2.StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,  # otherwise stat() of the template's file for each row
    )
    words: tuple[Callable[..., str], ...]
    words = (wording.exact, wording.duration, wording.size, wording.percent)
    words = (*words, wording.nanoseconds, wording.offset)
    for function in (*words, wording.bug_of, wording.subject, wording.plain_tags, as_written, took):
        env.filters[function.__name__] = function
    for function in run_page.FILTERS:
        env.filters[function.__name__] = function
    env.globals |= {
        "asset": assets().url,
        "once": _once,
        "verdict_words": wording.VERDICTS,
        "kind_words": wording.KINDS,
        "job_outcomes": list(Outcome),
        "looks": wording.LOOKS,
        "check_words": wording.CHECKS,
        "check_outcome": check_outcome,
        "check_counts": check_results.counts,
        "key": group_page.key,
        "plan": plan_words.plan,
        "waits": wording.waits,
        "instances_in_words": wording.instances,
        "confidence_in_words": wording.confidence,
        "equivalence": BehaviouralEquivalence.of,
    }
    return env


def _shown(value: object) -> object:
    """Return the value of an expression of a template, with visible control characters."""
    # Here and not in the templates, so that no text and no attribute is left out. Markup is the
    # output of macros, whose values have passed already.
    if isinstance(value, int | float) or hasattr(value, "__html__"):
        return value
    return wording.visible(value)


@lru_cache(4096)
def _once(macro: Macro, *values: Hashable) -> str:
    """Return a macro's output, cached; for values with few variants, such as states."""
    made: str = macro(*values)
    return made


class Rendering:
    """Compiled templates."""

    def __init__(self) -> None:
        self._env = _environment()

    def fragment(self, template: str, context: Mapping[str, Any]) -> str:
        """Return a part of a page."""
        return self._env.get_template(template).render(context)

    def page(
        self,
        request: Request,
        template: str,
        *,
        title: str,
        live: bool = False,
        status: int = 200,
        **context: Any,
    ) -> HTMLResponse:
        """Return a whole page.

        Args:
            request: The request.
            template: Name of the template.
            title: Title of the browser's tab.
            live: Whether it polls its own address for changed parts (`routes.live_pages`).
            status: HTTP status.
            context: Variables of the template.
        """
        session: Session | None = getattr(request.state, "session", None)
        given = {
            "title": title,
            "section": _section(request),
            "live": live,
            "session": session,
            "nonce": secrets.token_urlsafe(16),
            "here": _here(request),
            "done": request.query_params.get("done", "")[:200],
            "may_submit": may(session, Scope.SUBMIT),
            "may_admin": may(session, Scope.ADMIN),
        }
        return HTMLResponse(self.fragment(template, given | context), status)


def may(session: Session | None, scope: Scope) -> bool:
    """Return whether the page's reader has this scope."""
    return session is not None and session.caller.may(scope)


def _section(request: Request) -> str:
    """Return the path of the page's entry in the navigation."""
    first = request.url.path.strip("/").partition("/")[0]
    # A group and its patches are lists of jobs.
    return "/jobs" if first in {"groups", "patches"} else f"/{first}"


def _here(request: Request) -> str:
    query = request.url.query
    return request.url.path + (f"?{query}" if query else "")
