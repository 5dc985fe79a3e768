"""The page at `/`: its routes, and what it does in a browser."""
