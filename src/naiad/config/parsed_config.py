"""What the text of a configuration holds, and where in it each field stands."""

from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.pbtxt_lexer import Token
from naiad.config.problem import Position, Problem


class ParsedConfig:
    """What a text holds: the configuration, as far as it could be read, and everything that is wrong with it."""

    def __init__(self, filename: str) -> None:
        self.filename = filename
        self.config = ModelConfig()
        self.problems: list[Problem] = []
        self.positions: dict[str, Position] = {}
        """Field path to place: of the value for plain fields, of the name or the block for others."""

    def position(self, path: str) -> Position | None:
        """Return where the field at `path` (`input[0].dims`) stands, or else the nearest message around it."""
        while path and path not in self.positions:
            cut = max(path.rfind("."), path.rfind("["))
            path = path[: max(cut, 0)]
        return self.positions.get(path)

    def mark(self, path: str, token: Token) -> None:
        """Remember that the field at `path` stands at `token`, unless its place is known already."""
        self.positions.setdefault(path, Position(token.line, token.column))


def map_path(path: str, key: object) -> str:
    """Return the path of a map's value: `parameters["size"]`, `priority_queue_policy[2]`."""
    return f'{path}["{key}"]' if isinstance(key, str) else f"{path}[{key}]"
