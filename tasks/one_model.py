"""One lock for what a model library keeps for the whole process: seeds, the default number format, the meta device."""

import threading

# Loading in two threads mixes up number formats and leaves tensors without data; trainings and searches set seeds.
one_model_at_a_time = threading.RLock()
