"""The configuration of a deployment: `load_config` reads it, `ClusterConfig` is it."""

from baton.runtime.config.errors import ConfigError, Origin, Problem
from baton.runtime.config.load import effective_json, from_json, json_schema, load_config
from baton.runtime.config.model import (
    ClusterConfig,
    EngineConfig,
    GrpcConfig,
    LoggingConfig,
    MetricsConfig,
    NodesConfig,
    RouterConfig,
    SuperviseConfig,
    TransferConfig,
)

__all__ = [
    "ClusterConfig",
    "ConfigError",
    "EngineConfig",
    "GrpcConfig",
    "LoggingConfig",
    "MetricsConfig",
    "NodesConfig",
    "Origin",
    "Problem",
    "RouterConfig",
    "SuperviseConfig",
    "TransferConfig",
    "effective_json",
    "from_json",
    "json_schema",
    "load_config",
]
