"""The science: one package per paper, importable alone. Knows nothing of Prefect, MLflow and DVC."""
