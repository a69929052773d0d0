"""The command `scripts/test`: runs the suites of Towpath on servers of its own and keeps what they took.

Standard library only. `command` is the whole walk; `suites` says as data what each suite runs and needs; `lanes` decides which
suite runs when; `changed` decides which suites a change can affect.
"""
