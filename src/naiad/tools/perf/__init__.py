"""`naiad perf`: a load generator for servers of KServe v2, and the statistics of what it measures."""
