"""Packs that come with the package: one TOML file a server."""
