"""Use the models of `server.py`; the arguments are the URLs for HTTP and gRPC."""

import sys

import numpy as np

from naiad.bind.client import DecoupledModelClient, ModelClient

http_url, grpc_url = sys.argv[1:] or ("localhost:8000", "grpc://localhost:8001")

with ModelClient(http_url, "normalize") as client:
    print(client.infer_sample(np.array([3, 4], np.float32)))

with ModelClient(http_url, "lengths") as client:
    print(client.infer_sample(np.array(["one", "three"])))

with DecoupledModelClient(grpc_url, "countdown") as client:
    for outputs in client.infer_sample(np.array([10])):
        print(outputs)
