"""The leaderboard as a static site: pages, their data as JSON, nothing fetched from anywhere."""
