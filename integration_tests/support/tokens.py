"""A token function as an operator writes it. Its tokens are unsigned, which Kafka accepts by default."""

import base64
import json
import time


def token(config: str) -> tuple[str, float]:
    """Return a token for the user that `sasl.oauthbearer.config` names, and its end (epoch seconds)."""
    now_s = time.time()
    claims = {"sub": config, "iat": now_s, "exp": now_s + 60}
    parts = [base64.urlsafe_b64encode(json.dumps(each).encode()).rstrip(b"=") for each in ({"alg": "none"}, claims)]
    return b".".join([*parts, b""]).decode(), now_s + 60
