"""Forced scores over gRPC: the service's definition, generated code, and packing. Owns no connection."""
