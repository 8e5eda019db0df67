"""A TFLite model in an interpreter: its tensors by name, and how it is run."""

from collections.abc import Mapping
from typing import Any, Protocol

from ai_edge_litert.interpreter import Interpreter

from naiad.core.tensor import Array, Shape

DEFAULT_SIGNATURE = "serving_default"

Details = Mapping[str, Mapping[str, Any]]
"""Name of a tensor to what the interpreter says of it."""


class Graph(Protocol):
    """A graph that can be run. Not for several threads at once."""

    inputs: Details
    outputs: Details

    def run(self, arrays: Mapping[str, Array]) -> Mapping[str, Array]:
        """Return all outputs, in memory of their own. Raises ValueError or RuntimeError."""


class UnknownSignatureError(ValueError):
    """The model has no signature of this name; the text lists the existing ones."""


def open_graph(content: bytes, signature: str, thread_count: int) -> Graph:
    """Return the graph of a signature, by default `serving_default` or the only one.

    Tensors have the names of the signature; without signatures they have their names in the graph. Raises
    UnknownSignatureError, ValueError for files that are not complete, and RuntimeError for unknown operators.
    """
    interpreter = Interpreter(model_content=content, num_threads=thread_count)
    name = _choose_signature(list(interpreter.get_signature_list()), signature)
    if not name:
        inputs, outputs = interpreter.get_input_details(), interpreter.get_output_details()
        return MainGraph(interpreter, _by_name(inputs), _by_name(outputs))
    runner = interpreter.get_signature_runner(name)
    graph = SignatureGraph(runner)
    if not _is_main(interpreter, graph):
        return graph
    # The interpreter does not run while something else refers to its memory, as the runner does.
    inputs, outputs = graph.inputs, graph.outputs
    del runner, graph
    return MainGraph(interpreter, inputs, outputs)


class MainGraph:
    """The first graph of a file. Its memory is planned again only when shapes change: it saves 17 us a run."""

    def __init__(self, interpreter: Any, inputs: Details, outputs: Details) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self._interpreter = interpreter
        self._shapes: dict[str, Shape] = {}
        """Shapes of the inputs that memory is planned for; empty if it is not."""
        interpreter.allocate_tensors()

    def run(self, arrays: Mapping[str, Array]) -> Mapping[str, Array]:
        """See `Graph.run`."""
        interpreter = self._interpreter
        shapes = {name: array.shape for name, array in arrays.items()}
        if shapes != self._shapes:
            self._shapes = {}
            for name, shape in shapes.items():
                interpreter.resize_tensor_input(self.inputs[name]["index"], shape)
            interpreter.allocate_tensors()
            self._shapes = shapes
        for name, array in arrays.items():
            interpreter.set_tensor(self.inputs[name]["index"], array)
        interpreter.invoke()
        return {name: interpreter.get_tensor(details["index"]) for name, details in self.outputs.items()}


class SignatureGraph:
    """A further graph of a file, which only a signature leads to."""

    def __init__(self, runner: Any) -> None:
        self.inputs: Details = runner.get_input_details()
        self.outputs: Details = runner.get_output_details()
        self._runner = runner

    def run(self, arrays: Mapping[str, Array]) -> Mapping[str, Array]:
        """See `Graph.run`."""
        outputs: Mapping[str, Array] = self._runner(**arrays)
        return outputs


def _choose_signature(names: list[str], wanted: str) -> str:
    if wanted and wanted not in names:
        existing = f"the existing ones are {', '.join(names)}" if names else "it has no signatures"
        raise UnknownSignatureError(f"it has no signature '{wanted}'; {existing}")
    if wanted or not names:
        return wanted
    if DEFAULT_SIGNATURE in names or len(names) == 1:
        return DEFAULT_SIGNATURE if DEFAULT_SIGNATURE in names else names[0]
    raise UnknownSignatureError(f"choose one of its signatures {', '.join(names)} with the parameter 'signature'")


def _is_main(interpreter: Any, graph: Graph) -> bool:
    pairs = ((interpreter.get_input_details(), graph.inputs), (interpreter.get_output_details(), graph.outputs))
    return all(_places(main) == _places(list(details.values())) for main, details in pairs)


def _places(details: list[Mapping[str, Any]]) -> set[tuple[int, str]]:
    return {(each["index"], each["name"]) for each in details}


def _by_name(details: list[Mapping[str, Any]]) -> Details:
    return {each["name"]: each for each in details}
