"""MLflow deployments."""
