"""Random matrix products, attention and convolutions, with what comes before and after them, by lowc's own kernels.

``python -m tests.property.contractions --help``; ``case`` says what a failure is, ``products``, ``attentions``,
``flex`` and ``convolutions`` make programs, ``__main__`` runs seeds in processes.
"""
