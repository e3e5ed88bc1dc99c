"""Who may ask a server that listens on this machine only.

A page of somebody else's may have its own name lead to 127.0.0.1 and then read what is served there
as if it were its own (DNS rebinding). The browser says which name it asked for.
"""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit


def is_loopback(host: str) -> bool:
    """Whether a name or an address is this machine's own to itself."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def names_loopback(header: str | None) -> bool:
    """Whether the `Host` of a request, with or without a port, is such a one."""
    try:
        return is_loopback(urlsplit(f"//{header or ''}").hostname or "")
    except ValueError:
        return False
