"""Configuration: the schema, and loading it from files, environment and flags."""

from hintloop_contract.config.arguments import parse_arguments
from hintloop_contract.config.loading import LoadedConfig, load_config
from hintloop_contract.config.schema import Config

__all__ = ["Config", "LoadedConfig", "load_config", "parse_arguments"]
