"""Training.

``train`` is the order of a run: it builds a ``run`` and goes through the ``loop``, which takes ``batches``, sets the
learning rate of the ``optimizer``, and makes each ``step`` with the ``loss``. ``resume`` says what a checkpoint
contains, and restores it.
"""
