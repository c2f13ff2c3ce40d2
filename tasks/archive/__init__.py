"""Archiving: text, corpora and run artefacts compressed with a language model, and read back to be sure."""
