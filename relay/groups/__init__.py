"""NIP-29 as a fold over events: pure, knows no store and no clock."""
