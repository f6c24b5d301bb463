"""The leaderboard as a static site: pages and their data as JSON, without external resources."""
