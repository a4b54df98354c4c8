"""Tables of cases that policies must hold, and their one runner."""
