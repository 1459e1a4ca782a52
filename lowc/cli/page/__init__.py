"""The page of ``lowc view``: ``model`` says what is on it and what belongs together, ``render`` writes it as one HTML file."""
