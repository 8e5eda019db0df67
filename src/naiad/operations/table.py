"""All operations, in the order in which the router looks for a path."""

from naiad.operations import inference, models, repository, settings, shared_memory
from naiad.operations.operation import by_grpc_path

OPERATIONS = (
    *inference.OPERATIONS,
    *models.OPERATIONS,
    *repository.OPERATIONS,
    *settings.OPERATIONS,
    *shared_memory.OPERATIONS,
)
WITHOUT_PAGES = tuple(operation for operation in OPERATIONS if operation not in models.PAGES)
"""Those of a server with --http-docs=false."""
BY_NAME = {operation.name: operation for operation in OPERATIONS}
BY_GRPC_PATH = by_grpc_path(OPERATIONS)
