# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Errors that a person at the command line is meant to read."""


class UsageError(Exception):
    """A request that cannot be carried out as asked: the command line exits with 2 and prints it.

    The message is one line that names the argument, its value and the rule it breaks.
    """


class RunError(Exception):
    """A run that had to stop: the command line exits with 1 and prints the message as one line."""
