# The same two commands for those who have make; everything is in make.py.
PYTHON ?= python3

.PHONY: demo test

demo:
	@$(PYTHON) make.py demo

test:
	@$(PYTHON) make.py test
