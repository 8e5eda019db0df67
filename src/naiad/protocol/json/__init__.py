"""KServe v2 over HTTP: JSON and binary bodies to requests, responses to bodies."""
