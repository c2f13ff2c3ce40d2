"""Merging: experts of one base into one model, the coefficient chosen on the select split."""
