"""What the study of `pruning_representations` asks of a model: its tasks, their scores, and retrieval."""
