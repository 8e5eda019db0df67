"""What frontends submit requests to in unit tests."""

from naiad.core.limits.request_limits import RequestLimits, unlimited
from naiad.core.request import InferRequest
from naiad.engine.regions.regions import SharedMemory
from support.one_engine import OneEngine


class RecordingEngine(OneEngine):
    """Notes what is submitted and cancelled; a test answers it."""

    def __init__(self) -> None:
        self.submitted: list[InferRequest] = []
        self.cancelled: list[InferRequest] = []
        self.rejection: Exception | None = None
        """Raised at the door."""
        self.waits = False
        """Whether a request that is cancelled has not begun to execute."""
        self.shared_memory = SharedMemory()

    def submit(self, request: InferRequest, served: object = None) -> None:
        if self.rejection is not None:
            raise self.rejection
        header = request.header
        for each in (header, header.origin):
            if each is not None:
                each.admission = "admitted"
        self.submitted.append(request)

    def request_limits(self, name: str, version: str = "") -> RequestLimits:
        return unlimited(name, version)

    def cancel(self, request: InferRequest) -> bool:
        request.cancelled = True
        self.cancelled.append(request)
        return self.waits
