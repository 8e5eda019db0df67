"""Lists the benchmarks, each of which is a command of its own: `python -m bench`."""

import ast
from pathlib import Path

HERE = Path(__file__).resolve().parent


def commands() -> dict[str, str]:
    """Return the first line of the description of each command, by module; of a package that of the package."""
    found = {}
    for path in sorted((*HERE.glob("*.py"), *HERE.glob("soak/*.py"), *HERE.glob("*/__main__.py"))):
        if path != Path(__file__).resolve() and '__name__ == "__main__"' in path.read_text():
            name = ".".join(path.relative_to(HERE.parent).with_suffix("").parts).removesuffix(".__main__")
            described = path.with_name("__init__.py") if path.stem == "__main__" else path
            found[name] = (ast.get_docstring(ast.parse(described.read_text())) or "").split("\n")[0]
    return found


if __name__ == "__main__":
    for module, line in commands().items():
        print(f"python -m {module:28} {line}")
