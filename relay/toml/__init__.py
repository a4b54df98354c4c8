"""TOML files of an admin: values with their place, every fault with file, line and nearest word."""
