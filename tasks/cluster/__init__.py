"""The cluster step: a table, embeddings or images as features, methods that cluster them, labels with their sizes."""
