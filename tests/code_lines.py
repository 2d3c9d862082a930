"""Count lines of Python: code (no blank lines, comments, docstrings), and lines with a comment.

python -m tests.code_lines common services
"""

import ast
import io
import sys
import tokenize
from pathlib import Path

_NO_CODE = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}


def count(text: str) -> tuple[int, int]:
    """Return the number of code lines and of lines that have a comment."""
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    code = {
        line
        for token in tokens
        if token.type not in _NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    comments = sum(token.type == tokenize.COMMENT for token in tokens)
    return len(code - _docstring_lines(ast.parse(text))), comments


def _docstring_lines(tree: ast.Module) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if node.body and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            lines.update(range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1))
    return lines


def main() -> None:
    total = [0, 0]
    for folder in sys.argv[1:]:
        counts = [count(path.read_text()) for path in Path(folder).rglob("*.py")]
        code, comments = (sum(column) for column in zip(*counts, strict=True))
        print(f"{folder}: {code} lines of code, {comments} with a comment")
        total = [total[0] + code, total[1] + comments]
    print(f"together: {total[0]} lines of code, {total[1]} with a comment")


if __name__ == "__main__":
    main()
