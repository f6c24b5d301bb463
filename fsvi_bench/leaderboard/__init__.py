"""The leaderboard: entries, their verification, ranking, and the site."""
