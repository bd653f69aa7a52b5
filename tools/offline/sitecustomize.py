"""Python imports this by its name where PYTHONPATH has its folder; then no connection leaves this machine.

Notebooks and the site are made so. It sees what goes through Python's own sockets, in children of the process, too.
"""

from __future__ import annotations

import sys

_HERE = ("localhost", "127.0.0.1", "::1", "")


def _refuse(event: str, arguments: tuple[object, ...]) -> None:
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        address = arguments[1]
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        address = arguments
    else:
        return
    host = address[0] if isinstance(address, tuple) else None  # a path of this machine is not a tuple
    if isinstance(host, str) and host not in _HERE:
        raise OSError(f"{event} to {host}: tools/offline lets nothing out of this machine")


sys.addaudithook(_refuse)
