"""What a server reports about itself: metrics, the set of ready models, the start-up report, failed starts."""
