"""Where users meet the core: sessions, what they share, and how a tool is declared."""
