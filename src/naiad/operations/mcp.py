"""The endpoint of the Model Context Protocol. The frontend carries it out: it decodes and encodes the messages."""

from naiad.operations.operation import AnyOperation, Operation, RestForm

MCP: AnyOperation = Operation(
    name="mcp",
    category="inference",
    kind="query",
    group="MCP",
    summary="Models as tools of language models, by the Model Context Protocol",
    rest=[RestForm("POST", "/mcp")],
)

OPERATIONS = (MCP,)
