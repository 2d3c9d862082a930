"""The parts of the pages that come from the code: commands, settings, REST interface, JSON.

`write` puts them into a folder, as Markdown; pages include them. As a program, this writes the
folder `reference`, which a forge's web pages show.
"""

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import httpx

from kgym.api.jobs import EVENTS
from kgym.api.steps import BuildArtifact, InstanceArtifact, MinimizeArtifact, ReproduceArtifact
from kgym_cli.output.answer import schema
from kgym_cli.platforms.embedded_platform import Platform
from kgym_cli.program import cli
from kgym_cli.settings import ALL

Schema = dict[str, Any]
ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "readme.md": "README.md",
    "architecture.md": "ARCHITECTURE.md",
    "security.md": "SECURITY.md",
    "changes.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
}
"""Texts of the repository that are pages as well."""
LINKS = {
    "docs/": "",
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "development.md",
}
"""Where their links lead from a page."""
ARTIFACTS = {
    "`build`": BuildArtifact,
    "`reproduce`": ReproduceArtifact,
    "`reproduce`, of each instance: `{}` is its number": InstanceArtifact,
    "`minimize`": MinimizeArtifact,
}
WIDTH = 100
"""Columns of a command's help."""


def write(folder: Path) -> None:
    """Write the parts into `folder`, which is made; a part that has not changed is left alone."""
    folder.mkdir(exist_ok=True)
    rest = _openapi()
    answers: dict[str, Schema] = {}
    parts = {
        "commands.md": "\n".join(_commands(answers)),
        "settings.md": "\n".join(_settings()),
        "artifacts.md": "\n".join(_artifacts()),
        "events.md": "\n".join(_events(rest["components"]["schemas"])),
        "operations.md": "\n".join(_operations(rest)),
        "bodies.md": "\n".join(_models(rest["components"]["schemas"], "rest")),
    }
    parts |= {name: _page(path) for name, path in PAGES.items()}
    parts["answers.md"] = "\n".join(_models(answers, "json"))
    for name, text in parts.items():
        path = folder / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def for_readers(made: Path) -> dict[str, str]:
    """Return the texts of the folder `reference`, from parts that `write` has written."""
    parts = {path.name: path.read_text() for path in made.glob("*.md") if path.name not in PAGES}
    return {name: _for_readers(text) for name, text in parts.items()}


def _for_readers(text: str) -> str:
    """Return a page with HTML anchors, and links to the anchors of other pages."""
    text = re.sub(r"(?m)^\((\S+)\)=$", r'<a id="\1"></a>\n', text)
    for page, part in (("json", "answers.md"), ("rest", "bodies.md")):
        text = text.replace(f"](#{page}-", f"]({part}#{page}-")
    return f"<!-- Written by ./run docs -->\n{text.strip()}\n"


def _page(name: str) -> str:
    """Return a text of the repository with its links as the pages have them."""
    text = (ROOT / name).read_text()
    for old, new in LINKS.items():
        text = text.replace(f"]({old}", f"]({new}")
    return re.sub(r"\[([^]\n]+)\]\((?:LICENSE|docker/\S*)\)", r"\1", text)


def _openapi() -> Schema:
    with tempfile.TemporaryDirectory() as folder, Platform(Path(folder), work=False) as platform:
        document: Schema = httpx.get(f"{platform.url}/openapi.json", timeout=60).json()
    return document


def commands(
    command: click.Command, path: tuple[str, ...] = ("kgym",)
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield each command with the words that name it: the groups, then what is in them."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            if (one := command.get_command(context, name)) is not None:
                yield from commands(one, (*path, name))


def _commands(answers: dict[str, Schema]) -> Iterator[str]:
    """Yield the lines on all commands, and add to `answers` the models that they print."""
    for path, command in commands(cli):
        name = " ".join(path)
        context = click.Context(command, info_name=name, max_content_width=WIDTH, show_default=True)
        context.terminal_width = WIDTH
        yield f"\n({'-'.join(path)})=\n### {name}\n"
        yield f"```text\n{command.get_help(context)}\n```\n"
        if answer := _answer(command):
            answers |= answer.pop("$defs", {})
            shown = [one for one in _choices(answer) if one != "Problem"]
            yield f"With `--json` it prints {_links(shown, 'json')}.\n"


def _settings() -> Iterator[str]:
    """Yield the table of all settings."""
    yield "| variable | option | default | meaning |\n|---|---|---|---|"
    for one in ALL:
        options = ", ".join(f"`{command} {one.option}`" for command in _named(one.commands))
        words = f"{_plain(one.default_shown)} | {_plain(one.words)}"
        yield f"| `{one.variable}` | {options} | {words} |"


def _artifacts() -> Iterator[str]:
    """Yield the table of the files that each kind of step leaves."""
    yield "| step | artifacts |\n|---|---|"
    for kind, known in ARTIFACTS.items():
        yield f"| {kind} | {', '.join(f'`{one}`' for one in known)} |"


def _named(commands: tuple[str, ...]) -> list[str]:
    return [name if name == "kgym" else f"kgym {name}" for name in commands]


def _answer(command: click.Command) -> Schema | None:
    """Return the schema of what the command prints with --json, None if it takes no --json."""
    for option in command.params:
        if "--json-schema" in option.opts:
            return schema(*option.callback.args[0])  # type: ignore[union-attr]
    return None


def _choices(one: Schema) -> list[str]:
    if "$ref" in one:
        return [one["$ref"].rpartition("/")[2]]
    choices = one.get("anyOf") or one.get("oneOf") or []
    return [name for choice in choices for name in _choices(choice)] or [_type(one, "json")]


def _links(names: list[str], page: str) -> str:
    return " or ".join(_link(name, page) if name[:1].isupper() else name for name in names)


def _operations(document: Schema) -> Iterator[str]:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield f"\n### {method.upper()} {path}\n"
            yield f"{operation['summary']}. {operation.get('description', '')}\n"
            yield from _table(
                (f"`{one['name']}` ({one['in']})", _type(one["schema"], "rest"), _words(one))
                for one in operation.get("parameters", ())
            )
            for content in operation.get("requestBody", {}).get("content", {}).values():
                yield f"Body: {_type(content['schema'], 'rest')}\n"
            yield f"Answers: {', '.join(_responses(operation['responses']))}\n"


def _responses(responses: Schema) -> Iterator[str]:
    problems = []
    for status, response in responses.items():
        kinds = response.get("content", {})
        if "application/problem+json" in kinds:
            problems.append(status)
        else:
            types = {_type(one.get("schema", {}), "rest") for one in kinds.values()} - {"any"}
            yield f"{status} {' or '.join(sorted(types)) or response['description']}"
    if problems:
        yield f"{', '.join(problems)} {_link('Problem', 'rest')}"


def _events(schemas: dict[str, Schema]) -> Iterator[str]:
    for kind, model in EVENTS.items():
        one = schemas[model.__name__]
        yield f"**`{kind}`**: {_sentence(one).partition(': ')[2]}\n"
        yield from _fields(one, "rest")


def _models(schemas: dict[str, Schema], page: str) -> Iterator[str]:
    for name, one in sorted(schemas.items()):
        yield f"\n({_anchor(name, page)})=\n### {name.partition('[')[0]}\n"
        yield f"{_sentence(one)}\n"
        if "enum" in one:
            yield f"One of: {', '.join(f'`{value}`' for value in one['enum'])}\n"
        elif "properties" in one:
            yield from _fields(one, page)


def _fields(one: Schema, page: str) -> Iterator[str]:
    return _table(
        (f"`{name}`", _type(field, page), _words(field))
        for name, field in one.get("properties", {}).items()
    )


def _table(rows: Iterator[tuple[str, str, str]]) -> Iterator[str]:
    lines = [f"| {name} | {kind} | {words} |" for name, kind, words in rows]
    if lines:
        yield "| name | type | meaning |\n|---|---|---|\n" + "\n".join(lines) + "\n"


def _type(one: Schema, page: str) -> str:
    """Return what a value may be, in words."""
    if "$ref" in one:
        return _link(one["$ref"].rpartition("/")[2], page)
    if choices := one.get("anyOf") or one.get("oneOf"):
        return " or ".join(dict.fromkeys(_type(choice, page) for choice in choices))
    if "const" in one or "enum" in one:
        return ", ".join(f"`{value}`" for value in one.get("enum", [one.get("const")]))
    if items := one.get("items"):
        return f"list of {_type(items, page)}"
    if isinstance(values := one.get("additionalProperties"), dict):
        return f"object of {_type(values, page)}"
    return str(one.get("type", "any"))


def _words(one: Schema) -> str:
    """Return what is said of a field, with its bounds, on one line of a table."""
    inner = one.get("schema", one)
    bounds = [
        f"{word} {inner[key]}"
        for key, word in (
            ("minimum", "at least"),
            ("exclusiveMinimum", "more than"),
            ("maximum", "at most"),
            ("exclusiveMaximum", "less than"),
            ("maxLength", "characters, at most:"),
            ("maxItems", "items, at most:"),
        )
        if key in inner
    ]
    default = inner.get("default")
    if default not in (None, [], {}, ""):
        bounds.append(f"default `{default}`")
    return _plain("; ".join([one.get("description", ""), *bounds]).strip("; "))


def _sentence(one: Schema) -> str:
    return _plain(one.get("description", ""))


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "\\<")


def _link(name: str, page: str) -> str:
    return f"[{name.partition('[')[0]}](#{_anchor(name, page)})"


def _anchor(name: str, page: str) -> str:
    return f"{page}-{''.join(c if c.isalnum() else '-' for c in name).strip('-').lower()}"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        write(Path(temporary))
        texts = for_readers(Path(temporary))
    target = ROOT / "docs" / "reference"
    target.mkdir(exist_ok=True)
    for name, text in texts.items():
        (target / name).write_text(text)
