"""A client for naiad and other servers of KServe v2, over HTTP/1.1 and gRPC: plain calls, or on asyncio."""

from naiad.client.client import Client, InferResult
from naiad.client.connecting import ClientClosedError, ConnectionFailedError, NotConnectedError
from naiad.client.replicas.replica_calls import RetryCounts
from naiad.client.replicas.replica_set import ReplicaState
from naiad.client.sync_client import SyncClient, connect
from naiad.core.errors import ErrorCode, InferError
from naiad.core.request import RequestedOutput

__all__ = [
    "Client",
    "ClientClosedError",
    "ConnectionFailedError",
    "ErrorCode",
    "InferError",
    "InferResult",
    "NotConnectedError",
    "ReplicaState",
    "RequestedOutput",
    "RetryCounts",
    "SyncClient",
    "connect",
]
