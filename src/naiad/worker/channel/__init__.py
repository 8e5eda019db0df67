"""The channel between the server and a worker: frames in pipes, payloads in shared memory."""
