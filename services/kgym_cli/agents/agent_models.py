"""Language models by name, with API keys from a file or the environment."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from kgym.errors import UserError
from kgym_cli import extras
from kgym_cli.settings import settings

if TYPE_CHECKING:
    from kgym_crashfixer.models.model import Model

REPLAY = "replay:"
# Environment variables with providers' keys, by prefix of the model's name.
_VARIABLES = {
    "openai": ("OPENAI_API_KEY",),
    "anthropic": ("ANTHROPIC_API_KEY",),
    "google": ("GOOGLE_API_KEY", "GEMINI_API_KEY"),
}


def opener(record: Path | None = None) -> "Callable[[str], Model]":
    """Return a function that opens a model by name; `record`: tape for its answers."""

    def opened(name: str) -> "Model":
        from kgym_crashfixer.models.tape import Recorder, Replay  # noqa: PLC0415 - as below

        if name.startswith(REPLAY):
            return Replay(Path(name.removeprefix(REPLAY)))
        extras.require("agent")
        from kgym_crashfixer.models.provider import Provided  # noqa: PLC0415 - takes a second

        model = Provided(name, _key(name))
        return Recorder(model, record) if record is not None else model

    return opened


def check(name: str) -> None:
    """Raise UserError `bad_tape` or `bad_model` if a model's name leads nowhere."""
    if name.startswith(REPLAY):
        opener()(name)
        return
    extras.require("agent")
    from kgym_crashfixer.models.provider import Provided  # noqa: PLC0415 - as above

    # The agent's service may have the key.
    Provided(name, "none")


def window(name: str) -> int:
    """Return a model's context window in tokens; a tape's is the recorded one."""
    from kgym_crashfixer.models import provider, tape  # noqa: PLC0415 - as above
    from kgym_crashfixer.platform import WINDOW  # noqa: PLC0415

    if name.startswith(REPLAY):
        # Prompts are cut to the window. With another window, they would differ from those on the
        # tape.
        head = tape.head(Path(name.removeprefix(REPLAY)))
        return (head.window if head is not None else None) or WINDOW
    return min(provider.window(name) or WINDOW, WINDOW)


def allowed(names: str | None) -> "Callable[[str], Model]":
    """Return a function that opens a model on behalf of a service's callers.

    Without `names`, callers may use any model of the providers whose keys are known, but no
    endpoint of their own and no tape. With `names`, they may use only these.
    """
    known = [word.strip() for word in (names or "").split(",") if word.strip()]

    def opened(name: str) -> "Model":
        # `MODEL@URL` and other providers would get a key that is not theirs, and `replay:FILE`
        # would open any file of the service's machine.
        ours = name.partition(":")[0].partition("-")[0] in _VARIABLES
        if name not in known and (known or "@" in name or not ours):
            text = ", ".join(known) or f"models of {', '.join(_VARIABLES)}, by PROVIDER:MODEL"
            raise UserError("model_not_allowed", f"this agent does not use {name}; it uses {text}")
        return opener()(name)

    return opened


def _key(name: str) -> str | None:
    """Return the key for a model; None leaves it to the provider's library."""
    chosen = settings()
    if (path := chosen.model_key_file) is not None:
        try:
            key = path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError("bad_model_key", f"--model-key-file {path}: {error}") from error
        if not key or len(key.split()) > 1:
            raise UserError("bad_model_key", f"--model-key-file {path} must hold exactly one key")
        return key
    for provider, variables in _VARIABLES.items():
        if name.startswith(provider):
            return next(filter(None, map(chosen.environment.get, variables)), None)
    return None
