"""Rules that need code, one subject per file; the files of TOML switch them on."""
