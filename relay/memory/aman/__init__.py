"""Aman: preferences, summaries and tool history of a messaging agent."""
