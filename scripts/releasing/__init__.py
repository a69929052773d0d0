"""The command `scripts/release`: builds the binary, makes packages of it, installs each of them and runs it.

Standard library only. `command` is the whole walk; `targets` says as data what a binary can be built for; `payload` is the list
of files that every package has; one module per kind of package puts them together; `checks` installs them.
"""
