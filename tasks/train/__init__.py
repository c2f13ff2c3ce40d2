"""Fine-tuning: one expert a task, stopped for merging."""
