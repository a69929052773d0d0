"""Unit tests of the command: `python3 scripts/testing/tests`, or `python3 -m unittest discover -s testing/tests -t .` in
scripts/."""
