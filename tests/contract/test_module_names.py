"""A module name means one thing: few names occur in more than one room of src.

A module has its owner's word in its name: `row_source`, `split_source`. Searches, stack traces and logs then say
which one is meant. SHARED lists the names of several rooms, with the reason. A new one is renamed, or adds its line.
"""

from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2] / "src" / "naiad"
MODELS = "tools/demo/models/"
MAX_SHARED = 40

PROTOCOL = "the same thing for two protocols or roles"
LAYERS = "one thing in several layers: its configuration, its execution, its form on the wire"
INTERFACE = "the name in an interface that naiad is compatible with"

SHARED = {
    "api": "the interface of what a room takes: backends, agents, schedulers; for users, the optimizer",
    "backend": "the class `Backend` of each framework, and that of functions of a program",
    "busy_polling": "both ends of one mechanism",
    "client": INTERFACE,
    "compression": LAYERS,
    "connection": "a connection: of a protocol, or Airflow's",
    "control": LAYERS,
    "cuda": "both ends of one mechanism",
    "dlpack": "both ends of one mechanism",
    "endpoint": LAYERS,
    "factory": "makes a response cache, or a scheduler, from a configuration",
    "generate": LAYERS,
    "grpc": PROTOCOL,
    "grpc_connection": PROTOCOL,
    "http": PROTOCOL,
    "http1": PROTOCOL,
    "infer": LAYERS,
    "inference": LAYERS,
    "last_resort": "the same for the server and for its workers, which cannot import the server",
    "model": LAYERS,
    "model_config": INTERFACE,
    "models": "what clients ask of models: operations, and MLflow's registry",
    "padding": LAYERS,
    "pictures": LAYERS,
    "planning": "what a verb, or a command of the repository, is going to do",
    "ports": "interfaces to the environment in core; listening ports in server",
    "predict": "the verb, its operator for Airflow, and a mode of analyze with Model Analyzer's word",
    "processes": "the processes of a server; the generator processes of a load",
    "request": LAYERS,
    "response": LAYERS,
    "rollout": LAYERS,
    "shared_memory": LAYERS,
    "sink": "what takes the events of a connection, and what takes the rows of a job",
    "tensor": LAYERS,
    "version": "the version of naiad, and the verb that prints it",
}


def test_modules_of_different_rooms_have_different_names() -> None:
    rooms = defaultdict(set)
    for path in ROOT.rglob("*.py"):
        module = path.relative_to(ROOT).as_posix()
        if not module.startswith(MODELS) and not path.stem.startswith("__"):
            rooms[path.stem].add(room_of(module))
    shared = {name: found for name, found in rooms.items() if len(found) > 1}
    new = [f"{name}: {', '.join(sorted(shared[name]))}" for name in sorted(shared.keys() - SHARED)]
    assert not new, "rename all but one, with the word of its owner:\n" + "\n".join(new)
    assert not SHARED.keys() - shared, "remove from SHARED what occurs in one room"
    assert len(shared) <= MAX_SHARED


def room_of(module: str) -> str:
    """Return the room of a module: a folder of naiad, or one of tools."""
    parts = module.split("/")
    return "/".join(parts[:2]) if parts[0] == "tools" else parts[0]
