"""Adaptation: a model on long text, so that it answers wherever the evidence stands."""
