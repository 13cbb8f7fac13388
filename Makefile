# Two commands for a newcomer: `make book` and `make test`. Both make the environment first.
# Paths are relative, so a checkout may lie in a folder whose name has spaces.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	command -v $$p >/dev/null && $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
	&& echo $$p && break; done)
VENV := .venv
RUN := $(VENV)/bin/python

.DEFAULT_GOAL := help
.PHONY: book test sync clean help

book: $(VENV)/installed  ## Execute what changed and build the book into _build/html
	@$(RUN) -m emergence_lib.cli build

test: $(VENV)/installed  ## Run the linter, the type checker and the tests
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@$(RUN) -m mypy emergence_lib
	@$(RUN) -m pytest -q -n 2 --dist loadfile  # the built book is shared by one file's tests

sync: $(VENV)/installed  ## Write every notebooks/*.ipynb from its .py
	@$(RUN) -c 'from emergence_lib import book; print(*book.sync(), sep="\n")'

clean:  ## Delete everything built, but neither the environment nor recorded results
	rm -rf _build

help:  ## Show this
	@sed -n 's/^\([a-z]*\):.*##  *\(.*\)/make \1\t\2/p' Makefile

# Made again only when the exact versions or the package's declaration change.
$(VENV)/installed: requirements.txt pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11, 3.12 or 3.13 is needed; none was found." >&2; exit 1; }
	@test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	@echo "Installing requirements.txt into $(VENV) …"
	@$(RUN) -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@$(RUN) -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@
