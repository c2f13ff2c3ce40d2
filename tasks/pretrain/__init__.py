"""Pre-training: a base model from scratch on a person's text."""
