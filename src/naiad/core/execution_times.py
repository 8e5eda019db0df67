"""When a request was executed, and in which trace."""


class ExecutionTimes:
    """The moments of the execution that a request was part of, in monotonic ns; 0 before it has ended."""

    __slots__ = ("compute_end_ns", "compute_start_ns", "exec_end_ns", "exec_start_ns", "traceparent")

    def __init__(self) -> None:
        self.exec_start_ns = 0
        self.compute_start_ns = 0
        self.compute_end_ns = 0
        self.exec_end_ns = 0
        self.traceparent = ""
        """The span that what a model does belongs to, as W3C Trace Context has it; empty for none."""
