"""Where requests go, as botocore would decide it, and what keeps them from going there by our own hand.

botocore knows the regions, the endpoints and every place where a user may have configured them, so it is
asked. What it can do and this transport cannot makes the store take botocore's client.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import botocore.exceptions as failures
from botocore import httpsession
from botocore.config import Config
from botocore.configprovider import ConfiguredEndpointProvider
from botocore.endpoint_provider import EndpointProvider
from botocore.utils import get_environ_proxies, validate_region_name

from ..boto import Access
from ..transport import NotConfigured, without_user
from .signing import SERVICE

RULES = "dynamodb/2012-08-10/endpoint-rule-set-1"
ADDRESSES_MAX = 2
"""How many addresses of a host are tried; each may take its share of the time to connect."""

PSEUDO_REGION = re.compile(r"fips-.*|.*-fips|aws-.*global")
UNPRINTABLE = re.compile(r"[^ -~]")

HOOKS = (
    "after-call before-call before-parameter-build before-send before-sign choose-signer needs-retry"
    " provide-client-params request-created response-received"
)
"""Events of a request in botocore, at which a session's own handlers may want to be called."""

OPERATIONS = ("BatchGetItem", "DeleteItem", "PutItem", "Query", "TransactWriteItems", "UpdateItem")
DRIVERS = ("boto3", "botocore", "aiobotocore")


class DriverNeeded(Exception):
    """Something was asked for that only botocore's own client does."""


class Target(NamedTuple):
    """A host, and what every request to it has in common."""

    host: str
    port: int
    authority: str
    region: str
    user_agent: str
    tls: ssl.SSLContext | None
    pool: int
    keep_alive: bool

    def prepare(self, fresh: socket.socket) -> None:
        """What a socket needs before it is connected."""
        fresh.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.keep_alive:
            fresh.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def find_target(access: Access, session: Any, account_id: str | None) -> Target:
    """Raises an ``DriverNeeded``, or botocore's own error when something is missing."""
    config = access.client_config(session.get_default_client_config() or Config())
    _check_hooks(session)
    _check_signature(config, session)
    region = access.region or getattr(config, "region_name", None) or session.get_config_variable("region")
    if not region:
        raise failures.NoRegionError()
    validate_region_name(region)
    if PSEUDO_REGION.fullmatch(region):
        raise DriverNeeded(f"the region {region!r} stands for something else")
    url, region = _endpoint(access, session, config, region, account_id)
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise NotConfigured(
            f"invalid endpoint {without_user(url)!r}: use a URL such as https://dynamodb.{region}.amazonaws.com"
        )
    if parts.path not in ("", "/") or parts.query or parts.fragment or parts.username is not None:
        raise DriverNeeded(f"the endpoint {parts.hostname!r} is more than a host and a port")
    proxies = config.proxies if config.proxies is not None else get_environ_proxies(url)
    if proxies.get(parts.scheme):
        raise DriverNeeded(f"there is a proxy for {parts.scheme}")
    usual = 443 if parts.scheme == "https" else 80
    name = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return Target(
        host=parts.hostname,
        port=parts.port or usual,
        authority=name if parts.port in (None, usual) else f"{name}:{parts.port}",
        region=region,
        user_agent=_user_agent(config, session),
        tls=_tls(config, session) if parts.scheme == "https" else None,
        pool=config.max_pool_connections,
        keep_alive=bool(config.tcp_keepalive),
    )


def _check_hooks(session: Any) -> None:
    emitter = session.get_component("event_emitter")
    # An emitter that cannot be looked into may hold anything.
    handlers = getattr(getattr(emitter, "_emitter", emitter), "_handlers", None)
    if handlers is None:
        raise DriverNeeded("the handlers of the session cannot be read")
    for hook in HOOKS.split():
        for operation in OPERATIONS:
            for handler in handlers.prefix_search(f"{hook}.{SERVICE}.{operation}"):
                origin = getattr(handler, "__module__", None) or type(handler).__module__
                if origin.partition(".")[0] not in DRIVERS:
                    raise DriverNeeded(f"the session has a handler for {hook}")


def _check_signature(config: Any, session: Any) -> None:
    of_service = session.get_scoped_config().get(SERVICE)
    stored = of_service.get("signature_version") if isinstance(of_service, dict) else None
    for version in (config.signature_version, stored):
        if version not in (None, "v4"):
            raise DriverNeeded(f"the signature version {version!r} is wanted")
    if getattr(config, "sigv4a_signing_region_set", None):
        raise DriverNeeded("a signature for several regions is wanted")


def _endpoint(
    access: Access, session: Any, config: Any, region: str, account_id: str | None
) -> tuple[str, str]:
    """The URL, and the region to sign for."""
    if access.endpoint_url:
        return access.endpoint_url, region
    if not _wish(config, session, "ignore_configured_endpoint_urls"):
        configured = ConfiguredEndpointProvider(
            full_config=session.full_config, scoped_config=session.get_scoped_config(), client_name=SERVICE
        ).provide()
        if configured:
            return configured, region
    loader = session.get_component("data_loader")
    provider = EndpointProvider(loader.load_data(RULES), loader.load_data("partitions"))
    known = provider.ruleset.parameters
    wishes = {
        "Region": region,
        "UseDualStack": bool(_wish(config, session, "use_dualstack_endpoint")),
        "UseFIPS": bool(_wish(config, session, "use_fips_endpoint")),
        "AccountId": account_id,
        "AccountIdEndpointMode": _wish(config, session, "account_id_endpoint_mode"),
    }
    found = provider.resolve_endpoint(**{n: v for n, v in wishes.items() if n in known and v is not None})
    for scheme in found.properties.get("authSchemes", ()):
        if scheme.get("name") != "sigv4" or scheme.get("signingName", SERVICE) != SERVICE:
            raise DriverNeeded(f"the endpoint wants to be signed for by {scheme.get('name')!r}")
        region = scheme.get("signingRegion", region)
    return found.url, region


def _wish(config: Any, session: Any, name: str) -> Any:
    """What the ``Config`` says, else environment and profile; ``None`` for what botocore does not know."""
    given = getattr(config, name, None)
    return given if given is not None else session.get_config_variable(name)


def _user_agent(config: Any, session: Any) -> str:
    app = _wish(config, session, "user_agent_appid")
    own = config.user_agent or f"{session.user_agent()} zae-limiter"
    parts = (own, app and f"app/{app}", config.user_agent_extra)
    return UNPRINTABLE.sub("-", " ".join(part for part in parts if part))


def _tls(config: Any, session: Any) -> ssl.SSLContext:
    """As botocore does it: its own bundle of authorities, or the one that is configured."""
    bundle = session.get_config_variable("ca_bundle") or os.environ.get("REQUESTS_CA_BUNDLE")
    place, own = bundle or httpsession.where(), config.client_cert
    try:
        file, folder = (None, place) if os.path.isdir(place) else (place, None)
        context = ssl.create_default_context(cafile=file, capath=folder)
        if own:
            context.load_cert_chain(*([own] if isinstance(own, str) else own))
    except OSError as error:
        raise NotConfigured(
            f"cannot load certificates: {error}; correct AWS_CA_BUNDLE {bundle!r} or client_cert"
        ) from error
    return context


def untrusted(target: Target, error: ssl.SSLCertVerificationError) -> NotConfigured:
    return NotConfigured(
        f"the certificate of {target.authority} is not trusted: {error.verify_message}; "
        "set AWS_CA_BUNDLE to a file with the authority that signed it"
    )
