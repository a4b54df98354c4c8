"""nmem: sessions, prompts, observations and pins of coding agents."""
