"""Snowclaw: memory of users and groups, and the settings of group agents."""
