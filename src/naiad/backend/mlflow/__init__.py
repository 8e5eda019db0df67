"""The MLflow backend: model directories with an `MLmodel` file and the flavour `python_function`."""
