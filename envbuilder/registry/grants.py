"""What a token says that it lets us do; for people only, since nothing here checks who signed it.

Source: distribution's "Token Authentication Implementation" (the claim ``access``). Many token servers (GHCR, ECR)
give tokens that say nothing.
"""

from __future__ import annotations

import base64
import binascii

from envbuilder.digest import InvalidJson, parse_json_object
from envbuilder.registry.redact import plain

#: A JSON Web Token is three parts (RFC 7519); scopes that are shown of one.
_PARTS, _MAX_SCOPES, _MAX_TEXT = 3, 32, 400


def granted(token: str) -> tuple[str, ...] | None:
    """The scopes, ``repository:NAME:ACTIONS``, that ``token`` grants by its own words; None: it does not say."""
    parts = token.split(".")
    if len(parts) != _PARTS:
        return None
    try:
        data = base64.b64decode(parts[1] + "=" * (-len(parts[1]) % 4), altchars=b"-_", validate=True)
        access = parse_json_object(data, source="token").get("access")
        if not isinstance(access, list):
            return None
        scopes = (f"{each['type']}:{each['name']}:{','.join(each['actions'])}" for each in access[:_MAX_SCOPES])
        return tuple(plain(scope, _MAX_TEXT) for scope in scopes)
    except (binascii.Error, InvalidJson, KeyError, TypeError, ValueError):
        return None
