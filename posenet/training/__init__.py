"""Training.

``train`` is the order of a run. A ``run`` has the parts and the loops: it takes ``batches``, sets the learning rate of
the ``optimizer``, and makes each ``step`` with the ``loss``. ``resume`` says what a checkpoint has, and restores it.
"""
