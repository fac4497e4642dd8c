"""Envoy's rate limit service v3: a proxy asks over gRPC, and no program has to be changed.

``service.answering(server)`` is it while it runs, beside the HTTP server of the same worker. It needs the
extra ``grpc``; what is named here does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...exceptions import InfrastructureError, ValidationError
from .rules import DescriptorRules

if TYPE_CHECKING:
    from ..config import ServerConfig

EXTRA = "Envoy is answered with grpcio and xds-protos; install this package with its extra: grpc"


def check(config: ServerConfig) -> None:
    """Raise if Envoy could not be answered as it was said, before anything is started."""
    if config.grpc is None:
        if config.grpc_rules is not None:
            raise ValidationError(
                "grpc_rules", str(config.grpc_rules), "they are for Envoy; pass --grpc, too"
            )
        return
    if config.workers > 1 and config.grpc.endswith(":0"):
        told = "each worker would take another port; name one, or use --workers 1"
        raise ValidationError("grpc", config.grpc, told)
    try:
        from . import service  # noqa: F401 - it is there
    except ImportError as error:
        raise InfrastructureError(EXTRA) from error
    rules_of(config)


def rules_of(config: ServerConfig) -> DescriptorRules:
    """The rules of the file that was named, or those that hold without one."""
    if config.grpc_rules is None:
        return DescriptorRules()
    from .rules_file import load_descriptor_rules

    return load_descriptor_rules(config.grpc_rules)
