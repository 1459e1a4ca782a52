"""Tokens of the text form, and the cursor that the parser moves over them.

White space separates tokens; a line break matters only in that it ends a statement (``Token.first``).  ``#`` starts a
comment.
"""

import re
from typing import NamedTuple, NoReturn

from lowc.errors import ParseError

NAME = re.compile(r"[^\W\d]\w*(?:\.\w+)*")
RESERVED = frozenset("for if acc alloc barrier true false inf nan none".split())
"""Words that cannot be names of values, axes or buffers (those of dtypes cannot, either)."""

_TOKEN = re.compile(
    r"""(?P<blank>[ \t\r\n]+|\#[^\n]*)
      | (?P<name>[^\W\d]\w*(?:\.\w+)*)
      | (?P<float>\d+\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)
      | (?P<int>\d+)
      | (?P<string>"(?:[^"\\\n]|\\.)*")
      | (?P<shared>\$\d+)
      | (?P<sign>//|<<|>>|<=|>=|==|!=|\.\.|[-+*/%&|^<>=:,()\[\]{}@~])""",
    re.VERBOSE,
)


class Token(NamedTuple):
    """``kind``: name, float, int, string, shared, sign, end.  ``first``: the first token of its line."""

    kind: str
    text: str
    offset: int
    first: bool


class Cursor:
    """A position in the tokens of ``source``.  Raises ParseError at once where there is no token."""

    __slots__ = ("position", "source", "token", "tokens")

    def __init__(self, source: str) -> None:
        self.source = source
        self.tokens = self._tokens()
        self.position = 0
        self.token = self.tokens[0]

    def _tokens(self) -> list[Token]:
        tokens: list[Token] = []
        offset, first, source = 0, True, self.source
        while offset < len(source):
            found = _TOKEN.match(source, offset)
            if found is None:
                self.fail(f"unexpected character {source[offset]!r}", offset)
            kind = found.lastgroup or ""
            if kind == "blank":
                first = first or "\n" in found.group()
            else:
                tokens.append(Token(kind, found.group(), offset, first))
                first = False
            offset = found.end()
        tokens.append(Token("end", "", offset, True))
        return tokens

    def ahead(self, count: int = 1) -> Token:
        """The token ``count`` places on; the last one where there are no more."""
        return self.tokens[min(self.position + count, len(self.tokens) - 1)]

    def take(self) -> Token:
        """The token here, moving past it."""
        token = self.token
        if self.position < len(self.tokens) - 1:
            self.position += 1
            self.token = self.tokens[self.position]
        return token

    def back(self) -> None:
        """Undoes one ``take``."""
        self.position -= 1
        self.token = self.tokens[self.position]

    def at(self, text: str) -> bool:
        """Whether the sign or word ``text`` is here."""
        return self.token.text == text and self.token.kind != "string"

    def skip(self, text: str) -> bool:
        """Moves past ``text`` if it is here."""
        if self.token.text != text or self.token.kind == "string":
            return False
        self.take()
        return True

    def expect(self, text: str) -> Token:
        if not self.at(text):
            self.fail(f"expected {text!r}, got {self.token.text!r}")
        return self.take()

    def of(self, kind: str, what: str = "") -> Token:
        """The token here, which must be of ``kind``; ``what`` names it in the message."""
        if self.token.kind != kind:
            self.fail(f"expected {what or kind}, got {self.token.text!r}")
        return self.take()

    def fail(self, message: str, at: Token | int | None = None) -> NoReturn:
        """Raises ParseError with line, column and the line, marked ``at`` a token or offset (default: here)."""
        offset = at if isinstance(at, int) else (at or self.token).offset
        start = self.source.rfind("\n", 0, offset) + 1
        stop = self.source.find("\n", offset)
        line, column = self.source.count("\n", 0, offset) + 1, offset - start + 1
        shown = self.source[start : stop if stop >= 0 else None].replace("\t", " ")
        skipped = max(0, offset - start - 80)
        shown = ("…" if skipped else "") + shown[skipped : skipped + 120]
        gutter = f"{line:5} | "
        mark = " " * (len(gutter) + offset - start - skipped + bool(skipped)) + "^"
        raise ParseError(f"line {line}, column {column}: {message}\n{gutter}{shown}\n{mark}")
