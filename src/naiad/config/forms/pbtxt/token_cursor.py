"""The tokens of a text in order, and the problems that are found on the way."""

from naiad.config.forms.pbtxt.lexer import ParsedConfig, Token, TokenKind, shorten, tokenize
from naiad.config.problem import Problem, Severity

MAX_PROBLEMS = 100
"""Maximum number of reported problems per file."""

CLOSERS = {"{": "}", "<": ">"}
"""Closing tokens of a message, by opening token."""


class TooManyProblemsError(Exception):
    """Ends the reading of a file that is not a configuration."""


class TokenCursor:
    """Iterates over the tokens of a text; `_token` is the current one."""

    def __init__(self, parsed: ParsedConfig, text: str) -> None:
        self._parsed = parsed
        self._tokens = tokenize(text)
        self._ahead: Token | None = None
        self._token = self._next_token()

    def _next_token(self) -> Token:
        token, self._ahead = self._ahead or next(self._tokens), None
        return token

    def _is_quoted_name(self) -> bool:
        """Return whether the current string is a field name in JSON style."""
        if self._token.kind is TokenKind.STRING and self._ahead is None:
            self._ahead = next(self._tokens)
        return self._ahead is not None and self._ahead.text in (":", "=")

    def _advance(self) -> Token:
        token = self._token
        if token.kind is not TokenKind.END:
            self._token = self._next_token()
            self._take_faults()
        return token

    def _take_faults(self) -> None:
        """Report malformed tokens and drop meaningless ones."""
        while self._token.fault:
            token = self._token
            self._problem(token.fault, token, expected=token.expected)
            if token.text:
                return
            self._token = self._next_token()

    def _at(self, *marks: str) -> bool:
        return self._token.kind is TokenKind.MARK and self._token.text in marks

    def _accept(self, *marks: str) -> bool:
        if not self._at(*marks):
            return False
        self._advance()
        return True

    def _problem(
        self,
        message: str,
        token: Token,
        *,
        path: str = "",
        expected: str = "",
        suggestion: str = "",
        severity: Severity = "error",
    ) -> None:
        if len(self._parsed.problems) >= MAX_PROBLEMS:
            raise TooManyProblemsError
        self._parsed.problems.append(
            Problem(
                message=message,
                path=path,
                filename=self._parsed.filename,
                line=token.line,
                column=token.column,
                text=shorten(token.text),
                expected=expected,
                suggestion=suggestion,
                severity=severity,
            )
        )

    # --- recovery ---------------------------------------------------------------------------------------------------

    def _skip_value(self) -> None:
        """Skip one value of any kind."""
        if self._at("{", "<", "["):
            self._skip_block(self._advance())
            return
        self._accept("-")
        if self._token.kind is TokenKind.STRING:
            while self._token.kind is TokenKind.STRING:
                self._advance()
        elif self._token.kind in (TokenKind.NAME, TokenKind.NUMBER):
            self._advance()

    def _skip_block(self, opener: Token) -> None:
        """Skip the rest of a block that was opened by `opener`, with all content."""
        depth = 1
        while self._token.kind is not TokenKind.END:
            token = self._advance()
            if token.kind is not TokenKind.MARK:
                continue
            if token.text in ("{", "<", "["):
                depth += 1
            elif token.text in ("}", ">", "]"):
                depth -= 1
                if depth == 0:
                    return
        self._problem(f"'{opener.text}' is never closed", opener, expected=f"'{CLOSERS.get(opener.text, ']')}'")

    def _skip_to_field(self) -> None:
        """Skip tokens that cannot begin a field, without a report."""
        while self._token.kind in (TokenKind.NUMBER, TokenKind.STRING) or self._at(":", "=", "-", ",", ";"):
            self._advance()
