from dataclasses import dataclass


@dataclass
class AsyncEngineArgs:
    model: str = "facebook/opt-125m"
    dtype: str = "auto"
    max_model_len: int = 64
    gpu_memory_utilization: float = 0.9
    enforce_eager: bool = False
    enable_lora: bool = False
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    enable_log_requests: bool = False

    def __post_init__(self):
        if self.dtype not in ("auto", "float16", "bfloat16"):
            raise ValueError(f"Unknown dtype: {self.dtype}")
