"""Where each symbol of the served files is declared, and what a client needs to understand a file."""

from collections.abc import Iterator, Sequence

from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FileDescriptorProto


class SymbolIndex:
    """The files of the services by their name and by each symbol that they declare."""

    def __init__(self, files: Sequence[FileDescriptorProto]) -> None:
        """Each file comes after those that it imports."""
        self._with_imports: dict[str, Sequence[bytes]] = {}
        self._file_of: dict[str, str] = {}
        self.services: Sequence[str] = sorted(
            f"{file.package}.{service.name}" for file in files for service in file.service
        )
        """Full names."""
        self.messages: frozenset[str] = frozenset(
            name for file in files for name, kind in _symbols(file) if kind == "message"
        )
        """Full names."""
        for file in files:
            imported = [data for name in file.dependency for data in self._with_imports[name]]
            self._with_imports[file.name] = (file.SerializeToString(), *dict.fromkeys(imported))
            self._file_of.update((name, file.name) for name, _ in _symbols(file))

    def file(self, name: str) -> Sequence[bytes] | None:
        """Return a file by its name, serialized, with all files that it imports after it; None for an unknown one."""
        return self._with_imports.get(name)

    def file_declaring(self, symbol: str) -> Sequence[bytes] | None:
        """Return the file that declares a symbol, as `file` does; None for an unknown one."""
        name = self._file_of.get(symbol.removeprefix("."))
        return None if name is None else self._with_imports[name]


_Symbol = tuple[str, str]
"""Full name and kind."""


def _symbols(file: FileDescriptorProto) -> Iterator[_Symbol]:
    for message in file.message_type:
        yield from _symbols_of_message(file.package, message)
    for enum in file.enum_type:
        yield from _symbols_of_enum(file.package, enum)
    for service in file.service:
        name = f"{file.package}.{service.name}"
        yield name, "service"
        for method in service.method:
            yield f"{name}.{method.name}", "method"


def _symbols_of_message(scope: str, message: DescriptorProto) -> Iterator[_Symbol]:
    name = f"{scope}.{message.name}"
    yield name, "message"
    for field in message.field:
        yield f"{name}.{field.name}", "field"
    for choice in message.oneof_decl:
        yield f"{name}.{choice.name}", "oneof"
    for nested in message.nested_type:
        yield from _symbols_of_message(name, nested)
    for enum in message.enum_type:
        yield from _symbols_of_enum(name, enum)


def _symbols_of_enum(scope: str, enum: EnumDescriptorProto) -> Iterator[_Symbol]:
    yield f"{scope}.{enum.name}", "enum"
    for value in enum.value:  # Protocol buffers: values belong to the scope around their enum.
        yield f"{scope}.{value.name}", "enum value"
