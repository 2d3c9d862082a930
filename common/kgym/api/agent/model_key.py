"""Detection of a model's API key in text from its endpoint, which may echo the key. Pure."""

# Shorter keys, such as the `x` of a local server, occur in any text by chance.
SHORTEST = 16
QUOTED = "the endpoint's answer contains the API key it was sent, and is withheld"


def quotes_key(text: str | bytes, key: str | None) -> bool:
    """Return whether a text contains the key verbatim.

    An answer that does is withheld. It is never rewritten, since it may be code.
    """
    text = text.encode(errors="replace") if isinstance(text, str) else text
    wanted = (key or "").strip().encode()
    return len(wanted) >= SHORTEST and wanted in text


def without_key(text: str, key: str | None) -> str:
    """Return an error's text without the key."""
    return text.replace((key or "").strip(), "…") if quotes_key(text, key) else text
