"""Graphs of a person's own: read, models trained on them side by side, predictions, and how far each model looks."""
