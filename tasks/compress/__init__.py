"""The compress step: one model in, a smaller one out."""
