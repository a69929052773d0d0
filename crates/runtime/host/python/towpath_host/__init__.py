"""Runs the Python graphs of a project for a Towpath server.

The server starts this package as a child process and talks to it over one socket, in the protocol that
``docs/internals/graph-host-protocol.md`` describes. Everything durable stays with the server; this process holds the
user's code and what runs of it are doing right now.

Modules, from the wire up:

- ``wire``: frames and their codes; ``connection``: the socket; ``health``: the thread that answers for a busy loop
- ``streams``: one request of the server, its credit, and the calls made for it
- ``text``: JSON that clients expect
- ``saver``, ``store``: what langgraph asks for, over the socket
- ``loading``, ``projects``, ``describe``: from a config file to graphs that can be run, and what they look like
- ``runs``, ``chunks``, ``states``: running graphs, what they stream, and the state they leave
- ``auth``, ``users``, ``encryption``, ``embedding``, ``web``, ``asgi``, ``sockets``: the other objects a project may bring
- ``child``, ``logs``, ``forking``, ``process``: the process itself
"""

PROTOCOL = 1
"""The version of the protocol spoken here."""
