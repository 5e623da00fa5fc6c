"""Tokens of AWS IAM for Amazon MSK: `kafka.oauth_cb = "bridge.msk_iam:token"`, with the extra `msk`.

AWS' own signer makes the token from the credentials of the environment (variables, profile, role of the pod or machine)
for the region in AWS_REGION.
"""

import os

from bridge.errors import SettingsError


def token(_config: str) -> tuple[str, float]:
    """Return a token and its end (epoch seconds). Raises SettingsError, and botocore's errors."""
    from aws_msk_iam_sasl_signer import MSKAuthTokenProvider

    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if not region:
        raise SettingsError("AWS_REGION is not set: name the region of the MSK cluster")
    made, end_ms = MSKAuthTokenProvider.generate_auth_token(region)
    return made, end_ms / 1000
