"""Interatomic potentials on a person's own structures."""
