"""Tokens of AWS IAM, made by AWS' own signer with credentials from an endpoint, as in a pod."""

import base64
import json
import time
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest

from bridge.errors import SettingsError
from bridge.msk_iam import token
from bridge.tests.simulation.http_fakes import answering, http


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    keys = {"AccessKeyId": "key", "SecretAccessKey": "secret", "Token": "session"}
    with answering(http(json.dumps({**keys, "Expiration": "2099-01-01T00:00:00Z"}))) as (address, _):
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"http://{address}/")
        yield


@pytest.mark.usefixtures("endpoint")
def test_a_token_is_signed_with_the_credentials_of_the_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    made, end_s = token("")
    signed = parse_qs(urlsplit(base64.urlsafe_b64decode(made + "==").decode()).query)
    assert signed["Action"] == ["kafka-cluster:Connect"]
    assert signed["X-Amz-Credential"][0].startswith("key/")
    assert "/eu-central-1/kafka-cluster/" in signed["X-Amz-Credential"][0]
    assert signed["X-Amz-Security-Token"] == ["session"]
    assert 0 < end_s - time.time() <= 900


@pytest.mark.usefixtures("endpoint")
def test_without_a_region_the_remedy_is_named() -> None:
    with pytest.raises(SettingsError, match="AWS_REGION is not set: name the region"):
        token("")
