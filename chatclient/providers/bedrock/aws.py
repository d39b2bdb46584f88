"""Region, credentials and signatures, through botocore (extra `bedrock`)."""

import os
import time
from typing import TYPE_CHECKING, Any

from chatclient._internal.extras import needed_by
from chatclient.errors import AuthenticationError, ConnectionFailedError, UsageError
from chatclient.providers.bedrock.encoding import PROVIDER
from chatclient.providers.http.auth import (
    TOKEN_SECONDS,
    ExpiringCredentials,
    Headers,
    SecretHeaders,
    Signer,
)
from chatclient.providers.http.redaction import token_service_error
from chatclient.runtime.runtime import Runtime

if TYPE_CHECKING:
    from botocore.credentials import ReadOnlyCredentials
    from botocore.session import Session

_SERVICE = "bedrock-runtime"
_SIGNING_NAME = "bedrock"
# botocore renews credentials itself, which can take seconds; it is asked this often.
_CHECK_SECONDS = 60.0


def require_botocore() -> None:
    """Check that botocore is installed.

    Raises:
        UsageError: It is not.
    """
    with needed_by("Bedrock"):
        import botocore.session  # noqa: F401, PLC0415 - an extra


def new_session() -> "Session":
    """Return a botocore session with the settings of the environment."""
    from botocore.config import Config  # noqa: PLC0415 - an extra
    from botocore.session import Session  # noqa: PLC0415

    session = Session()
    # For the clients with which botocore asks for credentials; requests to models are not its.
    seconds = TOKEN_SECONDS
    config = Config(
        connect_timeout=seconds, read_timeout=seconds, retries={"total_max_attempts": 2}
    )
    session.set_default_client_config(config)
    return session


def region_of(session: "Session", region: str | None) -> str:
    """Return *region*, or that of the environment or the AWS profile.

    Raises:
        UsageError: There is none.
    """
    found = region or os.environ.get("AWS_REGION") or session.get_config_variable("region")
    if not found:
        msg = "Bedrock needs a region: set AWS_REGION or pass region="
        raise UsageError(msg)
    return str(found)


def endpoint_of(session: "Session", region: str) -> str:
    """Return the URL of Bedrock in *region*, or the one that the environment or profile sets.

    Raises:
        UsageError: *region* is not the name of a region.
    """
    from botocore import UNSIGNED  # noqa: PLC0415 - an extra
    from botocore.config import Config  # noqa: PLC0415
    from botocore.exceptions import BotoCoreError  # noqa: PLC0415

    # Unsigned, because otherwise botocore would look for credentials now.
    config = Config(signature_version=UNSIGNED)
    try:
        client = session.create_client(_SERVICE, region_name=region, config=config)
    except (BotoCoreError, ValueError) as error:
        msg = f"botocore knows no address of Bedrock in {region!r}: {error}"
        raise UsageError(msg) from error
    return str(client.meta.endpoint_url)


def signer(session: "Session", region: str) -> Signer:
    """Return a function that signs requests with the credentials of *session*."""
    from botocore.auth import SigV4Auth  # noqa: PLC0415 - an extra
    from botocore.awsrequest import AWSRequest  # noqa: PLC0415

    credentials = ExpiringCredentials(lambda: _fetch(session))

    async def sign(runtime: Runtime, url: str, body: bytes) -> Headers:
        # No secret is a local variable, which tracebacks may show. `add_auth` would write the token
        # to the log of botocore.
        auth: Any = SigV4Auth(await credentials.current(runtime), _SIGNING_NAME, region)
        timestamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        request = AWSRequest("POST", url, {"x-amz-date": timestamp}, body)
        request.context["timestamp"] = timestamp
        if auth.credentials.token:
            request.headers["x-amz-security-token"] = auth.credentials.token
        to_sign = auth.string_to_sign(request, auth.canonical_request(request))
        authorization = (
            f"AWS4-HMAC-SHA256 Credential={auth.scope(request)}, "
            f"SignedHeaders={auth.signed_headers(auth.headers_to_sign(request))}, Signature="
        )
        return SecretHeaders(
            {
                **dict(request.headers.items()),
                "authorization": authorization + auth.signature(to_sign, request),
            }
        )

    return sign


def _fetch(session: "Session") -> "tuple[ReadOnlyCredentials, float | None]":
    """Return the credentials of *session*, and when to ask for them again.

    Raises:
        AuthenticationError: There are no credentials, or they cannot be renewed.
        ConnectionFailedError: The service that issues them cannot be reached.
    """
    from botocore import exceptions  # noqa: PLC0415 - an extra
    from botocore.credentials import RefreshableCredentials  # noqa: PLC0415

    try:
        credentials = session.get_credentials()
        if credentials is None:
            msg = (
                "there are no AWS credentials; set AWS_ACCESS_KEY_ID, AWS_PROFILE or "
                "AWS_BEARER_TOKEN_BEDROCK, or pass api_key="
            )
            raise AuthenticationError(msg, provider=PROVIDER)
        frozen = credentials.get_frozen_credentials()
    except (exceptions.ConnectionError, exceptions.HTTPClientError) as error:
        what = "the service that issues AWS credentials cannot be reached"
        raise token_service_error(ConnectionFailedError, what, error, PROVIDER) from error
    except (exceptions.BotoCoreError, exceptions.ClientError, RuntimeError) as error:
        what = "the AWS credentials cannot be loaded"
        raise token_service_error(AuthenticationError, what, error, PROVIDER) from error
    renewable = isinstance(credentials, RefreshableCredentials)
    return frozen, time.time() + _CHECK_SECONDS if renewable else None
