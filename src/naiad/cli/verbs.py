"""Table of the verbs of `naiad`. Their modules are strings, because a command imports only the one of its verb."""

VERBS = {
    "serve": ("naiad.cli.serve", "serve models over HTTP and gRPC"),
    "check": ("naiad.cli.check.check", "check a model repository as a server would, without starting one"),
    "inspect": ("naiad.cli.inspect.inspect", "show what model files contain and what would serve them"),
    "graph": ("naiad.cli.explain.flowchart", "list the steps of an ensemble, or draw them with Mermaid"),
    "explain": (
        "naiad.cli.explain.explain",
        "show how requests of a model are scheduled and why its last batches were sent",
    ),
    "rollout": ("naiad.cli.rollout", "show or change how requests are split between versions of a model"),
    "top": ("naiad.cli.top.top", "show what servers and their models do now, in the terminal"),
    "config": (
        "naiad.cli.config",
        "write a config.pbtxt for a model (init), show the values of flags (show)",
    ),
    "analyze": ("naiad.cli.models.analyze", "find the configuration of a model that serves best"),
    "optimize": ("naiad.cli.models.optimize", "convert a model, prove it equal, and package what serves best"),
    "compare": (
        "naiad.cli.models.compare",
        "compare the answers of two models: files of any format, or running servers",
    ),
    "perf": ("naiad.cli.perf.command", "measure throughput and latency of a server, as perf_analyzer does"),
    "predict": ("naiad.cli.models.predict", "run a model over all rows of files, without a server or on one"),
    "consume": ("naiad.cli.models.consume", "run a model over the messages of a queue"),
    "verify": ("naiad.cli.package.verify", "prove a package of naiad optimize again on this machine"),
    "export": ("naiad.cli.package.export", "put a package of naiad optimize into a repository or a running server"),
    "split": ("naiad.cli.large_models.split", "cut an ONNX model into stages that run as a pipeline"),
    "rank": ("naiad.cli.large_models.rank", "run the ranks of a model that belong to this machine"),
    "client-code": ("naiad.cli.client_code.client_code", "write a typed client of a model, in Python or TypeScript"),
    "new": ("naiad.cli.new", "write a package with a backend of your own"),
    "demo": ("naiad.cli.demo", "build a repository of real models, serve it and send real inputs"),
    "key": ("naiad.cli.key", "make an API key for --api-key-file"),
    "completion": ("naiad.cli.completion", "print a script for tab completion in bash, zsh or fish"),
    "version": ("naiad.cli.version", "print the version"),
}
"""Module and description of each verb."""
