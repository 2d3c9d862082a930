"""Words of the code: names that say what a thing is, and no reference to a name that is gone."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
from jinja2 import Environment, nodes

from tests.conftest import ROOT

PRODUCT = sorted(path for root in ("common", "services") for path in (ROOT / root).rglob("*.py"))
OTHER_CODE = {".S", ".c", ".css", ".h", ".html", ".js", ".mk", ".sh", ".toml", ".yml"}
# What docstrings name although no file of ours does.
OUTSIDE = {
    *("DefaultOpts", "DeserializeOptions", "ExecprogCmd"),  # syzkaller's Go
    *("limit_concurrency", "nohup", "zcat"),  # uvicorn, coreutils, gzip
    *("makedumpfile.h", "newc", "pg_snapshot_xmin"),  # makedumpfile, cpio, PostgreSQL
    *("__x64_sys_x", "foo.isra.0", "hatch_build.py"),
}
_WORD = re.compile(r"\w+")
_PLACEHOLDER = re.compile(r"(?:^|_|\b)(?:KIND|N|NAME|PREFIX)\b|^KGYM_")
_REFERENCE = re.compile(r"`{1,2}([A-Za-z_]\w*(?:\.\w+)*)(?:\(\))?`{1,2}")


def docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    """Yield every string that stands as a statement: docstrings, also those of attributes."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str()) as text):
                yield text


def comments(text: str) -> Iterator[str]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    yield from (token.string for token in tokens if token.type == tokenize.COMMENT)


def bound_names(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield (name, line) of every variable, parameter, attribute, function and class."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, node.lineno
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name, node.lineno
            case ast.ClassDef(name=name) | ast.arg(arg=name):
                yield name, node.lineno
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name, node.lineno
            case ast.ExceptHandler(name=str(name)):
                yield name, node.lineno


def words_of_code(tree: ast.Module) -> set[str]:
    """Return the names in a module and the words of its strings, without its docstrings."""
    spoken = {id(node) for node in docstrings(tree)}
    words: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str) and id(node) not in spoken:
                words.update(_WORD.findall(node.value))
            continue
        for field in ("id", "attr", "arg", "name", "asname", "module"):
            if isinstance(value := getattr(node, field, None), str):
                words.update(value.split("."))
    return words


def known_by(path: Path, references: set[str]) -> set[str]:
    """Return the references whose parts all stand in the code, or data, or the path of a file."""
    named = path.relative_to(ROOT).as_posix()
    readable = path.suffix in {".py", *OTHER_CODE} and path.is_file()
    text = path.read_text(errors="replace") if readable else ""
    words = set(_WORD.findall(f"{named} {text}"))
    known = {reference for reference in references if words.issuperset(reference.split("."))}
    if known and path.suffix == ".py":  # whose docstrings and comments do not count
        words = {*_WORD.findall(named), *words_of_code(ast.parse(text))}
        known = {reference for reference in known if words.issuperset(reference.split("."))}
    return known


@pytest.mark.thorough
def test_docstrings_comments_and_architecture_name_only_what_exists() -> None:
    texts = {"ARCHITECTURE.md": (ROOT / "ARCHITECTURE.md").read_text()}
    for path in PRODUCT:
        spoken = [str(node.value) for node in docstrings(ast.parse(path.read_text()))]
        spoken += comments(path.read_text())
        texts[path.relative_to(ROOT).as_posix()] = "\n".join(spoken)
    references = {
        (name, reference)
        for name, text in texts.items()
        for reference in _REFERENCE.findall(text)
        if not _PLACEHOLDER.search(reference)
    }
    # The parts of a dotted name have to stand in one file: its module, or one that uses it.
    unknown = {reference for _, reference in references} - OUTSIDE
    for folder in ("common", "services", "configs", "prompts", "docker", "deploy", "tests"):
        for path in sorted((ROOT / folder).rglob("*")):
            unknown -= known_by(path, unknown)
    gone = sorted(f"{name}: {word}" for name, word in references if word in unknown)
    assert not gone, "\n".join(gone)


def test_names_say_what_a_thing_is() -> None:
    # A name is bound before one of these; to look for them first saves most of the parsing.
    bound = re.compile(r"\b_*(?:one|found|said|told)_*\s*(?:[=:,)\]({+*/|&-]|in\b|if\b)")
    texts = {path: path.read_text() for path in [*PRODUCT, *(ROOT / "tests").rglob("*.py")]}
    meaningless = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path, text in texts.items()
        if bound.search(text)
        for name, line in bound_names(ast.parse(text))
        if name.strip("_") in {"one", "found", "said", "told"}
    ]
    for path in (ROOT / "services").rglob("templates/*.html"):
        for name in Environment().parse(path.read_text()).find_all(nodes.Name):
            if name.ctx != "load" and name.name in {"one", "found", "said", "told"}:
                meaningless.append(f"{path.relative_to(ROOT)}:{name.lineno}: {name.name}")
    assert not meaningless, "\n".join(meaningless)
