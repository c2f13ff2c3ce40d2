"""The long-running side: Prefect server, MLflow server and the process that serves the flows."""
