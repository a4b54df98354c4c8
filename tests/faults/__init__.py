"""Crashes, torn writes, damaged files and errors of the operating system."""
