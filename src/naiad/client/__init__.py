"""A client for naiad and other servers of KServe v2, over HTTP/1.1 and gRPC, on asyncio."""

from naiad.client.client import Client, InferResult
from naiad.client.connecting import ConnectionFailedError
from naiad.core.errors import ErrorCode, InferError
from naiad.core.request import RequestedOutput

__all__ = ["Client", "ConnectionFailedError", "ErrorCode", "InferError", "InferResult", "RequestedOutput"]
