"""What there is to know: models, statistics, live state, requests in progress."""
