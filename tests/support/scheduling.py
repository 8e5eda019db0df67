"""Requests as a scheduler sees them."""

from naiad.core.request import InferRequest, RequestHeader

MS = 1_000_000


def waiting_request(
    *,
    at_ns: int = 0,
    rows: int = 1,
    shape: object = "A",
    priority: int = 0,
    timeout_us: int = 0,
    id: str = "",  # noqa: A002
) -> InferRequest:
    """A request as it looks after admission."""
    header = RequestHeader(model_name="m", parameters={}, priority=priority, timeout_us=timeout_us)
    request = InferRequest(header, (), lambda request, response: None, id=id, arrival_ns=at_ns)
    request.batch_size = rows
    request.shape_key = shape
    return request


def enqueue_all(scheduler, requests):
    """Enqueue each request at its arrival and return them as a list."""
    requests = list(requests)
    for request in requests:
        scheduler.enqueue(request, request.arrival_ns)
    return requests


def sequence_request(
    correlation_id: int | str,
    *,
    start: bool = False,
    end: bool = False,
    at_ns: int = 0,
    shape: object = "A",
    timeout_us: int = 0,
) -> InferRequest:
    """A request of a sequence as it looks after admission."""
    header = RequestHeader(
        model_name="m",
        parameters={},
        shared_memory={},
        sequence_id=correlation_id,
        sequence_start=start,
        sequence_end=end,
        timeout_us=timeout_us,
    )
    request = InferRequest(header, (), lambda request, response: None, arrival_ns=at_ns)
    request.shape_key = shape
    return request
