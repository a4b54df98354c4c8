"""The tests of Rookery; their manners are in CONTRIBUTING.md."""
